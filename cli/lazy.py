"""Groups of commands that import a command's module only when it is used."""

import gc
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from click.shell_completion import CompletionItem

from kernelcast.cli.terminal import QUIET
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError, alternatives, needs_extra, shown


@dataclass(frozen=True, slots=True)
class Verb:
    """Where a verb lives and which extra it needs. `summary` shows in the help without importing anything."""

    module: str
    attribute: str
    extra: str
    summary: str


_ALLOCATIONS = 10_000
"""Objects made between two collections of garbage. Python collects after 700, up to version 3.13."""


def _imported(name: str) -> ModuleType:
    """A module, imported without garbage collections, which find none in it now and need not look again: a tenth of
    the time that `predict` takes.
    """
    if name in sys.modules or not gc.isenabled():
        return import_module(name)
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.freeze()
        gc.set_threshold(_ALLOCATIONS)
        gc.enable()


class LazyGroup(click.Group):
    """Imports a verb's module only when it is used: `predict` must start fast, and without torch."""

    def __init__(self, *arguments: Any, verbs: Mapping[str, Verb], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb, imported; UsageError names the extra of a package that it lacks."""
        verb = self.verbs.get(cmd_name)
        if verb is None:
            return None
        # As it is typed after `kernelcast`.
        called = cmd_name if ctx.parent is None else f"{self.name} {cmd_name}"
        try:
            with needs_extra(called, verb.extra):
                module = _imported(f"kernelcast.cli.{verb.module}")
        except UsageError:
            if ctx.resilient_parsing:  # a shell that completes: nothing to say
                return None
            raise
        command: click.Command = getattr(module, verb.attribute)
        _finish(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb given; UsageError names the nearest to an unknown one."""
        is_known = not args or args[0].startswith("-") or self.get_command(ctx, args[0]) is not None
        if not is_known and not ctx.resilient_parsing:
            raise UsageError(f"no such command {shown(args[0])}, {alternatives(args[0], self.verbs)}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Verbs from the table, so that completion imports none of them; and the group's own options."""
        found = [
            CompletionItem(name, help=verb.summary)
            for name, verb in self.verbs.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.summary) for name, verb in self.verbs.items()])


class DefaultGroup(LazyGroup):
    """A group whose command `default` also runs where no other is named: its options follow the group's name."""

    def __init__(self, *arguments: Any, default: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default command if none is given."""
        is_named = bool(args) and args[0] in self.verbs
        return super().parse_args(ctx, args if is_named else [self.default, *args])


def _finish(command: click.Command) -> None:
    """Give a command --quiet and show its options' defaults, or so with all commands of a group.

    A group that imports its commands does so itself.
    """
    if isinstance(command, click.Group):
        for one in command.commands.values():
            _finish(one)
    elif QUIET not in command.params:
        for option in command.params:
            if isinstance(option, click.Option) and not option.is_flag:
                option.show_default = (
                    isinstance(option.default, str | int | float | Path) and option.default != ""
                )
        command.params.append(QUIET)
