"""The operators of a training step: one table of kernel laws that collector, train and runtime share.

Standard library only. A row says what an operator is called, which features make up its workload vector, how many
FLOPs and elements moved a workload costs, and in which roles steps call it (the paper's Table I is a table of roles).
What is measured, fitted and predicted therefore cannot drift apart. CONTRIBUTING.md says how to add a row.
"""

from collections.abc import Mapping
from types import MappingProxyType

from kernelcast.runtime.errors import unknown
from kernelcast.runtime.operators import attention, collective, elementwise, gemm, optimizer
from kernelcast.runtime.operators.operator import (
    Cost,
    Direction,
    Key,
    Operator,
    OperatorClass,
    Role,
    Substitute,
    Term,
    Vector,
)

__all__ = [
    "OPERATORS",
    "Cost",
    "Direction",
    "Key",
    "Operator",
    "OperatorClass",
    "Role",
    "Substitute",
    "Term",
    "Vector",
    "operator",
    "role_name",
]

OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        value.name: value
        for module in (elementwise, gemm, attention, collective, optimizer)
        for value in vars(module).values()
        if isinstance(value, Operator)
    }
)
"""Every operator by name."""


def operator(name: str) -> Operator:
    """Look an operator up by name; UsageError where no operator has that name."""
    try:
        return OPERATORS[name]
    except KeyError:
        raise unknown("operator", name, OPERATORS) from None


def role_name(name: str, role: str) -> str:
    """An operator in a role, as tables print it: the paper's name, else `operator (role)`.

    >>> role_name("gemm", "qkv"), role_name("bias_add", ""), role_name("gemm", "router")
    ('Linear1', 'bias_add', 'gemm (router)')
    """
    row = OPERATORS.get(name)
    found = row.roles.get(role) if row is not None else None
    if found is not None and found.paper_name:
        return found.paper_name
    return f"{name} ({role})" if role else name
