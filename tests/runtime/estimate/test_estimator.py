"""Whole estimates: steps added up by hand, and the laws that hold for every layout."""

import gc
import json
import os
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import (
    Cluster,
    DataError,
    Estimator,
    ModelConfig,
    Parallelism,
    UsageError,
    read_bundle,
)
from kernelcast.runtime.bundle.fingerprint import FabricFingerprint
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.step.passes import passes_of

Make = Callable[..., Path]
TINY: dict[str, Any] = {
    "name": "tiny",
    "hidden_size": 8,
    "sequence_length": 4,
    "attention_heads": 2,
    "layers": 4,
    "vocabulary_size": 100,
}
LAYOUT = {"pp": 1, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 1}
ONE: dict[str, Any] = LAYOUT | {"layer_split": "paper"}
OPTIMIZER = {"adam": 100.0}


def us(seconds: float) -> float:
    return round(seconds * 1e6, 6)


def test_two_stages_by_hand(make_bundle: Make) -> None:
    # A layer calls 11: 2 norms, Linear1, RoPE, attention, Linear2, 2 adds, Linear3, GeLU, Linear4.
    # 9 blocks on 2 stages: 5 and 4, so 3 layers and 1.
    estimate = Estimator.load(make_bundle(OPTIMIZER)).predict(
        model=ModelConfig(**TINY),
        parallelism=Parallelism(**ONE | {"pp": 2, "micro_batches": 3}),
        cluster=Cluster(gpus_per_node=2),
        timeline="closed-form",
    )
    first, last = estimate.stages
    assert us(first.forward_s) == 10 + 3 * 110 + 5
    assert us(first.backward_s) == 20 + 3 * 220
    assert us(last.forward_s) == 110 + 3 * 10
    assert us(last.backward_s) == 220 + 3 * 20 + 5
    # (3 − 1 + 2) · (345 + 680) + 100
    assert us(estimate.step_time_s) == 4200
    assert {name: us(value) for name, value in estimate.components.to_dict().items()} == {
        "Encoder_Fwd": 110,
        "Encoder_Bwd": 220,
        "Stage_Fwd_Max": 345,
        "Stage_Bwd_Max": 680,
        "DP_Allreduce": 0,
        "DP_Allgather": 0,
        "Max_Update": 100,
        "MP_Allreduce": 0,
        "PP_P2P": 5,
    }
    assert estimate.layer_counts == (3, 1)
    assert estimate.tokens_per_s == pytest.approx(3 * 4 / 4200e-6)
    assert estimate.warnings == ()


def test_recomputation_by_hand(make_bundle: Make) -> None:
    estimate = Estimator.load(make_bundle(OPTIMIZER)).predict(
        model=ModelConfig(**TINY),
        parallelism=Parallelism(**ONE | {"pp": 2, "micro_batches": 3, "recompute": "full"}),
        cluster=Cluster(gpus_per_node=2),
        timeline="closed-form",
    )
    # Layer backward 220 + 110; first stage 20 + 3 · 330 = 1,010; 4 · (345 + 1,010) + 100.
    assert us(estimate.components.layer_backward_s) == 330
    assert us(estimate.step_time_s) == 5520


def test_all_three_dimensions_by_hand(make_bundle: Make, linear_model: Callable[..., bytes]) -> None:
    # The tensor-parallel group is two devices of a node and takes 7 µs whatever it sums, the data-parallel group two
    # nodes and 30; the optimizer 50 µs per layer of the stage and 50.
    times: dict[str, float | bytes] = {
        "all_reduce": linear_model((0, 23, 0), -16),
        "all_gather": 11.0,
        "adam": linear_model((0, 50), 50),
    }
    estimate = Estimator.load(make_bundle(times)).predict(
        model=ModelConfig(**TINY, parallel_residual=True),
        parallelism=Parallelism(**ONE | {"pp": 2, "tp": 2, "dp": 2, "micro_batches": 3}),
        cluster=Cluster(gpus_per_node=2),
        timeline="closed-form",
    )
    # Layer 110 + 7 and 220 + 14. First stage: 10 + 7 + 351 + 5 = 373 and 20 + 702 = 722.
    assert us(estimate.stages[0].forward_s) == 373
    assert us(estimate.stages[0].backward_s) == 722
    # 4 · 1,095 + 30 + the first stage's (50 + 3 · 50 + 11)
    assert us(estimate.step_time_s) == 4380 + 30 + 211
    components = estimate.components
    assert (us(components.max_update_s), us(components.dp_all_gather_s)) == (211, 11)
    assert us(components.dp_all_reduce_s) == 30
    assert [us(stage.optimizer_s) for stage in estimate.stages] == [200, 100]
    assert (us(components.tp_all_reduce_s), us(components.pp_p2p_s)) == (7, 5)


def test_buckets_by_hand(make_bundle: Make, linear_model: Callable[..., bytes]) -> None:
    # 1 µs per bucket and 0.001 µs per entry; on the first stage 3 layers and 128 · 8 for the embedding:
    # 3 · (32 + 8·8·9 + 8·33) + 1,024 = 3,640 entries, so buckets of 1,000 are 3 and a rest of 640.
    times = {"all_reduce": linear_model((0.001, 0, 0), 1)}
    estimate = Estimator.load(make_bundle(times)).predict(
        model=ModelConfig(**TINY),
        parallelism=Parallelism(**ONE | {"pp": 2, "dp": 2}),
        cluster=Cluster(gpus_per_node=4),
        bucket_entries=1000,
    )
    assert estimate.stages[0].parameters == 3640
    rows = [row for row in estimate.operators if row.operator == "all_reduce" and row.stage == 0]
    assert [(row.vector, row.count) for row in rows] == [((1000, 1, 2), 3), ((640, 1, 2), 1)]
    assert us(estimate.components.dp_all_reduce_s) == pytest.approx(4 + 3.64, abs=1e-4)


def test_a_single_process_needs_no_collectives(make_bundle: Make) -> None:
    without = [name for name, row in OPERATORS.items() if row.is_collective]
    estimate = Estimator.load(make_bundle({"adam": 50.0}, without=without)).predict(
        model=ModelConfig(**TINY), parallelism=Parallelism(**ONE | {"micro_batches": 2})
    )
    # Embedding, 4 layers, norm + logits + loss: 10 + 440 + 30 and 20 + 880 + 60; twice, and the optimizer.
    assert us(estimate.step_time_s) == 2 * (480 + 960) + 50


def test_rows_add_up_to_the_stages(make_bundle: Make) -> None:
    estimate = Estimator.load(make_bundle()).predict(
        model=ModelConfig(**TINY),
        parallelism=Parallelism(**ONE | {"pp": 2, "tp": 2, "dp": 4, "recompute": "full"}),
        cluster=Cluster(gpus_per_node=4),
    )
    for stage in estimate.stages:
        total_s = sum(row.total_s for row in estimate.operators if row.stage == stage.index)
        parts_s = stage.forward_s + stage.backward_s + stage.all_reduce_s + stage.update_s
        assert total_s == pytest.approx(parts_s)


def test_plain_values(make_bundle: Make) -> None:
    path = make_bundle(fabric=[FabricFingerprint(backend="gloo", gpus_per_node=2)], largest=50)
    estimate = Estimator.load(path).predict(
        model=ModelConfig(**TINY), parallelism=Parallelism(**ONE | {"pp": 2, "dp": 2})
    )
    values = json.loads(json.dumps(estimate.to_dict(), allow_nan=False))
    assert values["format"] == "kernelcast.estimate/2"
    assert set(values) == {
        "format",
        "step_time_s",
        "interval_s",
        "timeline",
        "bubble_share",
        "tokens_per_s",
        "model_flops",
        "tflops_per_device",
        "grade",
        "mfu",
        "hfu",
        "peak",
        "components",
        "known",
        "energy",
        "step_spread",
        "layer_counts",
        "stages",
        "memory",
        "operators",
        "warnings",
        "warning_groups",
        "model",
        "parallelism",
        "cluster",
        "concurrency",
        "provenance",
    }
    assert values["step_time_s"] == estimate.step_time_s
    assert values["layer_counts"] == [3, 1]
    assert values["stages"][0]["update_s"] == estimate.stages[0].update_s
    first = values["operators"][0]
    assert (first["component"], first["operator"], first["role"]) == ("ends_forward", "embedding", "")
    assert {row["role"] for row in values["operators"] if row["operator"] == "gemm"} == {
        "qkv", "attention_output", "mlp_up", "mlp_down", "logits",
    }  # fmt: skip
    shown = dict(values["warnings"][0])
    assert 0 <= shown.pop("share") <= 1
    assert shown == estimate.warnings[0].to_dict()
    assert values["cluster"] == {"gpus_per_node": 2, "source": "bundle"}
    assert values["model"]["padded_vocabulary_size"] == 128
    assert values["parallelism"]["world_size"] == 4
    assert values["provenance"]["bundle"] == str(path)
    assert values["provenance"]["statistic"] == "quiet"
    assert values["provenance"]["fabric"] == ["gloo, 2 device(s) per node (no links known)"]


def test_devices_per_node(make_bundle: Make) -> None:
    model, layout = ModelConfig(**TINY), Parallelism(**ONE | {"pp": 2, "dp": 2})
    two = FabricFingerprint(backend="gloo", gpus_per_node=2)
    four = FabricFingerprint(backend="nccl", gpus_per_node=4)
    nothing = Estimator.load(make_bundle()).predict(model=model, parallelism=layout)
    assert (nothing.cluster.gpus_per_node, nothing.cluster_source) == (4, "one node")
    measured = Estimator.load(make_bundle(fabric=[two])).predict(model=model, parallelism=layout)
    assert (measured.cluster.gpus_per_node, measured.cluster_source) == (2, "bundle")
    several = Estimator.load(make_bundle(fabric=[two, four]))
    with pytest.raises(UsageError, match=r"^gpus_per_node is not given, and bundle .* on nodes of 2, 4$"):
        several.predict(model=model, parallelism=layout)
    asked = several.predict(model=model, parallelism=layout, cluster=Cluster(gpus_per_node=8))
    assert (asked.cluster.gpus_per_node, asked.cluster_source) == (8, "asked")


def test_a_bundle_without_what_the_model_needs(make_bundle: Make) -> None:
    path = make_bundle(without=("layer_norm",))
    with pytest.raises(DataError) as caught:
        Estimator.load(path).predict(model=ModelConfig(**TINY), parallelism=Parallelism(**ONE))
    assert (
        str(caught.value) == f"bundle {path} has no regressor for layer_norm (forward) (needed by model tiny)"
    )


@pytest.mark.parametrize("interval", [True, False])
@pytest.mark.parametrize("largest", [1e12, 2.0])
def test_a_regressor_that_answers_nonsense_is_named(
    make_bundle: Make, interval: bool, largest: float
) -> None:
    path = make_bundle({("gelu", Direction.FORWARD): -3.0}, largest=largest)
    with pytest.raises(DataError) as caught:
        Estimator.load(path).predict(
            model=ModelConfig(**TINY), parallelism=Parallelism(**ONE), interval=interval
        )
    assert str(caught.value) == (
        f"bundle {path}: gelu (forward) answers -3 (-1.5 to -6) µs for workload [1, 4, 32], "
        "expected a positive time within its interval, at most 100 years (needed by model tiny)"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "gpt-20b"}, "model is 'gpt-20b', expected a ModelConfig"),
        ({"parallelism": ONE}, "parallelism is {'pp': 1, 'tp': 1, 'dp'"),
        ({"cluster": 4}, "cluster is 4, expected a Cluster"),
        ({"bucket_entries": [1]}, "bucket_entries is [1], expected a whole number from 1 to"),
        ({"bucket_entries": True}, "bucket_entries is true, expected a whole number from 1 to"),
        ({"timeline": ["simulate"]}, "timeline is ['simulate'], expected simulate or closed-form"),
        ({"gpu_memory_bytes": 0}, "gpu_memory_bytes is 0, expected a size from 1 byte to 4 TiB"),
    ],
)
def test_wrong_arguments(make_bundle: Make, change: dict[str, Any], message: str) -> None:
    sound: dict[str, Any] = {"model": ModelConfig(**TINY), "parallelism": Parallelism(**ONE)}
    estimator = Estimator.load(make_bundle())
    estimator.predict(**sound, bucket_entries=1)
    with pytest.raises(UsageError) as caught:
        estimator.predict(**sound | change)
    assert str(caught.value).startswith(message)


def test_the_same_question_is_answered_from_memory(make_bundle: Make) -> None:
    estimator = Estimator(read_bundle(make_bundle()), remembered_bytes=1 << 20)
    model, layout = ModelConfig(**TINY), Parallelism(**ONE)
    first = estimator.predict(model=model, parallelism=layout)
    assert estimator.predict(model=ModelConfig(**TINY), parallelism=Parallelism(**ONE)) is first
    assert estimator.predict(model=model, parallelism=layout, interval=False) is not first
    for micro_batches in range(1, 300):
        asked = Parallelism(**ONE | {"micro_batches": micro_batches})
        estimator.predict(model=model, parallelism=asked, interval=False, timeline="closed-form")
    # The cache is bounded: the oldest answer is computed again, and is the same.
    again = estimator.predict(model=model, parallelism=layout)
    assert again is not first
    assert again == first


def test_what_is_remembered_has_no_more_bytes_than_said(make_bundle: Make) -> None:
    bundle, model, most = read_bundle(make_bundle()), ModelConfig(**TINY), 1 << 16
    layouts = [
        Parallelism(**ONE | {"pp": 1 + i % 3, "micro_batch": 1 + i // 6, "zero": i % 2, "dp": 2})
        for i in range(15)
    ]

    def once_bytes(remembered_bytes: int) -> int:
        estimator = Estimator(bundle, remembered_bytes=remembered_bytes)
        estimator.predictor.load()
        gc.collect()
        tracemalloc.start()
        for layout in layouts:
            estimator.predict(model=model, parallelism=layout, interval=False)
        gc.collect()
        found, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return found

    def grown_bytes(remembered_bytes: int) -> int:
        return min(once_bytes(remembered_bytes) for _ in range(2))  # a table that all share may grow in one

    gc.collect()
    gc.freeze()  # what other tests left is not looked through each time
    try:
        once_bytes(most)  # what all estimators share
        apart = grown_bytes(0)
        # Estimates and answers of regressors, each as much; all of them are more.
        assert most / 4 < grown_bytes(most) - apart < 2 * most
        assert grown_bytes(16 * most) - apart > 2 * most
    finally:
        gc.unfreeze()


def test_an_estimate_that_is_remembered_cannot_be_changed(make_bundle: Make) -> None:
    estimate = Estimator.load(make_bundle()).predict(
        model=ModelConfig(**TINY), parallelism=Parallelism(**ONE | {"pp": 2})
    )
    with pytest.raises(AttributeError):
        estimate.step_time_s = 1.0  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        estimate.durations.forward_us[0, 0] = 1.0
    assert not hasattr(estimate.answers, "clear")
    # It does not keep the random draws behind its interval either.
    assert estimate.durations.forward_us.base is None


def test_threads_agree(make_bundle: Make) -> None:
    path = make_bundle()
    model = ModelConfig(**TINY)
    layouts = [
        Parallelism(**ONE | {"pp": 1 + i % 3, "dp": 1 + i % 2, "micro_batches": 1 + i % 8, "zero": i % 4})
        for i in range(96)
    ]
    alone, shared = Estimator.load(path), Estimator.load(path)
    expected = [alone.predict(model=model, parallelism=layout) for layout in layouts]
    # Many threads fill the cache that estimators share at once.
    passes_of.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda layout: shared.predict(model=model, parallelism=layout), layouts))
    assert found == expected


def test_no_file_stays_open(make_bundle: Make) -> None:
    path = make_bundle()
    layout = Parallelism(**ONE | {"pp": 2, "dp": 2})
    Estimator.load(path).predict(model=ModelConfig(**TINY), parallelism=layout)
    # The second of all, so that whatever libraries open once is open already. A link's target names the file.
    before = open_files()
    estimator = Estimator.load(path)
    estimator.predict(model=ModelConfig(**TINY), parallelism=layout)
    path.unlink()
    assert open_files() == before
    again = Parallelism(**ONE | {"pp": 3, "tp": 2, "sequence_parallel": True})
    assert estimator.predict(model=ModelConfig(**TINY), parallelism=again).step_time_s > 0


def open_files() -> list[str]:
    folder = Path("/proc/self/fd")
    # A descriptor of the listing itself is gone when its link is read.
    return sorted(os.readlink(link) for link in folder.iterdir() if link.exists())
