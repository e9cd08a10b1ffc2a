"""Collectives over a fabric: by a description, by another bundle, and extended to layouts that were never measured."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime import Cluster, DataError, Estimate, Estimator, ModelConfig, Parallelism, UsageError
from kernelcast.runtime.answers.fabric_choice import FabricBundle, find_fabric
from kernelcast.runtime.answers.warnings import Cause
from kernelcast.runtime.bundle.file import read_bundle, write_bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint
from kernelcast.runtime.bundle.manifest import fingerprint_of
from kernelcast.runtime.hardware.collectives import Setting, collective_us, least_us
from kernelcast.runtime.hardware.fabric import fabric_named, fabric_toml
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.search import search
from kernelcast.runtime.search.space import Space

Make = Callable[..., Path]
MODEL = ModelConfig(
    name="small", hidden_size=512, sequence_length=256, attention_heads=8, layers=4, vocabulary_size=32000
)
H100 = fabric_named("h100-3200g")
NODES_OF_4 = FabricFingerprint(backend="nccl", gpus_per_node=4)
COLLECTIVES = tuple(name for name, row in OPERATORS.items() if row.is_collective)


def layout(**degrees: int) -> Parallelism:
    return Parallelism(**{"pp": 1, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 2, **degrees})


def measured_in(path: Path, layouts: Sequence[tuple[int, int]]) -> Path:
    """The same bundle, whose collectives were measured in these layouts, from 1 to 1e9 entries."""
    read = read_bundle(path)
    entries = tuple(
        replace(entry, layouts=tuple(layouts), training_range=((1.0, 1e9), (1.0, 8.0), (1.0, 8.0)))
        if OPERATORS[entry.operator].is_collective
        else entry
        for entry in read.manifest.regressors
    )
    write_bundle(path, replace(read.manifest, regressors=entries), read.files)
    return path


def answers_of(estimate: Estimate, operator: str) -> dict[tuple[float, ...], tuple[float, float, float]]:
    return {vector: answer for (key, vector, _), answer in estimate.answers.items() if key[0] == operator}


def test_a_description_answers_all_collectives(make_bundle: Make) -> None:
    estimator = Estimator.load(make_bundle(fabric=[NODES_OF_4]))
    parallelism = layout(tp=8, dp=4)
    estimate = estimator.predict(model=MODEL, parallelism=parallelism, fabric=H100)
    assert estimate.cluster == Cluster(gpus_per_node=8)
    assert estimate.cluster_source == "fabric"
    found = answers_of(estimate, "all_reduce")
    assert {vector[1:] for vector in found} == {(1, 8), (4, 1)}
    for (entries, nodes, gpus), (time_us, low_us, high_us) in found.items():
        setting = Setting(
            fabric=H100, nodes=int(nodes), gpus_per_node=int(gpus), groups=8 if nodes > 1 else 1
        )
        assert time_us == pytest.approx(float(collective_us("all_reduce", [4 * entries], setting)[0]))
        assert low_us < time_us < high_us
        assert low_us >= float(least_us("all_reduce", [4 * entries], setting)[0])
    [described] = [one for one in estimate.warnings if one.kind == "described"]
    assert "all_reduce" in described.values["operators"]
    assert described.values["fabric"] == "h100-3200g"
    [nodes_differ] = [one for one in estimate.warnings if one.kind == "devices_per_node"]
    assert str(nodes_differ) == "8 devices per node (fabric), but the bundle has nodes of 4"
    use = estimate.to_dict()["provenance"]["collectives"]
    assert use["name"] == "h100-3200g"
    assert use["kind"] == "described"
    assert "nccl-tests-cluster" in use["source"]


def test_without_a_fabric_nothing_changes(make_bundle: Make) -> None:
    estimator = Estimator.load(make_bundle(fabric=[NODES_OF_4]))
    estimate = estimator.predict(model=MODEL, parallelism=layout(tp=4, dp=2))
    assert estimate.cluster_source == "bundle"
    assert estimate.warnings == ()
    assert estimate.to_dict()["provenance"]["collectives"] is None
    assert set(answers_of(estimate, "all_reduce").values()) == {(5.0, 2.5, 10.0)}


def test_other_devices_per_node_than_the_bundle_has_are_said(make_bundle: Make) -> None:
    estimator = Estimator.load(make_bundle(fabric=[NODES_OF_4]))
    asked = estimator.predict(model=MODEL, parallelism=layout(dp=2), cluster=Cluster(gpus_per_node=2))
    assert [str(one) for one in asked.warnings] == [
        "2 devices per node (given), but the bundle has nodes of 4"
    ]
    both = estimator.predict(
        model=MODEL, parallelism=layout(dp=2), cluster=Cluster(gpus_per_node=2), fabric=H100
    )
    assert [str(one) for one in both.warnings if one.kind == "devices_per_node"] == [
        "2 devices per node (given), but the bundle has nodes of 4",
        "2 devices per node (given), but fabric h100-3200g has nodes of 8",
    ]


def test_more_devices_per_node_than_the_fabric_has_are_refused(make_bundle: Make) -> None:
    estimator = Estimator.load(make_bundle())
    with pytest.raises(UsageError) as refused:
        estimator.predict(
            model=MODEL, parallelism=layout(dp=2), cluster=Cluster(gpus_per_node=16), fabric=H100
        )
    assert str(refused.value) == (
        "gpus_per_node is 16, expected at most 8, the devices per node of fabric h100-3200g"
    )


def test_a_layout_that_the_fabric_does_not_have_is_an_error(make_bundle: Make) -> None:
    estimator = Estimator.load(make_bundle())
    with pytest.raises(
        DataError, match=r"fabric h100-nvswitch: layout 2 × 8 spans nodes, and it has no \[between\]"
    ):
        estimator.predict(model=MODEL, parallelism=layout(dp=16), fabric=fabric_named("h100-nvswitch"))


def test_another_bundle_answers_with_its_own_element_size(
    make_bundle: Make, linear_model: Callable[..., bytes], tmp_path: Path
) -> None:
    by_size = {name: linear_model([1.0, 0.0, 0.0], 1.0) for name in COLLECTIVES}
    other = make_bundle(
        by_size, fabric=[FabricFingerprint(backend="nccl", gpus_per_node=8)], name="other.kcast"
    )
    read = read_bundle(other)
    half = tuple(replace(entry, dtype="float16") for entry in read.manifest.regressors)
    write_bundle(other, replace(read.manifest, dtype="float16", regressors=half), read.files)
    fabric = find_fabric(other)
    assert isinstance(fabric, FabricBundle)
    assert pickle.loads(pickle.dumps(fabric)) == fabric
    estimate = Estimator.load(make_bundle()).predict(model=MODEL, parallelism=layout(dp=2), fabric=fabric)
    assert estimate.cluster == Cluster(gpus_per_node=8)
    for (entries, *_), (time_us, _, _) in answers_of(estimate, "all_reduce").items():
        # float32 here, float16 there: twice the elements.
        assert time_us == pytest.approx(2 * entries + 1, rel=1e-6)
    assert estimate.provenance.collectives is not None
    assert estimate.provenance.collectives.kind == "measured"
    [transferred] = [doubt for doubt in estimate.doubts if doubt.cause is Cause.TRANSFERRED]
    assert transferred.summary.endswith(f"all_reduce from {other}")
    assert transferred.share is not None
    assert transferred.warnings[0].to_dict()["kind"] == "transferred"
    assert estimate.provenance.collectives.digest == read_bundle(other).digest


def test_a_bundle_without_collectives_is_no_fabric(make_bundle: Make) -> None:
    path = make_bundle(without=COLLECTIVES, name="compute.kcast")
    with pytest.raises(DataError, match="the bundle holds no collectives, expected one that does"):
        find_fabric(path)


def test_what_is_no_fabric_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fabric 'nothing' is unknown, known are a100-"):
        find_fabric("nothing")
    with pytest.raises(UsageError, match="'perlmutter-measurd' is unknown, nearest is perlmutter-measured;"):
        find_fabric("perlmutter-measurd")
    with pytest.raises(DataError, match="no such file"):
        find_fabric(tmp_path / "none.toml")
    with pytest.raises(DataError, match="no such file"):
        find_fabric(tmp_path / "none.kcast")
    (tmp_path / "ours.toml").write_text(fabric_toml(H100))
    assert find_fabric(tmp_path / "ours.toml") == H100


def test_a_bundle_that_holds_a_description_extends_its_layouts(
    make_bundle: Make, linear_model: Callable[..., bytes]
) -> None:
    # Twice as slow as the description: 8 devices in a node at half of its rate.
    slow = {name: linear_model([8 * 1.75 / (450e3 * 0.76), 0.0, 0.0], 100.0) for name in ("all_reduce",)}
    path = make_bundle(
        slow, fabric=[FabricFingerprint(backend="nccl", gpus_per_node=8), fingerprint_of(H100)]
    )
    estimator = Estimator.load(measured_in(path, [(1, 2), (1, 8)]))
    parallelism = layout(tp=4, dp=16)
    estimate = estimator.predict(model=MODEL, parallelism=parallelism)
    assert estimate.cluster_source == "bundle"
    extended = {tuple(one.values["asked"]): one for one in estimate.warnings if one.kind == "extended"}
    assert (8, 2) in extended
    assert "never measured, extended from 1 × 2, 1 × 8 by the description of fabric h100-3200g" in str(
        extended[8, 2]
    )
    described = estimator.predict(
        model=MODEL, parallelism=parallelism, fabric=replace(H100, name="without rows")
    )
    for vector, (time_us, low_us, high_us) in answers_of(estimate, "all_reduce").items():
        assert low_us <= time_us <= high_us
        if vector[1:] == (1, 4):  # the links are slower than described
            assert time_us > answers_of(described, "all_reduce")[vector][0]


def test_rows_correct_a_description_only_of_their_own_fabric(
    make_bundle: Make, linear_model: Callable[..., bytes]
) -> None:
    own = [FabricFingerprint(backend="nccl", gpus_per_node=8), fingerprint_of(H100)]
    path = make_bundle({"all_reduce": linear_model([1e-3, 0.0, 0.0], 1000.0)}, fabric=own)
    estimator = Estimator.load(measured_in(path, [(1, 8)]))
    same = estimator.predict(model=MODEL, parallelism=layout(tp=8), fabric=H100)
    assert not [
        one for one in same.warnings if one.kind == "described" and "all_reduce" in one.values["operators"]
    ]
    another = estimator.predict(model=MODEL, parallelism=layout(tp=8), fabric=fabric_named("b200-3200g"))
    assert another.components.tp_all_reduce_s < same.components.tp_all_reduce_s / 5


def test_measured_answers_are_not_below_the_wire(
    make_bundle: Make, linear_model: Callable[..., bytes]
) -> None:
    own = [FabricFingerprint(backend="nccl", gpus_per_node=8), fingerprint_of(H100)]
    path = measured_in(make_bundle({"all_reduce": 1e-3}, fabric=own), [(1, 8)])
    estimate = Estimator.load(path).predict(model=MODEL, parallelism=layout(tp=8))
    setting = Setting(fabric=H100, nodes=1, gpus_per_node=8)
    for (entries, *_), (time_us, low_us, _) in answers_of(estimate, "all_reduce").items():
        least = float(least_us("all_reduce", [4 * entries], setting)[0])
        assert min(time_us, low_us) == pytest.approx(least)


def test_a_search_asks_the_same_fabric(make_bundle: Make) -> None:
    estimator = Estimator.load(make_bundle())
    question = Question(
        space=Space(model=MODEL, gpus=(16,), global_batch=16, gpus_per_node=8), fabric=H100, top=3
    )
    found = search(estimator, pickle.loads(pickle.dumps(question)))
    assert found.top
    for answer in found.top:
        again = estimator.predict(
            model=MODEL,
            parallelism=answer.parallelism,
            cluster=Cluster(gpus_per_node=8),
            gpu_memory_bytes=None,
            fabric=H100,
        )
        assert again.step_time_s == answer.step_time_s
        assert again.provenance.collectives is not None


def test_every_collective_has_an_answer() -> None:
    assert {(name, Direction.ONCE) for name in COLLECTIVES} == {
        (name, direction) for name in COLLECTIVES for direction in OPERATORS[name].directions
    }


def test_without_a_description_the_links_of_the_device_are_the_bound(
    make_bundle: Make, linear_model: Callable[..., bytes]
) -> None:
    """As measured rows of 2 and 4 devices once came out at 363 GB/s for 8, over links of 300."""
    path = make_bundle({"all_reduce": 1e-3})
    read = read_bundle(path)
    device = ComputeFingerprint(kind="cuda", device_name="NVIDIA A100-SXM4-80GB")
    write_bundle(path, replace(read.manifest, compute=(device,)), read.files)
    estimate = Estimator.load(path).predict(
        model=MODEL, parallelism=layout(tp=8), cluster=Cluster(gpus_per_node=8)
    )
    for (entries, *_), answer in answers_of(estimate, "all_reduce").items():
        least_time_us = 1.75 * 4 * entries / 300e9 * 1e6
        assert answer == pytest.approx((least_time_us,) * 3)
