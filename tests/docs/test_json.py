"""docs/json.md has every key of documents that the code makes, with words, and no other."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kernelcast.docs import generate_json, json_examples

ROOT = Path(__file__).resolve().parents[2]
FILES = {"kernelcast.bundle", "kernelcast.commons", "kernelcast.csv", "kernelcast.import"}
"""Formats of files, which have pages of their own."""
WORDS = """
begin = "# A page"
[forms."kernelcast.one/1"]
from = "`one`"
[forms."kernelcast.one/1".keys]
"times[].{low_s, high_s}" = "seconds"
"by.<name>" = "`null` where it is not known"
[forms."kernelcast.two/1"]
from = "`two`"
[forms."kernelcast.two/1".keys]
same = "the same"
[forms."kernelcast.two/1".like]
same = ["kernelcast.one/1", "times[]"]
"""
ONE = {"format": "kernelcast.one/1", "times": [{"low_s": 1, "high_s": 2.5}], "by": {"a": 1, "b": 2}}
TWO = {"format": "kernelcast.two/1", "same": {"low_s": None}}


def written(folder: Path, *documents: Mapping[str, Any], words: str = WORDS) -> str:
    path = folder / "words.toml"
    path.write_text(words, encoding="utf-8")
    return generate_json.page(documents, path)


@pytest.mark.slow
def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    assert generate_json.page(json_examples.documents()) == page, "make docs"


def test_every_form_of_the_code_has_a_section() -> None:
    packages = [
        path.parent for path in ROOT.glob("*/__init__.py") if path.parent.name not in ("tests", "docs")
    ]
    files = [path for package in packages for path in package.rglob("*.py")]
    named = {
        form for path in files for form in re.findall(r'"(kernelcast\.[\w-]+/\d+)"', path.read_text("utf-8"))
    }
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    assert {form for form in named if form.partition("/")[0] not in FILES} == set(
        re.findall(r"^## `(.*)`$", page, re.MULTILINE)
    )


def test_rows_have_keys_types_and_meanings(tmp_path: Path) -> None:
    lines = written(tmp_path, ONE, TWO).splitlines()
    assert "| `times[].low_s`, `.high_s` | integer or null, `.high_s` number | seconds |" in lines
    assert "| `by.<name>` | integer or null | `null` where it is not known |" in lines
    assert "| `same` | object | the same; as `times[]` of [`kernelcast.one/1`](#kernelcastone1) |" in lines


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ((ONE | {"new": {"deep": []}}, TWO), "no words for kernelcast.one/1 new.deep"),
        ((ONE | {"times": [{"low_s": 1}]}, TWO), "no document has kernelcast.one/1 times[].high_s"),
        (
            (ONE | {"times": [{"low_s": 1, "high_s": None}]}, TWO),
            "no document has a value of kernelcast.one/1 times[].high_s",
        ),
        ((ONE, TWO, {"format": "kernelcast.three/1", "a": 1}), "kernelcast.three/1 is missing"),
        ((ONE,), "no document has kernelcast.two/1 same"),
        ((ONE, TWO | {"same": {"other": 1}}), "no words for kernelcast.one/1 times[].other"),
    ],
)
def test_what_is_out_of_step_is_refused(
    tmp_path: Path, documents: tuple[Mapping[str, Any], ...], message: str
) -> None:
    with pytest.raises(SystemExit) as refusal:
        written(tmp_path, *documents)
    assert str(refusal.value) == f"docs/json.toml: {message}"


def test_a_key_with_empty_words_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no words for kernelcast.one/1 times\[\].low_s, kernelcast"):
        written(tmp_path, ONE, TWO, words=WORDS.replace('"seconds"', '""'))


def test_a_type_that_no_document_shows_is_stated(tmp_path: Path) -> None:
    one, words = ONE | {"notes": []}, WORDS.replace('"by.<name>"', 'notes = "more"\n"by.<name>"', 1)
    with pytest.raises(SystemExit, match=r"no document has a value of kernelcast.one/1 notes$"):
        written(tmp_path, one, TWO, words=words)
    stated = f'{words}\n[forms."kernelcast.one/1".types]\nnotes = "list of texts"\n'
    assert "| `notes` | list of texts | more |" in written(tmp_path, one, TWO, words=stated).splitlines()
    with pytest.raises(
        SystemExit, match=r"a type is stated, which documents show, of kernelcast.one/1 notes$"
    ):
        written(tmp_path, one | {"notes": ["a"]}, TWO, words=stated)
