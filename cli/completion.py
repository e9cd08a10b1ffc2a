"""Shell completion: names of models, hardware, fabrics, stacks, operators and roles, else paths.

Each function takes the text typed so far. Nothing is imported beyond the imports of the commands.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

import click
from click.shell_completion import CompletionItem

from kernelcast.runtime.answers.fabric_choice import measured_fabric_names
from kernelcast.runtime.catalogue import all_hardware
from kernelcast.runtime.hardware.fabric import shipped_fabrics
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.request.models import built_in_names

Complete: TypeAlias = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def names_or_files(known: Callable[[], Iterable[str]]) -> Complete:
    """Names that start with the typed text, ignoring case; paths if none does."""

    def complete(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        found = [CompletionItem(name) for name in known() if name.startswith(begun.lower())]
        return found or [CompletionItem(begun, type="file")]

    return complete


def names(known: Callable[[], Iterable[str]]) -> Complete:
    """Names only; after a comma, the next name of a list."""

    def complete(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        before, comma, last = begun.rpartition(",")
        return [
            CompletionItem(before + comma + name)
            for name in known()
            if name.startswith(last) and name not in before.split(",")
        ]

    return complete


def _stacks() -> Iterable[str]:
    from kernelcast.runtime.stack import shipped_stacks

    return shipped_stacks()


hardware_names = names(all_hardware)
model_names = names_or_files(built_in_names)
fabric_names = names_or_files(lambda: (*shipped_fabrics(), *measured_fabric_names()))
stack_names = names_or_files(_stacks)
hardware_or_bundle = names_or_files(all_hardware)
operator_names = names(lambda: OPERATORS)
role_names = names(
    lambda: dict.fromkeys(
        ["memory", *OPERATORS, *(role for row in OPERATORS.values() for role in row.roles if role)]
    )
)

OF_FIELD = {
    "hardware": hardware_names,
    "model": model_names,
    "fabric": fabric_names,
    "stack": stack_names,
}
"""By the name of a request field; choices complete from their kind."""
