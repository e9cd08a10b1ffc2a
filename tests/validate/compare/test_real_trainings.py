"""What `compare` says of real training on this machine with one thing changed in it, whose cause is therefore known.

The prediction is the time of an unchanged training. Verdicts depend on times: their tests are marked
`quiet`, and `make verdicts` runs them on a machine without other work.
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from kernelcast.runtime import Cluster, Estimator, Parallelism
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.stack import Stack
from kernelcast.validate.compare.compared_step import ComparedStep, compare_traces
from tests.validate.compare.real_trainings import MODELS, RESIDUAL, SAMPLES, recorded, usual_times

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
    def traced(model: str) -> tuple[dict[str, Path], Estimator]:
        config, folder = MODELS[model], tmp_path_factory.mktemp("trainings")
        others = FUSED if model == "GPT" else ()
        traces = recorded(
            folder,
            config,
            "prior",
            "none",
            "attention twice",
            "layers run again",
            "data loader",
            "sync",
            "batch",
            *others,
        )
        bundle = make_bundle_in(folder)(usual_times(traces["prior"], config))
        stack = Stack(name="here", software="PyTorch", source="a training like it", residual=RESIDUAL)
        return traces, Estimator.load(bundle, stack=stack)

    def compare(model: str, change: str) -> ComparedStep:
        traces, estimator = traced(model)
        recompute = "full" if change == "layers run again" else "none"
        layout = Parallelism(
            pp=1, tp=1, dp=1, micro_batch=SAMPLES, micro_batches=1, zero=0, recompute=recompute
        )
        estimate = estimator.predict(
            model=MODELS[model], parallelism=layout, cluster=Cluster(gpus_per_node=1)
        )
        return compare_traces([traces[change]], estimate)

    yield compare
    torch.set_num_threads(threads)


EVERY = pytest.mark.parametrize("model", list(MODELS))


@pytest.mark.quiet
# Experts that run one by one gather and scatter their tokens by kernels that no prediction contains: a quarter more.
@pytest.mark.parametrize("change", ["none", "layers run again"])
@pytest.mark.parametrize("model", [one for one in MODELS if one != "experts"])
def test_an_unchanged_step_is_as_predicted(compared: Compared, model: str, change: str) -> None:
    assert compared(model, change).verdict == "as predicted"


@pytest.mark.slow
@pytest.mark.parametrize("change", ["none", "layers run again"])
@EVERY
def test_what_is_predicted_is_found(compared: Compared, model: str, change: str) -> None:
    step = compared(model, change)
    products = [one for one in step.operators if one.operator in ("gemm", "grouped_gemm")]
    assert all(one.is_matched for one in products), (
        "gate and up apart, and experts one by one, are as predicted"
    )
    forward = {one.name: one.launches for one in products if one.pass_ == "forward"}
    assert forward["gemm qkv"] > 1.4 * forward["gemm attention_output"], "queries, keys and values are apart"
    assert not [one for one in step.causes if "ran as" in one.line or "not fused" in one.line]


@pytest.mark.quiet
@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ("attention twice", "attention", "× the predicted time"),
        ("data loader", "host", "the data loader takes"),
        ("sync", "host", "gaps of the host"),
    ],
)
@EVERY
def test_a_slow_step_and_its_cause(
    compared: Compared, model: str, change: str, kind: str, words: str
) -> None:
    step = compared(model, change)
    assert step.verdict == "slow"
    # Steps of a busy machine differ, which is true, and not of the change.
    cause = next(one for one in step.causes if one.kind != "uneven")
    assert cause.kind == kind
    assert words in cause.line
    assert ("the data loader" in cause.line) == (change == "data loader")


@pytest.mark.slow
@EVERY
def test_another_batch(compared: Compared, model: str) -> None:
    with pytest.raises(DataError, match="they have 512 tokens instead of 256: another micro-batch"):
        compared(model, "batch")


@pytest.mark.quiet
@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (
            "attention not fused",
            "attention",
            "ran as products with a softmax, but was predicted as flash_attention",
        ),
        ("norms not fused", "unknown_kernels", "layer_norm"),
        ("GELU not fused", "unknown_kernels", "gelu"),
    ],
)
def test_fusion_is_off(compared: Compared, change: str, kind: str, words: str) -> None:
    step = compared("GPT", change)
    cause = next(one for one in step.causes if one.kind in ("attention", "unknown_kernels"))
    assert cause.kind == kind
    # The others take a twentieth of the step.
    assert step.verdict == "slow" or kind != "attention"
    assert words in cause.line
