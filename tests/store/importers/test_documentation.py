"""docs/importing.md says what is so: its examples are the files of the tests, its tables the operator table."""

import re
from pathlib import Path

import pytest

from kernelcast.runtime.hardware.devices import ELEMENT_BYTES
from kernelcast.runtime.operators import OPERATORS
from kernelcast.store.importers.raw_parameters import needed_symbols

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
        if len(cells) == 4 and (names := re.findall(r"`(\w+)`", cells[0])) and names[0] in OPERATORS:
            roles = re.findall(r"`(\w+)`", cells[1]) or [""]
            stated = (tuple(cells[2].split(", ")), set(cells[3].split()))
            documented |= {(name, role): stated for name in names for role in roles}
    assert documented == {
        (name, role): (tuple(row.features), set(needed_symbols(name, role)))
        for name, row in OPERATORS.items()
        for role in row.roles
    }


def test_every_dtype_is_named() -> None:
    text = DOCS.read_text()
    assert [dtype for dtype in ELEMENT_BYTES if f"`{dtype}`" not in text] == []
