"""Published steps by framework, asked as `compare --framework` asks: most are normal, and slow when slowed by 1.4.

`pytest -s` on this file prints the table. In every interval the steps of their own publisher have no part.
"""

from pathlib import Path

import pytest

from kernelcast.runtime import Estimator
from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.frameworks.software import framework_named
from kernelcast.runtime.request.fields import LAYOUT
from kernelcast.validate.compare.compared_step import compare_stated
from kernelcast.validate.runs import RunsFile

RUNS = Path(__file__).resolve().parents[3] / "validate"
SLOWED, LEAST_SHARE = 1.4, 0.9
BRIDGE = tuple(f"megatron-bridge-{device}" for device in ("h100", "b200", "b300", "gb200", "gb300"))


@pytest.mark.parametrize(
    ("framework", "files", "steps"),
    [
        ("torchtitan", ("torchtitan-h100", "torchtitan-h200"), 26),
        ("llm-foundry", ("llm-foundry-a100-40gb", "llm-foundry-a100-80gb"), 98),
        ("nemo", (*BRIDGE, "mlperf-h100"), 159),
        ("megatron-lm", ("simumax-b200",), 12),
    ],
)
def test_published_steps_are_normal_and_slowed_ones_slow(
    framework: str, files: tuple[str, ...], steps: int
) -> None:
    verdicts = []
    for name in files:
        file = RunsFile.read(RUNS / f"{name}.toml")
        stack = framework_named(framework).stack_on((file.device,))
        assert stack is not None
        estimator = Estimator.load(file.device).with_stack(stack).leaving_out(file.publisher)
        for run in file.runs:
            if run.flag:
                continue
            usual = {
                field: value
                for field, value in stack.fill({}).items()
                if getattr(run.parallelism, field) == LAYOUT[field].default
            }
            estimate = estimator.predict(
                model=run.model,
                parallelism=replace(run.parallelism, **usual),
                cluster=run.cluster,
                fabric=file.fabric or None,
            )
            times = (run.measured_s, SLOWED * run.measured_s)
            verdicts.append([compare_stated(estimate, step_s=step_s).verdict for step_s in times])
    are_normal = sum(one == "as predicted" for one, _ in verdicts) / len(verdicts)
    are_slow = sum(two == "slow" for _, two in verdicts) / len(verdicts)
    print(
        f"{framework:12} {len(verdicts):3} steps: {are_normal:.0%} normal, slowed by {SLOWED} {are_slow:.0%} slow"
    )
    assert len(verdicts) == steps
    assert are_normal >= LEAST_SHARE
    assert are_slow >= LEAST_SHARE
