"""A training framework: its name, its table, and the text that its settings are written in."""

from collections.abc import Callable

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.frameworks.rows import Row, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """`name` as on the command line, `title` as people write it.

    Rows are written and read in their order: a row may rely on the fields of earlier rows. `parse` reads settings from
    a text and `render` writes them; `is_form_of` tells whether a text has the framework's form.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    parse: Callable[[str], Settings]
    render: Callable[[Settings], str]
    is_form_of: Callable[[str], bool]

    @property
    def keys(self) -> frozenset[str]:
        """Keys of all rows."""
        return frozenset(key for row in self.rows for key in row.keys)
