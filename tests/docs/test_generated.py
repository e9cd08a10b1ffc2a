"""Pages that are written from code are current, and those that describe it are complete."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelcast.docs import generate_fields, generate_models, generate_schema
from kernelcast.runtime.request.fields import REQUEST

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_of_models_is_current() -> None:
    text = (DOCS / "models.md").read_text(encoding="utf-8")
    assert generate_models.page(text) == text, "make docs writes it"


@pytest.mark.parametrize(
    ("name", "page"), [("fields", generate_fields.page), ("schema", generate_schema.page)]
)
def test_a_page_of_reference_is_current(name: str, page: Callable[[], str]) -> None:
    assert page() == (DOCS / f"{name}.md").read_text(encoding="utf-8"), "make docs"


def test_every_field_is_explained() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| \S.* \| \S.* \| \S.* \|$", (DOCS / "fields.md").read_text(), re.MULTILINE
    )
    assert set(REQUEST) <= set(rows)


def test_the_picture_has_every_table_and_an_arrow_for_every_reference() -> None:
    picture = (DOCS / "schema.svg").read_text(encoding="utf-8")
    assert generate_schema.picture() == picture, "make docs"
    root = ET.fromstring(picture)
    within = {"svg": "http://www.w3.org/2000/svg"}
    references = generate_schema.references()
    assert {text.text for text in root.findall("svg:text", within)} == set(references)
    assert len(root.findall("svg:path", within)) == sum(map(len, references.values()))
    # No table lies on another.
    boxes = [(float(box.attrib["x"]), float(box.attrib["y"])) for box in root.findall("svg:rect", within)]
    assert all(
        abs(x - other_x) >= 156 or abs(y - other_y) >= 30
        for index, (x, y) in enumerate(boxes)
        for other_x, other_y in boxes[:index]
    )
    assert "sample" in references["repetition"]
    assert set(references["run"]) == {"hardware", "fabric", "software", "source"}
