"""Publishing a database as a commons: a folder of static files that any web server can hand out.

    FOLDER/kernelcast-commons.json, .sig    the index, and its signature
    FOLDER/parts/DIGEST.db.xz               rows of one run and operator: a kernelcast database, compressed
    FOLDER/parquet/DIGEST.parquet           the same samples, with --parquet
    FOLDER/bundles/DIGEST.kcast             bundles
    FOLDER/descriptions/DIGEST.toml         fabrics and stacks

Only the database's own rows are published: merged rows are for their publishers to offer, and to withdraw.
Traces of real runs are left out.
"""

import lzma
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kernelcast.runtime.bundle.file import read_bundle
from kernelcast.runtime.bundle.fingerprint import DESCRIBED
from kernelcast.runtime.bundle.signature import SIGNATURE_BEGINS, signature_of, signature_path
from kernelcast.runtime.dataclass import dataclass, field, replace
from kernelcast.runtime.errors import DataError, system_errors
from kernelcast.runtime.hardware.fabric import described_fabric, fabric_toml
from kernelcast.runtime.output_file import unfinished_beside, write_companion
from kernelcast.runtime.small_file import read_small_file
from kernelcast.runtime.stack import find_stack, stack_toml
from kernelcast.store.canonical import utc_now
from kernelcast.store.commons.index import (
    INDEX_FILE,
    MOST_INDEX_BYTES,
    NAMESPACE,
    About,
    Description,
    Index,
    Part,
    PublishedBundle,
    PublishedFile,
    read_index,
)
from kernelcast.store.commons.sources import made
from kernelcast.store.connection import connect, foreign_database
from kernelcast.store.copying import Condition, Selection
from kernelcast.store.database_file import DEFAULT_MAX_SIZE_BYTES, unfinished_file
from kernelcast.store.export import copy_selection
from kernelcast.store.rows import CONTENT_TABLES, content_tables_digest, rows
from kernelcast.store.sqlite_errors import reported

_DESCRIBED = ("hardware", "fabric", "software")
_LONGEST_DESCRIPTION = 300
_NOTHING: Mapping[str, Condition] = dict.fromkeys(CONTENT_TABLES, ("0", ()))
_OWN = (
    "NOT EXISTS (SELECT 1 FROM merged_row WHERE merged_row.table_name = '{0}' AND merged_row.row_id = {0}.id)"
)
_PLAN = (
    "SELECT run.id AS run, compute_id AS hardware, software_id AS software, coalesce(fabric_id, '') AS fabric,"
    " {operator} AS operator, count(*) AS rows, group_concat(DISTINCT dtype) AS dtypes,"
    " coalesce(min(measured_at), '') AS first_measured_at, coalesce(max(measured_at), '') AS last_measured_at"
    " FROM {table} JOIN run ON run.id = {table}.run_id WHERE "
    + _OWN
    + " GROUP BY run.id, 5 ORDER BY run.id, 5"
)
_FILES = {
    folder: re.compile(r"[0-9a-f]{64}\." + suffix)
    for folder, suffix in (
        ("parts", r"db\.xz"),
        ("bundles", "kcast"),
        ("descriptions", "toml"),
        ("parquet", "parquet"),
    )
}
_BLOCK_BYTES = 1 << 20
_PRESET = 6  # of xz: 9 MB to unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What was published, or would be: the index, the files that are new, and free text that leaves with them."""

    index: Index
    written: tuple[PublishedFile, ...]
    removed: int  # files
    rows: Counter[str]  # in new parts
    merged_samples: int  # left out
    texts: Mapping[str, Sequence[str]]


def publish(
    database: Path,
    folder: Path,
    *,
    key: Path | None = None,
    about: Mapping[str, str] | None = None,
    bundles: Sequence[Path] = (),
    fabrics: Sequence[str] = (),
    stacks: Sequence[str] = (),
    with_notes: bool = False,
    with_parquet: bool = False,
    is_dry_run: bool = False,
    max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES,
) -> Published:
    """Publish a database's own rows, bundles, fabrics and stacks. Parts whose rows did not change are left as they are.

    The index is replaced last: until then readers see the commons as it was. Files that neither it nor the index before
    names are deleted. What `about` does not state, and no `bundles`, `fabrics` or `stacks`, stay as they were. A dry
    run writes nothing there. `with_parquet` (of extra `parquet`) also writes samples as Parquet, then and from then on.

    DataError where the folder is no commons and not empty, is signed while no key is given, or cannot be written, or
    where the database, a bundle, fabric or stack is not sound.
    """
    before = _commons(folder)
    is_signed = signature_path(folder / INDEX_FILE).exists()
    if is_signed and key is None and not is_dry_run:
        raise DataError(f"{folder}: its index is signed, expected --key")
    with ExitStack() as stack:
        target = Path(stack.enter_context(TemporaryDirectory(prefix="kernelcast-"))) if is_dry_run else folder
        with made(target):
            for name in _FILES:
                (target / name).mkdir(parents=True, exist_ok=True)
        with_parquet |= before is not None and any(part.parquet for part in before.parts)
        writer = _Writer(target=target, folder=folder, before=before, with_parquet=with_parquet)
        with foreign_database(database, max_size_bytes=max_size_bytes) as connection, reported(database):
            parts = tuple(writer.parts(connection, database, with_notes))
            described = {table: _described(connection, table, parts) for table in _DESCRIBED}
            merged_samples = _merged_samples(connection)
        index = Index(
            published_at=utc_now(),
            kernelcast_version=version("kernelcast"),
            about=replace(before.about if before else About(), **(about or {})),
            parts=parts,
            bundles=tuple(map(writer.bundle, bundles)) or (before.bundles if before else ()),
            descriptions=tuple(writer.descriptions(fabrics, stacks)),
            **described,
        )
        if before is not None and replace(index, published_at=before.published_at) == before:
            index = before
        if not is_dry_run and (index is not before or is_signed != (key is not None)):
            _write_index(folder, index, key)
        removed = 0 if is_dry_run else _remove_unnamed(folder, index, before)
    return Published(
        index=index,
        written=tuple(writer.written),
        rows=+writer.rows,
        texts=writer.texts,
        merged_samples=merged_samples,
        removed=removed,
    )


def _commons(folder: Path) -> Index | None:
    """The index of a folder that is a commons; None for an empty folder, or none."""
    if not folder.exists():
        return None
    with system_errors(str(folder), "cannot be read", expected="a folder"):
        names = set(os.listdir(folder))
    if INDEX_FILE in names:
        path = folder / INDEX_FILE
        return read_index(read_small_file(path, where=str(path), most_bytes=MOST_INDEX_BYTES), str(path))
    if names - set(_FILES):  # of a first publishing that was interrupted
        raise DataError(
            f"{folder}: is no commons ({INDEX_FILE} is missing) and not empty, expected a commons or a new folder"
        )
    with made(folder):
        others = [
            one
            for name in names
            for one in os.listdir(folder / name)
            if not (_FILES[name].fullmatch(one) or one.startswith(".part."))
        ]
    if others:
        raise DataError(f"{folder}: is no commons, and has {others[0]!r:.80}; expected a new folder")
    return None


@dataclass(slots=True, kw_only=True)
class _Writer:
    """Writes parts and bundles that the folder lacks into `target`, which is the folder unless nothing may leave."""

    target: Path
    folder: Path
    before: Index | None
    with_parquet: bool
    written: list[PublishedFile] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)
    texts: dict[str, list[str]] = field(default_factory=dict)

    def parts(self, connection: sqlite3.Connection, source: Path, with_notes: bool) -> Iterator[Part]:
        """Every part of a database, written where it is new."""
        known = {
            (one.run, one.operator, one.content): one for one in (self.before.parts if self.before else ())
        }
        for stated, selection in _plan(connection, with_notes):
            content = content_tables_digest(connection, selection.of)
            part = known.get((stated["run"], stated["operator"], content))
            wanted = self.with_parquet and bool(stated["operator"])
            if part is None or not self._has(part) or (wanted and not part.parquet):
                part = self._write_part(connection, source, selection, {**stated, "content": content})
            yield part

    def _has(self, part: Part) -> bool:
        return all((self.folder / path).is_file() for path in (part.path, part.parquet_path) if path)

    def _parquet(self, database: Path) -> str:
        """Write the samples of a part for readers of Parquet; returns the digest of the file."""
        from kernelcast.store.parquet import write_view

        with unfinished_beside(self.target / "parquet" / "part") as new:
            with closing(connect(database, read_only=True)) as connection:
                write_view(connection, "operator_time", new, texts={"workload"})
            digest = sha256(new.read_bytes()).hexdigest()
            new.replace(self.target / "parquet" / f"{digest}.parquet")
        return digest

    def _write_part(
        self, connection: sqlite3.Connection, source: Path, selection: Selection, stated: Mapping[str, Any]
    ) -> Part:
        place = self.target / "parts" / "part"
        with made(self.target), unfinished_beside(place) as packed, unfinished_file(place) as new:
            copied = copy_selection(connection, source, new, selection, named=place)
            self.rows += copied.rows
            for name, found in copied.texts.items():
                self.texts[name] = sorted({*self.texts.get(name, ()), *found})
            inside, outside, compressor = sha256(), sha256(), lzma.LZMACompressor(preset=_PRESET)
            with new.open("rb") as content, packed.open("xb") as stream:
                while block := content.read(_BLOCK_BYTES):
                    inside.update(block)
                    outside.update(piece := compressor.compress(block))
                    stream.write(piece)
                outside.update(piece := compressor.flush())
                stream.write(piece)
                stream.flush()
                os.fsync(stream.fileno())
            part = Part(
                digest=outside.hexdigest(),
                size_bytes=packed.stat().st_size,
                database_digest=inside.hexdigest(),
                database_bytes=new.stat().st_size,
                parquet=self._parquet(new) if self.with_parquet and stated["operator"] else "",
                **stated,
            )
            packed.replace(self.target / part.path)
        self.written.append(part)
        return part

    def _write(self, one: PublishedBundle | Description, content: bytes) -> None:
        write_companion(self.target / one.path, content, str(self.folder / one.path), begins=content)
        self.written.append(one)

    def bundle(self, path: Path) -> PublishedBundle:
        """A bundle, written where it is new."""
        bundle, content = read_bundle(path), path.read_bytes()
        manifest = bundle.manifest
        published = PublishedBundle(
            digest=sha256(content).hexdigest(),
            size_bytes=len(content),
            devices=tuple(one.device_name for one in manifest.compute),
            dtype=manifest.dtype,
            created_at=manifest.created_at,
            regressors=len(manifest.regressors),
        )
        if not (self.folder / published.path).is_file():
            self._write(published, content)
        return published

    def descriptions(self, fabrics: Sequence[str], stacks: Sequence[str]) -> Iterator[Description]:
        """Fabrics and stacks, written where they are new; of a kind without any, those published before."""
        given = {
            "fabric": [(one.name, fabric_toml(one)) for one in map(described_fabric, fabrics)],
            "stack": [(one.name, stack_toml(one)) for one in map(find_stack, stacks)],
        }
        for kind, found in given.items():
            if not found and self.before:
                yield from (one for one in self.before.descriptions if one.kind == kind)
            for name, text in found:
                content = text.encode()
                digest = sha256(content).hexdigest()
                one = Description(digest=digest, size_bytes=len(content), kind=kind, name=name)
                if not (self.folder / one.path).is_file():
                    self._write(one, content)
                yield one


def _plan(connection: sqlite3.Connection, with_notes: bool) -> Iterator[tuple[dict[str, Any], Selection]]:
    """What each part holds: what the index states of it, and its rows."""
    for table, operator in (("sample", "sample.operator"), ("step", "''")):
        for row in rows(connection, _PLAN.format(table, table=table, operator=operator)):
            run, conditions = row["run"], dict[str, Condition](_NOTHING)
            conditions |= {
                "hardware": ("id = ?", (row["hardware"],)),
                "software": ("id = ?", (row["software"],)),
                "fabric": ("id = ?", (row["fabric"],)),
                "source": ("id = (SELECT source_id FROM run WHERE id = ?)", (run,)),
                "run": ("id = ?", (run,)),
                table: (f"run_id = ? AND {operator} = ? AND {_OWN.format(table)}", (run, row["operator"])),
            }
            if with_notes:
                conditions["run_note"] = ("run_id = ?", (run,))
            if table == "step":
                conditions["prediction"] = (
                    f"step_id IN (SELECT id FROM step WHERE run_id = ?) AND {_OWN.format('prediction')}",
                    (run,),
                )
            yield {**row, "dtypes": sorted(row["dtypes"].split(","))}, Selection(conditions=conditions)
    others: dict[str, Condition] = {
        "fabric": (f"backend = ? AND {_OWN.format('fabric')}", (DESCRIBED,)),
        "failure_log": (_OWN.format("failure_log"), ()),
        "step_times": (_OWN.format("step_times"), ()),
    }
    count = sum(
        connection.execute(f"SELECT count(*) FROM {table} WHERE {where}", parameters).fetchone()[0]
        for table, (where, parameters) in others.items()
    )
    if count:
        yield {"run": "", "operator": "", "rows": count}, Selection(conditions={**_NOTHING, **others})


def _merged_samples(connection: sqlite3.Connection) -> int:
    found = connection.execute("SELECT count(*) FROM merged_row WHERE table_name = 'sample'").fetchone()
    return int(found[0])


def _described(connection: sqlite3.Connection, table: str, parts: Sequence[Part]) -> dict[str, str]:
    named = {getattr(part, table) for part in parts}
    return {
        row["id"]: row["description"][:_LONGEST_DESCRIPTION]
        for row in rows(connection, f"SELECT id, description FROM {table} ORDER BY id")
        if row["id"] in named
    }


def _write_index(folder: Path, index: Index, key: Path | None) -> None:
    path, content = folder / INDEX_FILE, index.text()
    if len(content) > MOST_INDEX_BYTES:
        raise DataError(
            f"{path}: {len(content)} bytes, expected at most {MOST_INDEX_BYTES}: publish fewer runs"
        )
    if key is not None:
        signature = signature_of(content, key, namespace=NAMESPACE, where=str(path))
        write_companion(signature_path(path), signature, str(signature_path(path)), begins=SIGNATURE_BEGINS)
    write_companion(path, content, str(path), begins=b"{")


def _remove_unnamed(folder: Path, index: Index, before: Index | None) -> int:
    """Delete files that no reader of the index, or of the one before, can ask for; returns their number."""
    named = {
        Path(path).name
        for each in (index, before)
        if each
        for one in each.files
        for path in (one.path, getattr(one, "parquet_path", ""))
        if path
    }
    unnamed = [
        folder / name / one
        for name, form in _FILES.items()
        for one in os.listdir(folder / name)
        if form.fullmatch(one) and one not in named
    ]
    with made(folder):
        for path in unnamed:
            path.unlink(missing_ok=True)
    return len(unnamed)
