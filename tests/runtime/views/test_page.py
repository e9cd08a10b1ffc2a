"""Parts of pages: values as cells, texts from users as texts, and a policy that names the one script."""

import base64
import hashlib
import re
from xml.etree import ElementTree

import pytest

from kernelcast.runtime.views.formatting import cell_text, heading
from kernelcast.runtime.views.page import document, drawn_stages, element, rectangles, rows_table

HOSTILE = '</td><script>alert(1)</script><b onmouseover="x">&\n\''


@pytest.mark.parametrize(
    ("column", "value", "head", "text"),
    [
        ("mean_spread_percent", 12.34, "mean spread", "12.3 %"),
        ("error_percent", None, "error", "–"),
        ("least_ratio", 0.5, "least", "0.50 ×"),
        ("size_bytes", 2_000_000, "size", "2 MB"),
        ("weights_memory_bytes", 2**30, "weights", "1.0 GiB"),
        ("device_time_s", 0.0125, "device time", "12.50 ms"),
        ("bus_gb_per_s", 1234.5, "bus GB/s", "1,234.5"),
        ("samples", 1234, "samples", "1,234"),
        ("failures", None, "failures", ""),
        ("operator", "gemm", "operator", "gemm"),
    ],
)
def test_a_column_s_name_gives_the_unit(column: str, value: object, head: str, text: str) -> None:
    assert (heading(column), cell_text(column, value)) == (head, text)


def test_texts_of_rows_are_escaped_and_long_ones_cut() -> None:
    long = "kernel_" * 40 + HOSTILE
    html = rows_table([{HOSTILE: HOSTILE, "n": 3}, {HOSTILE: long, "n": None}], caption=HOSTILE)
    root = ElementTree.fromstring(html)
    assert {one.tag for one in root.iter()} == {
        "div", "table", "caption", "thead", "tbody", "tr", "th", "td", "data", "span"
    }  # fmt: skip
    shown = HOSTILE.replace("\n", "\\n")
    assert ["".join(cell.itertext()) for cell in root.iter("td")][:2] == [shown, "3"]
    [cut] = root.iter("span")
    assert cut.get("title") == long.replace("\n", "\\n")
    assert len(cut.text or "") == 80
    # Numbers are flush right and sort by their value, texts are flush left.
    assert [cell.get("class") for cell in root.iter("th")] == [None, "number"]
    assert [data.get("value") for data in root.iter("data")] == ["3", ""]


def test_only_the_script_that_sorts_may_run() -> None:
    plain = document("title", element("p", HOSTILE))
    assert "<script" not in plain
    assert "script-src" not in plain
    sorting = document("title", element("p", HOSTILE), sorts=True)
    [script] = re.findall(r"<script>(.*?)</script>", sorting, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in sorting.replace("&#x27;", "'")


def test_many_stages_are_cut_in_the_middle() -> None:
    assert drawn_stages(range(16)) == (range(16), 34.0)
    stages, height = drawn_stages(range(200))
    assert (list(stages), height) == ([*range(48), *range(152, 200)], 14.0)


def test_rectangles_leave_a_gap_after_wide_ones() -> None:
    assert rectangles([(1, 10), (11, 1)], 2, 5, "idle") == (
        '<path d="M1 2h9.5v5h-9.5zM11 2h1v5h-1z" class="idle"/>'
    )
