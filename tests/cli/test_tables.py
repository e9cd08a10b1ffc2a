"""Plain-text tables: numbers flush right, words and ranges flush left; what gives way where they are too wide."""

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.cli.compare import _show_collectives, _show_operators, _show_rows
from kernelcast.cli.tables import print_components, table_lines, text_table
from kernelcast.validate.compare.rows import Row


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
    names = text_table(("name", "text", "time"), [("a", "one of all-to-all", "1,234.5 ms")], width=32)
    assert [line[6:20].strip() for line in names.splitlines()[2:]] == ["one of", "all-to-all"]


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


def test_components_beside_measured_ones(capsys: pytest.CaptureFixture[str]) -> None:
    print_components([("Encoder_Fwd", 0.0015, 0.001), ("Max_Update", 0.002, None), ("PP_P2P", 0.001, 0.0)])
    assert capsys.readouterr().out.splitlines() == [
        "  component    predicted  measured   error",
        "  -----------  ---------  --------  ------",
        "  Encoder_Fwd   1.500 ms  1.000 ms  +50.0%",
        "  Max_Update    2.000 ms         -       -",
        "  PP_P2P        1.000 ms         -       -",
    ]


def test_a_measured_step_beside_its_prediction(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")  # pytest-xdist's workers have 80
    both = Row(
        name="gemm", operator="gemm", pass_="forward", measured_s=0.004, predicted_s=0.002, low_s=0.001, high_s=0.003,
        launches=2.0, calls=3, measured_bytes=3 << 20, predicted_bytes=1 << 19,
    )  # fmt: skip
    rows = [
        both,
        Row(name="rope", operator="rope", pass_="backward", measured_s=0.001, low_s=0.5),
        Row(name="x", operator="", pass_="", predicted_s=0.001),
    ]
    _show_rows("part", rows, {"x": "others"})
    _show_operators(rows)
    _show_collectives(rows[:1])
    _show_collectives([])
    assert (
        capsys.readouterr().out
        == """
part    measured ms  predicted ms  difference ms
------  -----------  ------------  -------------
gemm           4.00          2.00          +2.00
rope           1.00                        +1.00
others                       1.00          -1.00
step           5.00          3.00          +2.00

operator  pass      measured ms  predicted ms  interval      difference ms  ratio
--------  --------  -----------  ------------  ------------  -------------  -----  ----
gemm      forward          4.00          2.00  1.00 to 3.00          +2.00   2.00  slow
rope      backward         1.00                                      +1.00
x                                        1.00                        -1.00

collective  exposed ms  predicted ms  difference ms  calls  predicted  MiB  predicted MiB
----------  ----------  ------------  -------------  -----  ---------  ---  -------------
gemm              4.00          2.00          +2.00      2          3  3.0            0.5
"""
    )
