"""Plain-text tables: numbers flush right, words and ranges flush left; times in words."""

from collections.abc import Iterator

from kernelcast.cli.tables import seconds, table_lines, text_table


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


def test_seconds_in_the_unit_that_reads_best() -> None:
    assert [seconds(value) for value in (2, 0.0123, 4.5e-6, 0)] == ["2.000 s", "12.30 ms", "4.5 µs", "0.0 µs"]


def test_a_long_table_comes_as_its_rows_come() -> None:
    read = 0

    def rows() -> Iterator[list[str]]:
        nonlocal read
        for number in range(5_000):
            read += 1
            yield [str(number)]

    lines = table_lines(["number"], rows())
    assert [next(lines) for _ in range(3)] == ["number", "------", "     0"]
    assert read == 1_000
    assert list(lines)[-1] == "  4999"
