"""Traces that other projects published, against a model: none is of its training, and `compare` tells why not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kernelcast.runtime import Cluster, Estimator, ModelConfig, Parallelism
from kernelcast.runtime.errors import DataError
from kernelcast.validate.compare.compared_step import compare_traces

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "data" / "traces"
HTA = "holistic-trace-analysis"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="no ../shared/data/traces next to the checkout"),
]
QWEN = {
    "name": "qwen1.5-0.5b", "hidden_size": 1024, "layers": 24, "attention_heads": 16, "mlp_size": 2816,
    "vocabulary_size": 151_936, "norm": "rms_norm", "activation": "swiglu", "tied_embeddings": True,
}  # fmt: skip
"""The model that one of the traces states; that one answers a chat."""
NO_PRODUCTS = "found 0% of the predicted matrix products, by their shapes"
OF_IMAGES = "found convolutions and batch norms in {} of the compute, as in models of images"


@pytest.mark.parametrize(
    ("names", "tokens", "gpus", "reason"),
    [
        (["tracelens/h100_qwen1.5-0.5b_chat"], 8944, 1, "found no backward pass, as in inference"),
        (["tracelens/h100_qwen1.5-0.5b_chat"], 1024, 1,
         f"found no backward pass, as in inference; {NO_PRODUCTS} (they have 8,944 tokens instead of 1,024: "
         "another micro-batch or sequence length)"),
        (["tracelens/mi210_gpu_only"], 1024, 1, "its traces mark no step on all ranks"),
        (["kineto/worker0.1623143089861.pt.trace"], 1024, 1, f"{NO_PRODUCTS}; {OF_IMAGES.format('84%')}"),
        ([f"{HTA}/rank-0.Apr_03_18_51_38.1102.pt.trace"], 1024, 1, OF_IMAGES.format("83%")),
        ([f"{HTA}/nccl_data"], 1024, 2, OF_IMAGES.format("76%")),
        ([f"{HTA}/nccl_data"], 1024, 1, f"found traces of 2 processes, the layout has 1; {OF_IMAGES.format('76%')}"),
        ([f"{HTA}/test"], 1024, 2, NO_PRODUCTS),
        ([f"{HTA}/control"], 1024, 8, NO_PRODUCTS),
        ([f"{HTA}/sampled_rank-0", f"{HTA}/sampled_rank-1"], 1024, 128, NO_PRODUCTS),
        ([f"{HTA}/rank-34.Jul_15_10_52_41.1074.pt.trace"], 1024, 300, "found no kernel that computes"),
        ([f"{HTA}/triton_example"], 1024, 1, "found no backward pass, as in inference"),
    ],
)  # fmt: skip
def test_a_published_trace_is_refused_with_the_reason(
    make_bundle: Callable[..., Path], names: list[str], tokens: int, gpus: int, reason: str
) -> None:
    layout = Parallelism(pp=1, tp=1, dp=gpus, micro_batch=1, micro_batches=1, zero=0)
    estimate = Estimator.load(make_bundle()).predict(
        model=ModelConfig(sequence_length=tokens, **QWEN), parallelism=layout,
        cluster=Cluster(gpus_per_node=min(gpus, 4)),
    )  # fmt: skip
    with pytest.raises(DataError) as refused:
        compare_traces([FOLDER / f"{name}.json.gz" for name in names], estimate)
    run, _, reasons = str(refused.value).partition(": ")
    assert run.startswith("run ")
    assert reasons.startswith((f"{reason}; expected", f"{reason}, expected"))
