"""The report's page: whole, self-contained, escaped, readable without seeing it, written all at once."""

import base64
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from kernelcast.runtime import DataError
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.bundle.manifest import UNKNOWN_MOMENT
from kernelcast.runtime.views.formatting import percent, seconds
from kernelcast.train.fit import Trained
from kernelcast.train.notes import Note
from kernelcast.train.report.figures import figures
from kernelcast.train.report.page import FILE_NAME, check_directory, page, write_report
from kernelcast.train.report.reference import Reference

PUBLISHED = Path(__file__).parent.parent.parent / "data" / "importers" / "Example"
HOSTILE = "<script>alert('&\")</script>"


class Page(HTMLParser):
    """What a browser would find: elements with attributes, text per element, balance of tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.setdefault(self._open[-1] if self._open else "", []).append(data.strip())

    def all(self, tag: str) -> Iterator[dict[str, str]]:
        return (attributes for name, attributes in self.elements if name == tag)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {}


@pytest.fixture
def shown(trained: Trained, pages: dict[str, str]) -> str:
    """The page with a reference, made once."""
    if "shown" not in pages:
        pages["shown"] = page(figures(trained, Reference.read(PUBLISHED)))
    return pages["shown"]


def test_the_page_holds_tables_plots_and_what_was_left_out(trained: Trained, shown: str) -> None:
    found = Page(shown)
    headings = ["operator", "role", "direction", "rows", "algorithm", "form", "error", "reference"]
    assert found.text["th"][:8] == headings
    assert found.text["h3"] == ["all_reduce, once", "gelu, forward", "gemm, backward"]
    assert "softmax (forward): 3 distinct workloads, expected 8 or more" in found.text["li"]
    mean = percent(figures(trained).mean_validation_error)
    assert mean in found.text["dd"]
    assert trained.digest in found.text["dd"]
    # Three plots each, and the overview.
    assert len(list(found.all("img"))) == 10
    error = figures(trained).operators[0].entry.validation_error
    assert {"value": str(100 * error)} in found.all("data")
    assert "1 × 4" in found.text["td"]
    for one in figures(trained).operators:
        assert any(text.startswith(f"{one.title[0].upper()}{one.title[1:]}. ") for text in found.text["p"])
    anchors = {attributes["id"] for _, attributes in found.elements if "id" in attributes}
    assert {attributes["href"].removeprefix("#") for attributes in found.all("a")} <= anchors


def test_nothing_is_loaded_from_elsewhere(shown: str) -> None:
    found = Page(shown)
    for _, attributes in found.elements:
        for name in ("src", "href", "srcset", "data", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:image/svg+xml;base64,"))
        assert "url(" not in "".join(attributes.values())
    assert "url(" not in "".join(found.text["style"])
    assert "@import" not in shown
    assert not list(found.all("link"))
    [policy] = [m["content"] for m in found.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    [script] = re.findall(r"<script>(.*?)</script>", shown, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    assert policy == f"default-src 'none'; {allowed}"
    for picture in pictures(shown):
        for one in picture.iter():
            assert one.tag.rpartition("}")[2] not in ("script", "foreignObject", "a")
            links = [value for name, value in one.attrib.items() if name.rpartition("}")[2] == "href"]
            assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)


def pictures(page: str) -> list[ElementTree.Element]:
    """The images of a page."""
    sources = [attributes["src"] for attributes in Page(page).all("img")]
    return [ElementTree.fromstring(base64.b64decode(source.partition(",")[2])) for source in sources]


def test_every_picture_has_words(shown: str) -> None:
    root = ElementTree.fromstring(shown.removeprefix("<!doctype html>\n"))
    ids = [one.attrib["id"] for one in root.iter() if "id" in one.attrib]
    assert len(set(ids)) == len(ids)
    texts = [one.attrib["alt"] for one in root.iter("img")]
    assert len(set(texts)) == len(texts) == 10
    assert all(len(text) > 60 for text in texts)
    assert any(": 24 held-out rows, " in text for text in texts)


def test_all_text_is_escaped(trained: Trained) -> None:
    manifest = replace(
        trained.manifest,
        compute=(ComputeFingerprint(kind="cpu", device_name=HOSTILE, cores=2, threads=1),),
        peaks=(),
    )
    skipped = Note(operator=HOSTILE, direction=trained.manifest.regressors[0].direction, text=HOSTILE)
    hostile = replace(
        trained,
        path=Path(f"{HOSTILE}.kcast"),
        manifest=manifest,
        skipped=(skipped,),
        selections=(),
        notes=(skipped,),
    )
    shown = page(figures(hostile))
    assert HOSTILE not in shown
    found = Page(shown)
    assert len(list(found.all("script"))) == 1
    assert any(text.startswith(HOSTILE) for text in found.text["dd"])
    assert found.text["li"].count(f"{HOSTILE} (once): {HOSTILE}") == 2
    assert {"Left out", "Notes"} < set(found.text["h2"])


def test_what_is_not_known_is_said(trained: Trained) -> None:
    manifest = replace(trained.manifest, created_at=UNKNOWN_MOMENT)
    first = replace(manifest.regressors[0], hyperparameters={"shared": True, "bootstrap": False, "trees": 7})
    manifest = replace(manifest, regressors=(first, *manifest.regressors[1:]))
    taken_over = replace(trained, manifest=manifest, selections=(), skipped=(), notes=())
    shown = page(figures(taken_over))
    found = Page(shown)
    assert "not known" in found.text["dd"]
    assert not {"Left out", "Notes"} & set(found.text["h2"])
    assert " (shared, trees 7). " in shown
    assert shown.count("Taken over from an earlier bundle") == 3
    assert len(list(found.all("img"))) == 1  # the overview


def test_outliers_are_listed(trained: Trained) -> None:
    collective = trained.selections[0]
    assert collective.table.operator == "all_reduce"
    held_out_us = collective.table.times_us * np.where(np.arange(36) % 2, 1.25, 0.5)
    many = replace(collective, outliers=tuple(range(36)), held_out_us=held_out_us)
    shown = page(figures(replace(trained, selections=(many, *trained.selections[1:]))))
    found = Page(shown)
    assert "36 outliers, which the regressor does not follow" in found.text["summary"]
    entries, nodes, gpus = map(int, collective.table.workloads[0])
    place = found.text["data"].index(f"{entries:,}")
    assert found.text["data"][place + 1 : place + 4] == [
        str(nodes),
        str(gpus),
        seconds(collective.table.times_us[0] * 1e-6),
    ]
    # Off by as much either way.
    assert found.text["data"].count("1.25 ×") == found.text["data"].count("2.00 ×") > 2
    one = replace(collective, outliers=(5,))
    shown = page(figures(replace(trained, selections=(one,))))
    assert "1 outlier, which the regressor does not follow" in Page(shown).text["summary"]


def test_the_same_training_gives_the_same_bytes(trained: Trained, shown: str) -> None:
    assert page(figures(trained, Reference.read(PUBLISHED))) == shown


def test_progress_names_every_operator(trained: Trained) -> None:
    steps: list[tuple[int, int, str]] = []
    page(figures(replace(trained, selections=())), on_progress=lambda *step: steps.append(step))
    assert steps == [(1, 3, "all_reduce"), (2, 3, "gelu"), (3, 3, "gemm")]


def test_a_page_is_replaced_as_a_whole(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, quick = tmp_path / "a" / "b", replace(trained, selections=())
    path = write_report(figures(quick), directory)
    assert path == directory / FILE_NAME
    before, changed = path.read_bytes(), figures(quick, Reference.read(PUBLISHED))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(DataError, match=r"index\.html: cannot be written \(No space left on device\)$"):
        write_report(changed, directory)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [entry.name for entry in directory.iterdir()] == [FILE_NAME]


def test_a_folder_that_cannot_be_written_is_seen_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_directory(tmp_path / "new" / "deep")
    (tmp_path / "file").write_text("not a folder")
    for wrong in ("file", "file/below"):
        with pytest.raises(DataError, match=r"cannot be written \(.*file is not a folder\)"):
            check_directory(tmp_path / wrong)
    monkeypatch.setattr(os, "access", lambda path, needed: needed != os.W_OK | os.X_OK)
    with pytest.raises(DataError, match="no permission to write"):
        check_directory(tmp_path / "new")
