"""Who answers a request: its hardware and its software stack, by names that ship, never a file of this machine."""

from typing import Any

from kernelcast.runtime import Estimator, UsageError
from kernelcast.runtime.request.models import FoundModel
from kernelcast.runtime.stack import shipped_stacks, stack_named
from kernelcast.serve.bodies import require_field
from kernelcast.serve.models import find_model
from kernelcast.serve.warm import Warm


def model_of(warm: Warm, values: dict[str, Any]) -> FoundModel:
    """The model that a request names or describes, with its length of a sequence.

    Raises:
        UsageError: it is missing, unknown or wrong.
    """
    return find_model(
        require_field(values, "model"), warm.models, sequence_length=values.get("sequence_length")
    )


def of_request(warm: Warm, values: dict[str, Any]) -> tuple[Estimator, dict[str, Any]]:
    """The estimator for the hardware and stack that a request names, and its other values with what the stack fills in.

    Raises:
        UsageError: no such hardware or stack ships.
    """
    estimator = warm.estimator_of(values.get("hardware"))
    values = {name: value for name, value in values.items() if name != "hardware"}
    asked = values.get("stack")
    if asked is None:
        return estimator, values
    if asked not in shipped_stacks():
        raise UsageError(field="stack", found=asked, expected=f"one of {', '.join(shipped_stacks())}")
    stack = stack_named(asked)
    return estimator.with_stack(stack), stack.fill(values)
