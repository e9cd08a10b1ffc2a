"""The database or the traces that the explorer was started with, as pages beside the explorer's own."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from starlette.routing import Route


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Pages of what was given: their routes, and their titles by path."""

    routes: Sequence[Route] = ()
    pages: Mapping[str, str] = field(default_factory=dict)

    @property
    def first(self) -> str:
        """The path to begin with."""
        return next(iter(self.pages), "/")


def open_material(paths: Sequence[Path], stack: ExitStack) -> Material:
    """Open what was given; `stack` closes it."""
    return Material()
