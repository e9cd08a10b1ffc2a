"""The training framework of a question: its defaults, the stack that ships for it, the layouts that it can express."""

import tomllib
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.errors import UsageError, unknown
from kernelcast.runtime.request.field_types import NumberSet
from kernelcast.runtime.request.fields import DEGREES, EXPERT_DEGREES, LAYOUT, SEARCHED
from kernelcast.runtime.stack import Stack, find_stack, stack_named

_FIXED = (*DEGREES, *EXPERT_DEGREES)
_CLOSED_FORM = "closed-form"


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """A row of software.toml, which explains the fields; `stack` is None if no stack ships for it."""

    name: str
    title: str
    stack: str | None = None
    defaults: Mapping[str, Any]
    layouts: Mapping[str, tuple[Any, ...]]
    refused: tuple[Mapping[str, NumberSet], ...] = ()
    kernel_on: tuple[str, ...] = ()

    def stack_on(self, hardware: Collection[str]) -> Stack | None:
        """The stack for some hardware by name; its attention kernel only where it is another than the measured one."""
        if self.stack is None:
            return None
        stack = stack_named(self.stack)
        if not self.kernel_on or all(name.startswith(self.kernel_on) for name in hardware):
            return stack
        options = {name: value for name, value in stack.options.items() if name != "attention_kernel"}
        return replace(stack, options=options)

    def runs(self, layout: Mapping[str, Any]) -> bool:
        """Whether the framework runs a layout, by field name, as it is."""
        try:
            return not self.as_run(layout)[1]
        except UsageError:
            return False

    def as_run(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The layout that the framework would run, and what differs, in words; UsageError for an impossible one."""
        found, notes = dict(values), []
        for name, allowed in self.layouts.items():
            value = found.get(name)
            if value is None or value in allowed:
                continue
            if name in _FIXED:
                expected = f"{allowed[0]} with {self.title}"
                raise UsageError(field=name, found=value, expected=expected)
            larger = [one for one in allowed if isinstance(one, int) and one > value]
            found[name] = min(larger) if larger else allowed[0]
            if name == "schedule":
                found["virtual_stages"] = 1
            runs, asked = (str(one).lower() if isinstance(one, bool) else one for one in (found[name], value))
            notes.append(f"{name} {runs} instead of {asked}")
        for together in self.refused:
            given = {name: found.get(name, LAYOUT[name].default) for name in together}
            if all(given[name] in numbers for name, numbers in together.items()):
                words = " with ".join(f"{name} {value}" for name, value in given.items())
                raise UsageError(
                    f"{words} is given, which {self.title} does not run", field=next(iter(given))
                )
        return found, tuple(f"{self.title} runs {note}" for note in notes)


class Chosen(NamedTuple):
    """The values of a question with what its software does, the stack, and what differs from the question."""

    values: dict[str, Any]
    stack: Stack | None
    notes: tuple[str, ...] = ()


@cache
def frameworks() -> Mapping[str, Software]:
    """Every framework by name."""
    table = tomllib.loads(Path(__file__).with_name("software.toml").read_text(encoding="utf-8"))
    return {name: _software(name, **row) for name, row in table.items()}


def framework_named(name: str) -> Software:
    """The framework of this name; else UsageError."""
    found = frameworks().get(name)
    if found is None:
        raise unknown("framework", name, tuple(frameworks()))
    return found


def choose_software(
    values: Mapping[str, Any], *, hardware: Collection[str], is_open: bool = False, file: str | None = None
) -> Chosen:
    """The software of a question by its fields `framework` and `stack`. A framework brings its stack to operators of
    `hardware` that ships, unless another one is given. `is_open`: a search chooses the rest within its layouts.
    UsageError or DataError where there is no such framework or stack, or it cannot run the layout.
    """
    given = dict(values)
    asked, name = given.pop("stack", None), given.get("framework")
    software = None if name is None else framework_named(name)
    stack = None if asked is None else find_stack(asked)
    if stack is None and software is not None and hardware and given.get("timeline") != _CLOSED_FORM:
        stack = software.stack_on(hardware)
    given = given if stack is None else stack.fill(given)
    notes: tuple[str, ...] = ()
    if software is not None and name != file:
        left_out = SEARCHED if is_open else () if given.get("tp", 1) > 1 else ("sequence_parallel",)
        given = {key: value for key, value in software.defaults.items() if key not in left_out} | given
    if software is not None and not is_open:
        given, notes = software.as_run(given)
    return Chosen(given, stack, notes)


def stacks_that_run(layout: Mapping[str, Any], hardware: Collection[str]) -> Iterator[tuple[str, Stack]]:
    """Frameworks by name that run a layout, by field name, as it is, with their stacks."""
    for software in frameworks().values():
        stack = software.stack_on(hardware)
        if stack is not None and software.runs(layout):
            yield software.name, stack


def _software(
    name: str,
    *,
    layouts: Mapping[str, list[Any]],
    refused: Collection[Mapping[str, str]] = (),
    kernel_on: Collection[str] = (),
    **row: Any,
) -> Software:
    return Software(
        name=name,
        layouts={field: tuple(allowed) for field, allowed in layouts.items()},
        refused=tuple({field: NumberSet.parse(text) for field, text in one.items()} for one in refused),
        kernel_on=tuple(kernel_on),
        **row,
    )
