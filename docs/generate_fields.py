"""Write docs/fields.md: the fields of a request, from the table that everything reads them by (`make docs`)."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kernelcast.docs.markdown import table
from kernelcast.plan.fields import PLAN
from kernelcast.runtime.request.field_types import Field
from kernelcast.runtime.request.fields import (
    LAYOUT,
    MEMORY,
    OPTIONS,
    SEARCH,
    SEQUENCE_LENGTH,
    WISHES,
)
from kernelcast.runtime.search.read_question import LIMITS, USUAL, few_values

PAGE = Path(__file__).resolve().parent / "fields.md"

_BEGIN = """\
# Fields of a request

One table, `runtime/request/fields.py`, gives command-line options, TOML files, `#KERNELCAST` lines, JSON bodies and
their OpenAPI, arguments in Python and columns of a search; this page is written from it by `make docs`. An option is
the field's name with `--` and hyphens. Fields of a model are in [models.md](models.md).

"""


_SECTIONS: tuple[tuple[str, str, Mapping[str, Field]], ...] = (
    (
        "Layout",
        "How a step is cut over devices. The product of the degrees is the number of devices.",
        {name: field for name, field in LAYOUT.items() if not field.of_stack},
    ),
    (
        "Training software",
        "What a framework does, the same for all layouts of a search.",
        {name: field for name, field in LAYOUT.items() if field.of_stack},
    ),
    ("Options", "", {"sequence_length": SEQUENCE_LENGTH, **OPTIONS}),
    ("Memory", "On the command line with a unit: `--gpu-memory 80GB`, `--reserved-memory 3GiB`.", MEMORY),
    (
        "Without a layout",
        "What is searched where not all of a layout is given ([asking.md](asking.md)).",
        WISHES,
    ),
    (
        "Plan",
        "A whole run ([runs.md](runs.md)). Times are seconds, or texts such as `10m`; rates `2GB/s`.",
        {name: field for name, field in PLAN.items() if name not in WISHES},
    ),
    ("Search", "`kernelcast search` takes limits of a layout's fields too: a list or ranges.", SEARCH),
)


def page() -> str:
    """The whole page."""
    return f"{_BEGIN}{''.join(_section(*one) for one in _SECTIONS)}{_limits()}"


def _section(title: str, text: str, fields: Mapping[str, Field]) -> str:
    lead = f"{text}\n\n" if text else ""
    return f"## {title}\n\n{lead}{_table(('field', 'accepted', 'not given', 'meaning'), map(_row, fields.values()))}\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"{line}\n" for line in table(heads, list(rows), is_padded=False))


def _row(field: Field) -> tuple[str, ...]:
    default = field.otherwise or ("needed" if field.default is None else f"`{_plain(field.default)}`")
    old = f" Formerly {', '.join(f'`{name}`' for name in field.old)}." if field.old else ""
    return f"`{field.name}`", field.kind.expected, default, field.help + old


def _plain(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def _limits() -> str:
    rows = (
        (f"`{name}`", USUAL.get(name) or ",".join(map(str, few_values(field))).lower() or "any")
        for name, field in LIMITS.items()
    )
    return _table(("limit of a search", "not given"), rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
