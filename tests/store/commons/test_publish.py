"""Publishing: the same bytes for the same rows, only what changed, and never into another folder."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kernelcast.runtime.bundle.signature import verify_signed_file
from kernelcast.runtime.errors import DataError
from kernelcast.store import Database, merge_databases
from kernelcast.store.commons.index import INDEX_FILE, NAMESPACE, read_index
from kernelcast.store.commons.publish import publish

from .conftest import SMALL, Serving


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_rows_give_the_same_files(public: Path, tmp_path: Path) -> None:
    again = publish(SMALL, tmp_path / "again", about={"site": "Site A"})
    assert {part.path for part in again.index.parts} == set(files(public)) - {INDEX_FILE, INDEX_FILE + ".sig"}
    assert [part.digest for part in again.index.parts] == [
        part.digest for part in read_index((public / INDEX_FILE).read_bytes(), "").parts
    ]


def test_publishing_again_writes_nothing(public: Path, keys: Path) -> None:
    before = files(public)
    times = {path: path.stat().st_mtime_ns for path in public.rglob("*")}
    again = publish(SMALL, public, key=keys / "a")
    assert (again.written, again.index.about.site) == ((), "Site A")
    assert files(public) == before
    assert {path: path.stat().st_mtime_ns for path in public.rglob("*")} == times


def test_only_parts_with_new_rows_are_written(public: Path, keys: Path, tmp_path: Path) -> None:
    database = Path(shutil.copy(SMALL, tmp_path / "own.db"))
    with Database.open(database) as opened:
        one = next(opened.samples_in_full())
        opened.add_samples([replace(one, measured_at="2026-11-23T00:00:00Z")])
    before = set(files(public))
    changed = publish(database, public, key=keys / "a")
    [part] = changed.written
    assert (part.run, part.operator) == (one.run_id, one.operator)  # type: ignore[union-attr]
    assert set(files(public)) - before == {part.path}
    assert before <= set(files(public))  # readers of the index before still find its parts
    publish(database, public, key=keys / "a", about={"contact": "a@b"})
    gone = before - set(files(public))
    assert len(gone) == 1  # and then no longer
    assert verify_signed_file(public / INDEX_FILE, keys / "signers", namespace=NAMESPACE).signer == "site-a"


def test_rows_of_merges_and_notes_and_traces_do_not_leave(tmp_path: Path) -> None:
    own = tmp_path / "own.db"
    merge_databases([SMALL], own)
    published = publish(own, tmp_path / "public")
    assert published.index.parts == ()
    with Database.open(own, read_only=True) as database:
        assert published.merged_samples == database.row_counts()["sample"]
    plain = publish(SMALL, tmp_path / "plain")
    assert not {"run_note", "trace", "timeline", "unrecognised_kernel"} & plain.rows.keys()


@pytest.mark.slow
def test_duckdb_reads_the_parquet_files_over_http_as_the_page_says(
    tmp_path: Path, serving: Serving, public: Path, keys: Path
) -> None:
    for package in ("pyarrow", "aiohttp"):
        pytest.importorskip(package)
    import duckdb
    import fsspec

    published = publish(SMALL, public, key=keys / "a", with_parquet=True)
    named = {part.parquet_path for part in published.index.parts if part.operator}
    assert named == {path for path in files(public) if path.startswith("parquet/")}
    assert "" not in named
    assert publish(SMALL, public, key=keys / "a").written == ()  # and stays
    page = (Path(__file__).parents[3] / "docs" / "sharing.md").read_text()
    setting, question = page.partition("```sql\n")[2].partition("```")[0].strip().removesuffix(";").split(";")
    connection = duckdb.connect()
    # The extension httpfs has to be downloaded; fsspec reads the same ranges, and lacks only the time of a change.
    http = fsspec.filesystem("http")
    http.modified = lambda path: datetime(2026, 1, 1, tzinfo=UTC)
    connection.register_filesystem(http)
    with serving(public) as server:
        connection.execute(setting.replace("https://site-a.example/commons", server.address))
        found = connection.sql(question).fetchall()
        assert len(server.asked) > len(named)
    with Database.open(SMALL, read_only=True) as database:
        expected = database.query(
            "SELECT hardware, operator, dtype, count(*) AS samples FROM operator_time GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
        )
    assert [row[:4] for row in found] == [tuple(row.values()) for row in expected]


def test_a_dry_run_writes_nothing(public: Path, tmp_path: Path) -> None:
    before = files(tmp_path)
    shown = publish(SMALL, tmp_path / "new", is_dry_run=True)
    assert shown.written
    assert shown.texts["model names"] == ["tiny-gpt"]
    assert publish(SMALL, public, is_dry_run=True).written == ()
    assert files(tmp_path) == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["notes.txt", "parts/other.txt", "parts"])
def test_another_folder_is_left_alone(tmp_path: Path, name: str) -> None:
    other = tmp_path / "other"
    (other / name).parent.mkdir(parents=True)
    (other / name).write_text("mine")
    with pytest.raises(DataError, match=r"other: (is no commons|cannot be written)"):
        publish(SMALL, other)
    assert files(other) == {name: b"mine"}


def test_what_a_killed_first_publishing_left_is_taken(public: Path, tmp_path: Path) -> None:
    for name in (INDEX_FILE, INDEX_FILE + ".sig"):
        (public / name).unlink()
    assert publish(SMALL, public).index.parts


def test_an_index_of_a_newer_version_is_not_replaced(public: Path) -> None:
    index = json.loads((public / INDEX_FILE).read_text())
    (public / INDEX_FILE).write_text(json.dumps({**index, "format": "kernelcast.commons/2"}))
    with pytest.raises(DataError, match=r"has format 'kernelcast.commons/2', .*use a newer kernelcast$"):
        publish(SMALL, public)


def test_a_signed_commons_stays_signed(public: Path) -> None:
    with pytest.raises(DataError, match=r"public: its index is signed, expected --key$"):
        publish(SMALL, public)


def test_planted_links_are_not_followed(public: Path, tmp_path: Path) -> None:
    [stack] = publish(SMALL, tmp_path / "first", stacks=["megatron-core"]).index.descriptions
    (public / (INDEX_FILE + ".sig")).unlink()
    (public / stack.path).symlink_to(tmp_path / "planted")
    with pytest.raises(DataError, match=r"\.toml: is a link or no file"):
        publish(SMALL, public, stacks=["megatron-core"])
    assert not (tmp_path / "planted").exists()
    index = (public / INDEX_FILE).rename(tmp_path / "other.json")
    (public / INDEX_FILE).symlink_to(index)
    before = index.read_bytes()
    with pytest.raises(DataError, match=f"{INDEX_FILE}: is a link or no file"):
        publish(SMALL, public, about={"site": "B"})
    assert index.read_bytes() == before
