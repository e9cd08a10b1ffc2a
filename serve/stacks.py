"""The software stack of a request: by a name that ships, never a file of this machine."""

from typing import Any

from kernelcast.runtime import Estimator, UsageError
from kernelcast.runtime.errors import shown
from kernelcast.runtime.stack import shipped_stacks, stack_named


def of_stack(estimator: Estimator, values: dict[str, Any]) -> tuple[Estimator, dict[str, Any]]:
    """The estimator for the stack that a request names, and the request's values with what the stack fills in.

    Raises:
        UsageError: no such stack ships.
    """
    asked = values.get("stack")
    if asked is None:
        return estimator, values
    if asked not in shipped_stacks():
        raise UsageError(f"stack is {shown(asked)}, expected one of {', '.join(shipped_stacks())}")
    stack = stack_named(asked)
    return estimator.with_stack(stack), stack.fill(values)
