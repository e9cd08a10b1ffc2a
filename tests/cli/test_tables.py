"""Plain-text tables: numbers flush right, words and ranges flush left; what gives way where they are too wide."""

from collections import Counter
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from kernelcast.cli.tables import table_lines, text_table


def test_numbers_are_flush_right() -> None:
    table = text_table(
        ("name", "rows", "error"), [("a", "1,234", "–"), ("long", "5", "12.5 %"), ("b", "-", "3 %")]
    )
    assert table.splitlines() == [
        "name   rows   error",
        "----  -----  ------",
        "a     1,234       –",
        "long      5  12.5 %",
        "b         -     3 %",
    ]


def test_ranges_and_products_are_read_from_the_left() -> None:
    table = text_table(("range", "layout"), [("4–8 × 1024–5120", "1 × 4"), ("16", "16 × 4")], indent="  ")
    assert table.splitlines()[2:] == ["  4–8 × 1024–5120  1 × 4", "  16               16 × 4"]


def test_words_that_begin_with_a_digit_are_read_from_the_left() -> None:
    table = text_table(
        ("schedule", "date", "stage"), [("1f1b", "2026-01-02T00:00", "0-2"), ("zero_bubble", "1", "3")]
    )
    assert table.splitlines()[2:] == [
        "1f1b         2026-01-02T00:00  0-2",
        "zero_bubble  1                 3",
    ]


def test_lines_end_without_blanks() -> None:
    assert text_table(("a", "word"), [("1", "x")]).splitlines() == ["a  word", "-  ----", "1  x"]


def test_rules_below_the_heads_and_a_table_without_rows() -> None:
    assert text_table(("name", "time"), [("a", "1 s"), ("long name", "12 ms")]) == (
        "name        time\n---------  -----\na            1 s\nlong name  12 ms"
    )
    assert text_table(("a", "b"), []) == "a  b\n-  -"


def test_a_long_table_comes_as_its_rows_come() -> None:
    read = 0

    def rows() -> Iterator[list[str]]:
        nonlocal read
        for number in range(5_000):
            read += 1
            yield [str(number)]

    lines = table_lines(["number"], rows(), width=100)
    assert [next(lines) for _ in range(3)] == ["number", "------", "     0"]
    assert read == 1_000
    assert list(lines)[-1] == "  4999"


def test_heads_are_broken_first_and_stand_on_the_rule() -> None:
    table = text_table(("a", "tokens per device"), [("x", "1,234")], width=12)
    assert table.splitlines() == ["   tokens", "      per", "a  device", "-  ------", "x   1,234"]


def test_optional_columns_are_left_out_next_and_named() -> None:
    heads, rows = ("a", "why", "b"), [("1", "because of it", "2"), ("3", "x", "4")]
    assert text_table(heads, rows, width=12, optional=("b", "why")).splitlines() == [
        "a",
        "-",
        "1",
        "3",
        "(not shown at this width: b, why)",
    ]
    assert "not shown" not in text_table(heads, rows, width=22, optional=("b",))


def test_texts_are_broken_and_numbers_are_not() -> None:
    table = text_table(("name", "text", "time"), [("a", "one two three four five", "1,234.5 ms")], width=32)
    assert table.splitlines()[2:] == [
        "a     one two three   1,234.5 ms",
        "      four five",
    ]


def test_what_fits_in_no_way_is_a_line_for_each_column() -> None:
    heads = ("one", "second", "third")
    table = text_table(heads, [("word " * 9, "123456789 ms", "x" * 30)] * 2, width=40, indent="  ")
    lines = table.splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[0] == "  one     word word word word word word"
    assert lines[2:4] == ["  second  123456789 ms", "  third   " + "x" * 30]
    assert lines[4] == ""


@given(
    cells=st.lists(st.lists(st.text("ab 1,.%", max_size=40), min_size=4, max_size=4), max_size=5),
    width=st.integers(40, 120),
)
def test_no_line_is_wider_and_nothing_is_lost(cells: list[list[str]], width: int) -> None:
    # No letter of a head stands in a cell.
    table = text_table(("v", "word of x", "y", "z"), cells, width=width)
    assert max(map(len, table.splitlines()), default=0) <= width
    # A long word may be broken, with other columns between its parts.
    told = Counter("".join(cell for row in cells for cell in row if not cell.isspace()))
    del told[" "]
    assert told <= Counter(table)
