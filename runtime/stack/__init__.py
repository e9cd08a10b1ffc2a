"""Software stacks: what a training framework does to sums of operators, fitted once and carried to any hardware."""

from kernelcast.runtime.stack.stack import NAMES, FittedRuns, LeftOut, Stack
from kernelcast.runtime.stack.stack_file import (
    find_stack,
    read_stack,
    shipped_stacks,
    stack_named,
    stack_toml,
)

__all__ = [
    "NAMES",
    "FittedRuns",
    "LeftOut",
    "Stack",
    "find_stack",
    "read_stack",
    "shipped_stacks",
    "stack_named",
    "stack_toml",
]
