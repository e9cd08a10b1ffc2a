"""Published errors of other regressors, to compare with the errors of a training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kernelcast.runtime.bundle.regressor_entry import Layout, RegressorEntry
from kernelcast.store.importers import PublishedError, read_published_errors

_EVERY_LAYOUT = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The published errors of a folder of the method's authors, fractions on 20 % of their rows.

    They are read from the folder and not stored in the database, which holds measurements.
    """

    directory: Path
    errors: tuple[PublishedError, ...]

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read a site's folder of `estimate-train-time`; DataError without a list of regressors in it."""
        return cls(directory=directory, errors=read_published_errors(directory))

    def error_of(self, entry: RegressorEntry, role: str, rows_of: Mapping[Layout, int]) -> float | None:
        """Their error for a regressor in a role; None if not published.

        For a collective: the error of their regressor over all layouts; without one, the mean over single layouts
        weighted by `rows_of` (rows per layout of this training), if they published an error for each.
        """
        published = self._published(entry, role)
        if not rows_of:
            return next((e.validation_error for e in published if e.nodes is None), None)
        by_layout = _by_layout(published)
        if _EVERY_LAYOUT in by_layout:
            return by_layout[_EVERY_LAYOUT]
        if not all(layout in by_layout for layout in rows_of):
            return None
        return sum(by_layout[layout] * rows for layout, rows in rows_of.items()) / sum(rows_of.values())

    def error_of_layout(self, entry: RegressorEntry, role: str, layout: Layout) -> float | None:
        """Their error for one layout of a collective in a role; None if not published."""
        return _by_layout(self._published(entry, role)).get(layout)

    def _published(self, entry: RegressorEntry, role: str) -> Sequence[PublishedError]:
        wanted = (entry.operator, role, entry.direction, entry.dtype)
        return [e for e in self.errors if (e.operator, e.role, e.direction, e.dtype) == wanted]


def _by_layout(published: Sequence[PublishedError]) -> dict[Layout, float]:
    return {
        (e.nodes, e.gpus_per_node): e.validation_error
        for e in published
        if e.nodes is not None and e.gpus_per_node is not None
    }
