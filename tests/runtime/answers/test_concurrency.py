"""Bundles with operators measured under concurrent load: which regressors answer a step, a search, a page."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernelcast.cli.main import kernelcast
from kernelcast.runtime import Cluster, DataError, Estimate, Estimator, ModelConfig, Parallelism
from kernelcast.runtime.answers.bundle_check import check_bundle
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.answers.warnings import AnswerWarning
from kernelcast.runtime.bundle.difference import compare_bundles
from kernelcast.runtime.bundle.file import Bundle, nearest_level, read_bundle, write_bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.estimate.explanation import explain_operator
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.search import search
from kernelcast.runtime.search.space import Space

F = Direction.FORWARD
CPU = ComputeFingerprint(kind="cpu", device_name="one of a test", cores=8, threads=1)
GPU = ComputeFingerprint(kind="cuda", device_name="one of a test")
MODEL = ModelConfig(
    name="tiny", hidden_size=64, sequence_length=16, attention_heads=4, layers=8, vocabulary_size=500
)
Make = Callable[..., Path]


def layout(pp: int = 1, dp: int = 1) -> Parallelism:
    return Parallelism(pp=pp, tp=1, dp=dp, micro_batch=1, micro_batches=4)


@pytest.fixture
def levelled(make_bundle: Make, linear_model: Callable[..., bytes], tmp_path: Path) -> Callable[..., Path]:
    """Writes a bundle with constant times: with n processes at once every operator takes n times longer."""

    def make(
        levels: tuple[int, ...], *, compute: ComputeFingerprint = CPU, without: tuple[str, ...] = ()
    ) -> Path:
        alone = read_bundle(make_bundle())
        entries, models = [], {}
        for entry in alone.manifest.regressors:
            for level in (1,) if OPERATORS[entry.operator].is_collective else levels:
                if level > 1 and entry.operator in without:
                    continue
                usual_us = dict.fromkeys(Direction, 10.0) | {Direction.BACKWARD: 20.0, Direction.ONCE: 5.0}
                model = linear_model([0.0] * len(entry.features), level * usual_us[entry.direction])
                file = entry.file if level == 1 else entry.file.replace(".onnx", f".{level}-processes.onnx")
                one = replace(entry, file=file, processes_per_node=level)
                one = replace(one, **_of(model))
                entries.append(one)
                models[file] = model
        path = tmp_path / f"levels-{'-'.join(map(str, levels))}.kcast"
        write_bundle(path, replace(alone.manifest, regressors=tuple(entries), compute=(compute,)), models)
        return path

    return make


def _of(model: bytes) -> dict[str, object]:
    from hashlib import sha256

    return {"sha256": sha256(model).hexdigest(), "size_bytes": len(model)}


def test_the_nearest_level_is_the_nearest_ratio() -> None:
    assert [nearest_level((1, 2, 8), n) for n in (1, 2, 3, 4, 5, 100)] == [1, 2, 2, 8, 8, 8]


def test_a_bundle_holds_the_levels_and_gives_the_nearest(levelled: Make) -> None:
    bundle = read_bundle(levelled((1, 2), without=("gelu",)))
    assert bundle.levels == (1, 2)
    assert bundle.at(1) is bundle
    beside = bundle.at(3)
    assert beside.entries["rope", F].processes_per_node == 2
    # What the level lacks is answered by the nearest that has it.
    assert beside.entries["gelu", F].processes_per_node == 1
    assert beside.entries.keys() == bundle.entries.keys()
    assert bundle.entries["rope", F].processes_per_node == 1
    only_beside = read_bundle(levelled((4,)))
    assert only_beside.entries["rope", F].processes_per_node == 4


def test_predictors_of_levels_answer_and_share(levelled: Make) -> None:
    predictor = Predictor(read_bundle(levelled((1, 2), without=("gelu",))))
    workload = [(1.0,) * len(OPERATORS["rope"].features)]
    assert predictor.predict_us("rope", F, workload).tolist() == [10.0]
    assert predictor.at(2).predict_us("rope", F, workload).tolist() == [20.0]
    assert predictor.at(5) is predictor.at(2)
    assert predictor.at(1) is predictor
    predictor.load()
    assert len(predictor._sessions) == len(predictor.bundle.manifest.regressors)


def of_concurrency(estimate: Estimate) -> list[AnswerWarning]:
    return [warning for warning in estimate.warnings if warning.kind == "concurrency"]


def test_a_step_asks_the_level_of_its_fullest_node(levelled: Make) -> None:
    estimator = Estimator.load(levelled((1, 2)))
    node = Cluster(gpus_per_node=2)
    times = {}
    for name, one in (("alone", layout()), ("two", layout(dp=2)), ("four", layout(dp=4))):
        estimate = estimator.predict(model=MODEL, parallelism=one, cluster=node)
        times[name] = estimate.components.layer_forward_s
        processes = 1 if name == "alone" else 2
        assert (estimate.processes_per_node, estimate.answered_with) == (processes, (processes,))
        assert estimate.to_dict()["concurrency"] == {
            "processes_per_node": processes,
            "answered_with": [processes],
        }
        assert of_concurrency(estimate) == []
    assert times["two"] == times["four"] == pytest.approx(2 * times["alone"])


def test_more_processes_than_were_measured_are_warned_of_on_a_cpu(levelled: Make) -> None:
    for compute, expected in ((CPU, 1), (GPU, 0)):
        estimator = Estimator.load(levelled((1, 2), compute=compute))
        estimate = estimator.predict(model=MODEL, parallelism=layout(dp=4), cluster=Cluster(gpus_per_node=4))
        warnings = of_concurrency(estimate)
        assert len(warnings) == expected
        for warning in warnings:
            assert str(warning) == (
                "4 processes per node run concurrently, but operators were measured with 1, 2: more processes slow "
                "each other down (kernelcast collect compute --procs-per-node 4)"
            )
            assert warning.to_dict()["kind"] == "concurrency"


def test_an_explanation_is_of_the_regressor_that_answered(levelled: Make) -> None:
    estimator = Estimator.load(levelled((1, 2)))
    estimate = estimator.predict(model=MODEL, parallelism=layout(pp=2), cluster=Cluster(gpus_per_node=2))
    for one in explain_operator(estimate, estimator.bundle, "gelu"):
        assert one.to_dict()["regressor"]["processes_per_node"] == 2


@pytest.mark.parametrize("timeline", ["simulate", "closed-form"])
def test_a_search_asks_what_a_prediction_asks(levelled: Make, timeline: str) -> None:
    estimator = Estimator.load(levelled((1, 2, 4)))
    found = search(
        estimator,
        Question(
            space=Space(
                model=MODEL,
                gpus=(1, 2, 4, 8),
                global_batch=4,
                gpus_per_node=4,
                zero=(1,),
                recompute=("none",),
            ),
            timeline=timeline,  # type: ignore[arg-type]
            top=10_000,
            prune=False,
        ),
    )
    assert {min(4, one.parallelism.world_size) for one in found.top} == {1, 2, 4}
    for one in found.top:
        assert one.estimate.processes_per_node == min(4, one.parallelism.world_size)
    # The search prices many layouts at once: the ranking is the same as by single estimates.
    steps_s = [one.estimate.step_time_s for one in found.top]
    assert steps_s == pytest.approx(sorted(steps_s), rel=1e-9)


def test_every_level_is_checked_and_compared(levelled: Make) -> None:
    path = levelled((1, 2))
    checked = check_bundle(path)
    assert checked.models == len(read_bundle(path).manifest.regressors)
    one, two = read_bundle(levelled((1,))), read_bundle(path)
    difference = compare_bundles(one, two)
    assert {entry.processes_per_node for entry in difference.added} == {2}
    assert (difference.removed, difference.changed) == ((), ())


def test_the_manifest_names_the_level_of_every_regressor(levelled: Make) -> None:
    def levels(bundle: Bundle) -> set[int]:
        return {row["processes_per_node"] for row in bundle.manifest.to_dict()["regressors"]}

    assert levels(read_bundle(levelled((1,)))) == {1}
    assert levels(read_bundle(levelled((1, 2)))) == {1, 2}


@pytest.mark.parametrize("processes", [0, 1 << 17])
def test_levels_out_of_bounds_are_refused(levelled: Make, processes: int) -> None:
    entry = read_bundle(levelled((1,))).entries["gelu", F]
    with pytest.raises(
        DataError, match=rf"regressor gelu \(forward\): processes_per_node is {processes}, expected 1"
    ):
        replace(entry, processes_per_node=processes)
    with pytest.raises(
        DataError, match=r"file is 'models/gelu\.forward\.onnx', expected 'models/gelu\.forward\.2-proc"
    ):
        replace(entry, processes_per_node=2)


def test_collectives_have_no_level(levelled: Make) -> None:
    entry = read_bundle(levelled((1,))).entries["all_reduce", Direction.ONCE]
    with pytest.raises(
        DataError, match="processes_per_node is 2, expected 1 to 65536, and 1 for collectives"
    ):
        replace(entry, processes_per_node=2)


def test_the_explanation_in_words_says_the_level(levelled: Make) -> None:
    bundle = levelled((1, 2))
    options = ["--bundle", str(bundle), "--model", "llama-2-7b", "--micro-batch", "1", "--micro-batches", "4"]
    for layout, said in ((["--pp", "2"], True), ([], False)):
        result = CliRunner().invoke(
            kernelcast, ["predict", *options, *layout, "--gpus-per-node", "2", "--explain", "swiglu"]
        )
        assert result.exit_code == 0, result.output
        assert ("  measured   with 2 processes per node running it at once\n" in result.output) is said
