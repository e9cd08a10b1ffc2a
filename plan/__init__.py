"""From a step to a run on the calendar: failures, checkpoints, restarts, queues, price and energy.

Whole runs are planned by the fields of a prediction and of a plan (docs/runs.md):

>>> from kernelcast.plan import plan
>>> from kernelcast.runtime import Estimator
>>> found = plan(Estimator.load("h100-sxm"), "llama-3-8b", gpus=64, global_batch=512, tokens="1T", failure_rate=0)
>>> found.expected.failures, round(found.expected.goodput, 2)
(0.0, 1.0)
"""

from kernelcast.plan.answer import Plan
from kernelcast.plan.failures import FailureRate, rate_of, stated_rate
from kernelcast.plan.planning import plan, plan_of, read_plan
from kernelcast.plan.run import Expected, Run, expected
from kernelcast.plan.simulation import Simulated, simulate

__all__ = [
    "Expected", "FailureRate", "Plan", "Run", "Simulated",
    "expected", "plan", "plan_of", "rate_of", "read_plan", "simulate", "stated_rate",
]  # fmt: skip
