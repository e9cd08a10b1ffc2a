"""What `compare` says of real training on this machine with one thing changed in it, whose cause is therefore known."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from kernelcast.runtime import Cluster, Estimate, Estimator, Parallelism
from kernelcast.runtime.errors import DataError
from kernelcast.validate.compare.compared_step import ComparedStep, compare_traces
from tests.validate.compare.real_trainings import MODELS, SAMPLES, recorded, usual_times

pytestmark = pytest.mark.slow
Compared = Callable[[str, str], ComparedStep]
FUSED = ("norms not fused", "GELU not fused", "attention not fused")


@pytest.fixture(scope="session")
def compared(
    tmp_path_factory: pytest.TempPathFactory, make_bundle_in: Callable[[Path], Callable[..., Path]]
) -> Iterator[Compared]:
    """Compares a model's training, changed in one thing, with what the times of its operators predict."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    @cache
    def traced(model: str) -> tuple[dict[str, Path], Estimate]:
        config, folder = MODELS[model], tmp_path_factory.mktemp("trainings")
        others = FUSED if model == "GPT" else ()
        traces = recorded(
            folder, config, "prior", "none", "attention 8 times", "data loader", "sync", "batch", *others
        )
        bundle = make_bundle_in(folder)(usual_times(traces["prior"], config))
        layout = Parallelism(pp=1, tp=1, dp=1, micro_batch=SAMPLES, micro_batches=1, zero=0)
        return traces, Estimator.load(bundle).predict(
            model=config, parallelism=layout, cluster=Cluster(gpus_per_node=1)
        )

    def compare(model: str, change: str) -> ComparedStep:
        traces, estimate = traced(model)
        return compare_traces([traces[change]], estimate)

    yield compare
    torch.set_num_threads(threads)


EVERY = pytest.mark.parametrize("model", list(MODELS))


@EVERY
def test_nothing_changed(compared: Compared, model: str) -> None:
    step = compared(model, "none")
    products = [one for one in step.operators if one.operator in ("gemm", "grouped_gemm")]
    assert all(one.is_matched for one in products), (
        "gate and up apart, and experts one by one, are as predicted"
    )
    forward = {one.name: one.launches for one in products if one.pass_ == "forward"}
    assert forward["gemm qkv"] > 1.4 * forward["gemm attention_output"], "queries, keys and values are apart"
    assert not [one for one in step.causes if "ran as" in one.line or "not fused" in one.line]


@EVERY
def test_attention_runs_again(compared: Compared, model: str) -> None:
    # Steps of a busy machine differ, which is true, and not of the attention.
    cause = next(one for one in compared(model, "attention 8 times").causes if one.kind != "uneven")
    assert cause.kind == "attention"
    assert "× the predicted time" in cause.line


@EVERY
def test_a_slow_data_loader(compared: Compared, model: str) -> None:
    cause = next(one for one in compared(model, "data loader").causes if one.kind != "uneven")
    assert cause.kind == "host"
    assert "the data loader takes" in cause.line


@EVERY
def test_a_host_that_waits(compared: Compared, model: str) -> None:
    step = compared(model, "sync")
    cause = next(one for one in step.causes if one.kind != "uneven")
    assert (step.verdict, cause.kind) == ("slow", "host")
    assert "the data loader" not in cause.line


@EVERY
def test_another_batch(compared: Compared, model: str) -> None:
    with pytest.raises(DataError, match="they have 256 tokens, predicted are 1,024: another micro-batch"):
        compared(model, "batch")


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ("attention not fused", "attention", "ran as products with a softmax, predicted is flash_attention"),
        ("norms not fused", "unknown_kernels", "layer_norm"),
        ("GELU not fused", "unknown_kernels", "gelu"),
    ],
)
def test_fusion_is_off(compared: Compared, change: str, kind: str, words: str) -> None:
    cause = next(
        one for one in compared("GPT", change).causes if one.kind in ("attention", "unknown_kernels")
    )
    assert cause.kind == kind
    assert words in cause.line
