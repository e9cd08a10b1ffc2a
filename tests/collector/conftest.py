"""What the collector's tests measure with: one thread, tiny shapes, hand-written traces."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernelcast.collector.benches import Place, Point
from kernelcast.collector.measuring.harness import Effort
from kernelcast.collector.plans.plan_file import load_plan
from kernelcast.collector.plans.plan_ranges import Plan
from kernelcast.collector.plans.workloads import workloads
from kernelcast.runtime import ModelConfig

DATA = Path(__file__).parent.parent / "data"


@pytest.fixture(autouse=True)
def one_thread(small_caches: None) -> Iterator[None]:
    """Measurements here share few cores with other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(20)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def traces() -> Path:
    """The folder of hand-written traces."""
    return DATA / "traces"


@pytest.fixture
def plan_file() -> Path:
    """A plan that takes seconds."""
    return DATA / "plans" / "tiny.toml"


@pytest.fixture
def plan(plan_file: Path) -> Plan:
    return load_plan(str(plan_file))


@pytest.fixture
def cpu() -> Place:
    return Place(torch.device("cpu"), torch.float32)


@pytest.fixture
def asked(plan: Plan) -> Callable[..., Point]:
    """A point of an operator and a role; every size is another number, so that a mix-up shows; tp is 2."""
    sizes = {
        "tensor_parallel": 2, "micro_batch": 3, "sequence_length": 10, "hidden_size": 48, "attention_heads": 6,
        "mlp_ratio": 2.5, "vocabulary_size": 200, "layers": 2, "queries_per_kv_head": 1,
        "experts": 5, "experts_per_token": 3, "expert_ratio": 1.5, "kv_rank": 22, "sliding_window": 7,
        "context_parallel": 5,
    }  # fmt: skip
    today = ("experts", "experts_per_token", "expert_ratio", "kv_rank", "sliding_window", "context_parallel")
    ranges = replace(plan.ranges, **{name: (sizes[name],) for name in today})  # type: ignore[arg-type]

    def point(operator: str, role: str = "", **changes: float) -> Point:
        column = operator, role
        vectors = workloads(replace(plan, most_tokens=100, ranges=ranges), sizes | changes, [column])[column]
        return Point(operator=operator, role=role, vector=vectors[0])

    return point


@pytest.fixture
def quick() -> Effort:
    """Ten repetitions, hardly any warm-up."""
    return Effort(
        warm_up_iterations=1,
        most_blocks=1,
        most_in_block=10,
        settle_seconds=0.01,
        block_settle_seconds=0.01,
    )


@pytest.fixture
def model() -> ModelConfig:
    return ModelConfig(
        name="tiny",
        hidden_size=32,
        sequence_length=16,
        attention_heads=4,
        layers=3,
        vocabulary_size=100,
    )
