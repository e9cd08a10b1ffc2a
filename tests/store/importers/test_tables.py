"""Cells, tables and skipped rows: limits, and what stands in a message."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from kernelcast.runtime.errors import DataError
from kernelcast.store.importers.tables import (
    Cells,
    CsvTable,
    Malformed,
    ParquetTable,
    Skipped,
    positive,
    read_text_file,
    whole,
)


@given(st.integers(-5, 2**53 + 5))
def test_whole_numbers_are_those_that_doubles_hold(number: int) -> None:
    for text in (str(number), f"{number}.0", f"{number}.5"):
        if 1 <= number <= 2**53 and float(text) == number:
            assert whole(text, "n") == number
        elif float(text) != 2**53:  # its odd neighbours are read as itself
            with pytest.raises(Malformed, match="n: found "):
                whole(text, "n")


@pytest.mark.parametrize("number", [1, 2**53])
def test_the_ends_of_whole_numbers(number: int) -> None:
    assert whole(str(number), "n") == number
    for beyond in (0, 2**53 + 2):
        with pytest.raises(Malformed):
            whole(str(beyond), "n")


def test_positive_numbers() -> None:
    assert positive("1e-300", "t") == 1e-300
    for text in ("0", "-0.5", "inf", "nan", "x", ""):
        with pytest.raises(Malformed, match=f"t: found '{text}', expected a number above 0"):
            positive(text, "t")


def test_messages_are_one_line_of_at_most_200_characters() -> None:
    skipped = Skipped(strict=False)
    for length in (200, 201):
        skipped.malformed(Path("a"), 7, "x\n" + (length - 2) * "y")
    kept, cut = skipped.problems
    assert str(kept) == "a:7: x " + 198 * "y"
    assert str(cut) == "a:7: x " + 197 * "y" + "…"


def test_rows_of_a_csv_have_the_line_they_begin_on(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('# head\na, b \n1,"2\n3"\n\n , \n4,\n5\n"6"x,7\n8,9\n')
    skipped = Skipped(strict=False)
    table = CsvTable.of(read_text_file(path), first_line=2)
    assert table.columns == ("a", "b")
    assert [(row.line, row.cells) for row in table.rows(skipped)] == [
        (3, {"a": "1", "b": "2\n3"}),
        (7, {"a": "4"}),
        (10, {"a": "8", "b": "9"}),
    ]
    assert [(one.line, one.text[:27]) for one in skipped.problems] == [
        (8, "found 1 cells, expected 2 c"),
        (9, "',' expected after '\"'"),
    ]


def test_the_first_of_several_columns_is_named() -> None:
    table = CsvTable(path=Path("a"), digest="", columns=("a", "b", "b", "a"), text="", line=1)
    with pytest.raises(DataError, match="a: is not a list: no column 'c'; found 'a, b, b, a'"):
        table.require(("a", "c", "d"), "a list")
    with pytest.raises(DataError, match="a: is not a list: two columns are called 'a'"):
        table.require(("a", "b"), "a list")


def test_a_parquet_file_has_at_most_two_million_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    for rows in (2_000_000, 2_000_001):
        parquet.write_table(pa.table({"a": pa.nulls(rows)}), path)
        if rows == 2_000_000:
            assert ParquetTable.read(path).columns == ("a",)
        else:
            with pytest.raises(DataError, match="has 2,000,001 rows, the limit for one file is 2,000,000"):
                ParquetTable.read(path)


def test_a_parquet_file_that_is_damaged_inside(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"a": ["text"] * 9}), path, compression="zstd", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[4:40] = bytes(36)  # the head of the only page
    path.write_bytes(content)
    with pytest.raises(DataError, match="row 1 cannot be read"):
        list(ParquetTable.read(path).rows(Skipped(strict=False)))


def test_empty_cells_and_columns_that_are_not_there() -> None:
    cells = Cells(line=1, cells={"m": "6", "of": "4"}, columns=("m", "of", "n"))
    for name, message in (("n", "n is empty"), ("k", "no column 'k'")):
        with pytest.raises(Malformed, match=message):
            cells.text(name)
    with pytest.raises(Malformed, match="m: found 6, expected a multiple of of 4"):
        cells.multiple("m", "of")
