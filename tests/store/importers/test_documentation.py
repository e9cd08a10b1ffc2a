"""docs/importing.md says what is so: its examples are the files of the tests, its tables the operator table."""

import re
from pathlib import Path

import pytest

from kernelcast.runtime.operators import OPERATORS
from kernelcast.store.importers.raw_parameters import needed_symbols
from kernelcast.store.records import ELEMENT_BYTES

DOCS = Path(__file__).resolve().parents[3] / "docs" / "importing.md"


@pytest.mark.parametrize("name", ["times.csv", "times.toml"])
def test_examples_are_the_files_of_the_tests(made: Path, name: str) -> None:
    block = re.search(rf"<!-- {re.escape(name)} -->\n```\w*\n(.*?)```\n", DOCS.read_text(), re.DOTALL)
    assert block is not None
    assert block[1] == (made / name).read_text()


def test_the_table_is_the_operator_table() -> None:
    documented = {}
    for line in DOCS.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and (names := re.findall(r"`(\w+)`", cells[0])) and names[0] in OPERATORS:
            documented |= {name: (tuple(cells[1].split(", ")), set(cells[2].split())) for name in names}
    assert documented == {
        name: (tuple(row.features), set(needed_symbols(name))) for name, row in OPERATORS.items()
    }


def test_every_dtype_is_named() -> None:
    text = DOCS.read_text()
    assert [dtype for dtype in ELEMENT_BYTES if f"`{dtype}`" not in text] == []
