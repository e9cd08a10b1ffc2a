"""How full the fullest device's experts are, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from kernelcast.runtime import Cluster, ModelConfig, Parallelism, UsageError
from kernelcast.runtime.memory.stages import stage_memory
from kernelcast.runtime.step.chunks import LayerKind
from kernelcast.runtime.step.expert_load import fullest, fullest_in_memory
from kernelcast.runtime.step.layers.experts import experts
from kernelcast.runtime.step.op import computing
from kernelcast.runtime.step.sizes import Sizes

MODEL = ModelConfig(
    name="mixture",
    hidden_size=32,
    sequence_length=16,
    attention_heads=4,
    layers=3,
    vocabulary_size=256,
    mlp_size=40,
    experts=4,
    experts_per_token=2,
    expert_size=20,
    dense_layers=1,
)
LAYOUT = Parallelism(pp=1, tp=1, dp=4, ep=4, micro_batch=3, micro_batches=2)
HISTOGRAM = (300, 100, 100, 300)
# Its mean is 200: 1.5, 0.5, 0.5, 1.5.
TWO_LAYERS = (*HISTOGRAM, 100, 300, 100, 300)


@pytest.mark.parametrize(
    ("load", "ep", "in_time", "in_memory"),
    [
        ({}, 4, 1, 1),
        ({"expert_imbalance": 1.3}, 4, 1.3, 1.3),
        ({"expert_tokens": HISTOGRAM}, 4, 1.5, 1.5),
        # Neighbours share a device: 1.5 and 0.5 on each of two.
        ({"expert_tokens": HISTOGRAM}, 2, 1, 1),
        ({"expert_tokens": HISTOGRAM}, 1, 1, 1),
        ({"expert_tokens": (100, 100, 300, 300)}, 2, 1.5, 1.5),
        # Each layer has devices of 1.5; only the last has that in both.
        ({"expert_tokens": TWO_LAYERS}, 4, 1.5, 1.5),
        # Two devices: 1.5 and 0.5, then 0.5 and 1.5. Time waits for the fullest twice, memory has the mean.
        ({"expert_tokens": (300, 300, 100, 100, 100, 100, 300, 300)}, 2, 1.5, 1),
        # No expert has more than 1.25 · 200: 250, 100, 100, 250.
        ({"expert_tokens": HISTOGRAM, "expert_capacity": 1.25}, 4, 1.25, 1.25),
        ({"expert_tokens": HISTOGRAM, "expert_capacity": 1.25}, 2, 0.875, 0.875),
        ({"expert_imbalance": 1.3, "expert_capacity": 1.1}, 4, 1.1, 1.1),
        ({"expert_imbalance": 1.3, "expert_capacity": 2}, 4, 1.3, 1.3),
        ({"expert_capacity": 0.75}, 4, 0.75, 0.75),
        ({"expert_tokens": HISTOGRAM, "expert_capacity": 1.25, "expert_padding": True}, 2, 1.25, 1.25),
    ],
)
def test_fullest_device(load: dict[str, object], ep: int, in_time: float, in_memory: float) -> None:
    assert fullest(Parallelism.unchecked(**load), 4, ep) == pytest.approx((in_time, in_memory))


def test_many_layouts_have_the_load_of_each() -> None:
    layouts = Parallelism.unchecked(expert_tokens=(100, 100, 300, 300), ep=np.array([4.0, 1.0, 2.0, 4.0]))
    assert fullest_in_memory(layouts, 4).tolist() == [1.5, 1, 1.5, 1.5]


def shapes(**changes: object) -> dict[str, tuple[int, ...]]:
    layout = replace(LAYOUT, **changes)  # type: ignore[arg-type]
    kind = LayerKind(has_experts=True)
    sizes = Sizes(model=MODEL, layout=layout, cluster=Cluster(gpus_per_node=4), kind=kind)
    return {one.operator: one.shape for one in computing(experts(sizes))}


def test_products_and_exchange_have_the_rows_of_the_fullest_device() -> None:
    # 48 tokens of a device go to 2 experts each: 96 rows.
    assert shapes()["grouped_gemm"] == (1, 96, 20, 32)
    full = shapes(expert_tokens=HISTOGRAM)
    assert full["grouped_gemm"] == (1, 144, 20, 32)
    assert full["router"] == (48, 4)
    assert shapes(expert_tokens=HISTOGRAM, expert_capacity=1.25)["grouped_gemm"] == (1, 120, 20, 32)
    # 96 · 1.33 rows are 63.84 for each of two experts; of next to none there is one.
    assert shapes(ep=2, expert_imbalance=1.33)["grouped_gemm"] == (2, 64, 20, 32)
    few = shapes(expert_capacity=0.001)
    assert (few["grouped_gemm"], few["gelu"]) == ((1, 1, 20, 32), (1, 1, 20))


def activations(**changes: object) -> int:
    [stage] = stage_memory(MODEL, replace(LAYOUT, **changes))  # type: ignore[arg-type]
    return stage.activations_bytes


def test_memory_is_that_of_the_fullest_device() -> None:
    assert activations(expert_tokens=HISTOGRAM) == activations(expert_imbalance=1.5)
    # Every layer's fullest device is another one, and each has the mean of both layers.
    turned = (300, 300, 100, 100, 100, 100, 300, 300)
    assert activations(expert_tokens=turned, ep=2) == activations(ep=2)
    assert activations(expert_capacity=1.5, expert_padding=True) == activations(expert_imbalance=1.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"expert_tokens": (1, 2, 3)},
            "3 numbers, expected 4, the experts of model mixture, or 8, for all of its 2 layers with experts",
        ),
        ({"expert_tokens": (1, 2, 3, 4, 0, 0, 0, 0)}, "expert_tokens of layer 1 are all 0"),
    ],
)
def test_tokens_of_other_models_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(LAYOUT, **changes).check(MODEL)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expert_tokens": HISTOGRAM, "expert_imbalance": 1.3}, "expert_imbalance is 1.3, expected 1 with"),
        ({"expert_padding": True}, "expert_padding is true, expected false without expert_capacity"),
        ({"expert_capacity": -1.0}, "expert_capacity is -1.0, expected a number from 0 to 1000"),
        ({"expert_tokens": (1, -2)}, "expert_tokens is .*, expected whole numbers, one per expert"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(LAYOUT, **changes)  # type: ignore[arg-type]


def test_a_model_without_experts_has_no_capacity() -> None:
    dense = replace(MODEL, experts=0, experts_per_token=0, expert_size=0, dense_layers=0)
    with pytest.raises(
        UsageError, match=r"expert_capacity is 1\.5, expected 0\.0: model mixture has no experts"
    ):
        replace(LAYOUT, ep=1, expert_capacity=1.5).check(dense)
