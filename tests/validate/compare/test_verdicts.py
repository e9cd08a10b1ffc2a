"""Published steps by framework, asked as `compare --framework` asks: most are normal, and slow when slowed by 1.4.

`pytest -s` on this file prints the table. In every interval the steps of their own publisher have no part.
"""

from pathlib import Path

from kernelcast.runtime import Estimator
from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.frameworks.software import framework_named
from kernelcast.runtime.request.fields import LAYOUT
from kernelcast.validate.compare.compared_step import compare_stated
from kernelcast.validate.runs import RunsFile

RUNS = Path(__file__).resolve().parents[3] / "validate"
SLOWED, LEAST_SHARE = 1.4, 0.9
BRIDGE = tuple(f"megatron-bridge-{device}" for device in ("h100", "b200", "b300", "gb200", "gb300"))


# Frameworks, files, their steps, and how many are normal: none of them may become abnormal.
TABLE = [
    ("torchtitan", ("torchtitan-h100", "torchtitan-h200"), 26, 23),
    ("llm-foundry", ("llm-foundry-a100-40gb", "llm-foundry-a100-80gb"), 98, 95),
    ("nemo", (*BRIDGE, "mlperf-h100"), 159, 147),
    ("megatron-lm", ("simumax-b200",), 12, 12),
]


def test_published_steps_are_normal_and_slowed_ones_slow() -> None:
    every = []
    for framework, files, steps, normal in TABLE:
        found = [one for name in files for one in verdicts(framework, name)]
        are_normal, are_slow = sum(one for one, _ in found), sum(one for _, one in found)
        print(f"{framework:12} {len(found):3} steps: {are_normal} normal, slowed by {SLOWED} {are_slow} slow")
        assert len(found) == steps
        assert are_normal >= normal
        assert are_slow >= LEAST_SHARE * steps
        every += found
    assert sum(one for one, _ in every) >= LEAST_SHARE * len(every)


def verdicts(framework: str, name: str) -> list[tuple[bool, bool]]:
    """Of each step of a runs file: whether it is normal, and whether it is slow when slowed."""
    file = RunsFile.read(RUNS / f"{name}.toml")
    stack = framework_named(framework).stack_on((file.device,))
    assert stack is not None
    estimator = Estimator.load(file.device).with_stack(stack).leaving_out(file.publisher)
    found = []
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
        first, second = (
            compare_stated(estimate, step_s=step_s).verdict
            for step_s in (run.measured_s, SLOWED * run.measured_s)
        )
        found.append((first == "as predicted", second == "slow"))
    return found
