"""Pulling from real servers: what is missing only, resumed, verified first; and refused for every reason there is."""

import fcntl
import json
import lzma
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from kernelcast.runtime.errors import DataError
from kernelcast.store import Database, check_database, merge_databases
from kernelcast.store.commons import pull as pulling
from kernelcast.store.commons import transfer as transfers
from kernelcast.store.commons.index import INDEX_FILE, read_index
from kernelcast.store.commons.publish import publish
from kernelcast.store.commons.pull import pull, refresh
from kernelcast.store.commons.sources import Source
from kernelcast.store.commons.transfer import Interrupted, Transfer
from kernelcast.store.merges import revert_merge, stored_merges

from .conftest import SMALL, Handler, Serving

Change = Callable[[dict[str, Any]], object]


def source(address: str | Path, keys: Path | None = None, **options: Any) -> Source:
    if isinstance(address, Path):
        address = address.as_uri()
    if keys is not None:
        options = {"allowed_signers": str(keys / "signers"), "signer": "site-a", **options}
    return Source(name="a", address=address, **options)


def digest(path: Path) -> str:
    with Database.open(path, read_only=True) as database:
        return database.content_digest()


def test_all_of_it_arrives_and_pulling_again_is_one_request(
    public: Path, keys: Path, serving: Serving, tmp_path: Path
) -> None:
    with serving(public) as server:
        asked = source(server.address, keys)
        pulled = pull(asked, tmp_path / "new.db")
        assert (pulled.signer, pulled.requests) == ("site-a", 2 + len(pulled.parts))
        assert pulled.index.about.site == "Site A"
        again = pull(asked, tmp_path / "new.db")
        assert (again.parts, again.requests, again.rows) == ((), 1, {})
    folder = pull(source(public), tmp_path / "folder.db")  # the same without a server
    assert folder.rows == pulled.rows
    assert digest(tmp_path / "new.db") == digest(tmp_path / "folder.db")
    with (
        Database.open(SMALL, read_only=True) as mine,
        Database.open(tmp_path / "new.db", read_only=True) as theirs,
    ):
        assert list(mine.samples_in_full()) == list(theirs.samples_in_full())
        assert {one.signer for one in stored_merges(theirs.connection)} == {"site-a"}
    assert check_database(tmp_path / "new.db") == []


def test_words_choose_parts(public: Path, serving: Serving, tmp_path: Path) -> None:
    pulled = pull(source(public), tmp_path / "new.db", ("EPYC", "fp32", "gelu"))
    assert {part.operator for part in pulled.parts} == {"gelu"}
    assert pull(source(public), tmp_path / "new.db", ("h200",)).parts == ()
    rest = pull(source(public), tmp_path / "new.db")
    assert len(rest.parts) + len(pulled.parts) == len(pulled.index.parts)


def test_only_new_parts_are_fetched(public: Path, keys: Path, serving: Serving, tmp_path: Path) -> None:
    with serving(public) as server:
        asked = source(server.address, keys)
        pull(asked, tmp_path / "new.db")
        own = Path(shutil.copy(SMALL, tmp_path / "own.db"))
        with Database.open(own) as database:
            one = next(database.samples_in_full())
            database.add_samples([replace(one, measured_at="2026-11-23T00:00:00Z")])
        publish(own, public, key=keys / "a")
        assert pull(asked, tmp_path / "new.db").rows == {"sample": 1}
        assert len(server.asked) > 5
        [*_, index, signature, part] = [path for path, _ in server.asked]
        assert (index, signature) == (f"/{INDEX_FILE}", f"/{INDEX_FILE}.sig")
        assert part.startswith("/parts/")
    assert len(asked.pulled()) == len(read_index((public / INDEX_FILE).read_bytes(), "").parts) + 1


def test_a_cut_transfer_is_continued_where_it_ended(public: Path, serving: Serving, tmp_path: Path) -> None:
    cuts = random.Random(7)

    def act(handler: Handler) -> bool:
        if not handler.path.startswith("/parts/") or handler.headers.get("Range"):
            return False
        content = Path(handler.translate_path(handler.path)).read_bytes()
        handler.cut(content, cuts.randrange(1, len(content)))
        return True

    with serving(public, act) as server:
        pulled = pull(source(server.address), tmp_path / "new.db")
        parts = len(pulled.parts)
        assert pulled.requests == 1 + 2 * parts
        assert pulled.received_bytes < 1.2 * sum(part.size_bytes for part in pulled.parts) + 20_000
    assert digest(tmp_path / "new.db")


def test_a_server_without_ranges_starts_again(public: Path, serving: Serving, tmp_path: Path) -> None:
    count = 0

    def act(handler: Handler) -> bool:
        nonlocal count
        if handler.path.startswith("/parts/"):
            content = Path(handler.translate_path(handler.path)).read_bytes()
            count += 1
            handler.cut(content, 1000) if count == 1 else handler.answer(content)
            return True
        return False

    with serving(public, act) as server:
        assert pull(source(server.address), tmp_path / "new.db").rows["sample"]


def test_an_unfinished_file_of_other_bytes_is_fetched_again(
    public: Path, serving: Serving, tmp_path: Path
) -> None:
    index = read_index((public / INDEX_FILE).read_bytes(), "")
    with serving(public) as server:
        asked = source(server.address)
        asked.cache.mkdir(parents=True)
        for part, content in zip(index.parts, (b"x" * 100, b"y" * 10**6), strict=False):
            (asked.cache / f"{part.digest}.xz").write_bytes(content)
        pull(asked, tmp_path / "new.db")
    assert digest(tmp_path / "new.db")
    assert not list(asked.cache.glob("*.xz"))


def refused(asked: Source, into: Path, message: str, **options: Any) -> None:
    with pytest.raises(DataError, match=message) as found:
        pull(asked, into, **options)
    assert "\n" not in str(found.value)
    assert not into.exists()


def test_unsigned(public: Path, keys: Path, tmp_path: Path) -> None:
    (public / f"{INDEX_FILE}.sig").unlink()
    refused(
        source(public, keys),
        tmp_path / "new.db",
        r"is not signed, expected a signature \(signed by site-a\)$",
    )


def test_another_signer_is_named(public: Path, keys: Path, tmp_path: Path) -> None:
    publish(SMALL, public, key=keys / "b", about={"contact": "b"})
    refused(
        source(public, keys), tmp_path / "new.db", r"does not hold for site-a .*the key belongs to site-b$"
    )
    pulled = pull(source(public, keys, signer=""), tmp_path / "any.db")
    assert pulled.signer == "site-b"


def test_a_signer_that_changed_is_refused_and_the_index_before_stays(
    public: Path, keys: Path, tmp_path: Path
) -> None:
    asked = source(public, keys)
    pull(asked, tmp_path / "new.db")
    kept, before = (asked.folder / INDEX_FILE).read_bytes(), digest(tmp_path / "new.db")
    publish(SMALL, public, key=keys / "b", about={"contact": "b"})
    with pytest.raises(DataError, match="the key belongs to site-b"):
        pull(asked, tmp_path / "new.db")
    assert (asked.folder / INDEX_FILE).read_bytes() == kept
    assert digest(tmp_path / "new.db") == before


def test_an_older_index_is_refused(public: Path, keys: Path, tmp_path: Path) -> None:
    older = Path(shutil.copytree(public, tmp_path / "older"))
    publish(SMALL, public, key=keys / "a", about={"contact": "new"})
    refresh(source(public, keys))
    refused(source(older, keys), tmp_path / "new.db", "before the index of .* that was fetched earlier")


BUNDLE = {
    "digest": "0" * 64,
    "size_bytes": 1,
    "devices": ["x"],
    "dtype": "float32",
    "created_at": "2026-01-01T00:00:00Z",
    "regressors": 1,
}


def changed_index(public: Path, change: Change) -> None:
    values = json.loads((public / INDEX_FILE).read_text())
    change(values)
    (public / INDEX_FILE).write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index.update(format="kernelcast.commons/9"), r"kernelcast.commons/9'.*use a newer kernelcast$"),
        (lambda index: index.update(format=3), r"has format '3'"),
        (lambda index: index.update(parts=[{}]), r"parts\[0\]\.digest is missing"),
        (lambda index: index["parts"][2].update(digest="../../../etc/passwd"), r"parts\[2\]\.digest is .*SHA-256"),
        (lambda index: index["parts"][2].update(digest="A" * 64), r"parts\[2\]\.digest is .*SHA-256"),
        (lambda index: index["parts"][0].update(hardware="../../mine"), r"parts\[0\]\.hardware is .*hex digits"),
        (lambda index: index.update(bundles=[{**BUNDLE, "size_bytes": 2**30}]), r"bundles\[0\]\.size_bytes is"),
        (lambda index: index["parts"][0].update(size_bytes=10**30), r"parts\[0\]\.size_bytes is"),
        (lambda index: index["parts"][0].update(size_bytes=-1), r"parts\[0\]\.size_bytes is"),
        (lambda index: index["parts"][0].update(size_bytes=100), r"db\.xz: has more than 100 bytes"),
        (lambda index: index["parts"][0].update(size_bytes=10**6), r"ended after [\d,]+ of 1,000,000 bytes"),
        (lambda index: index["parts"][0].update(database_bytes=512), r"unpacks to more than 512 bytes"),
        (lambda index: index["parts"][0].update(database_digest="0" * 64), r"unpacks to another database"),
        (lambda index: index["parts"][0].update(database_bytes=2**34), r"no space: |the limit is"),
        (lambda index: index["parts"][0].update(digest="0" * 64), r"parts/0{64}\.db\.xz: no such file"),
        (lambda index: index["hardware"].update(x="\x1b[2J"), r"description is .*expected a text"),
        (lambda index: index.update(extra=1), r"unknown field|extra"),
    ],
)  # fmt: skip
def test_an_index_that_lies_is_refused(public: Path, tmp_path: Path, change: Change, message: str) -> None:
    changed_index(public, change)
    refused(source(public), tmp_path / "new.db", message)


@pytest.mark.parametrize("content", [b"", b"<html>", b"[" * 100_000, b"\xff", b"[]", b"null", b"1" * 5000])
def test_what_is_no_index_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / INDEX_FILE).write_bytes(content)
    refused(source(tmp_path / "other"), tmp_path / "new.db", "is not JSON|has format")


def replace_part(public: Path, database: bytes) -> None:
    packed = lzma.compress(database)

    def change(values: dict[str, Any]) -> None:
        part = values["parts"][0]
        part |= {"digest": sha256(packed).hexdigest(), "size_bytes": len(packed)}
        part |= {"database_digest": sha256(database).hexdigest(), "database_bytes": len(database)}
        (public / "parts" / f"{part['digest']}.db.xz").write_bytes(packed)

    changed_index(public, change)


def test_replaced_files(public: Path, tmp_path: Path) -> None:
    one, *_ = (public / "parts").iterdir()
    content = bytearray(one.read_bytes())
    content[len(content) // 2] ^= 1
    one.write_bytes(content)
    refused(
        source(public),
        tmp_path / "new.db",
        r"its SHA-256 is [0-9a-f]{64}, expected [0-9a-f]{64} as the index",
    )


def test_parts_that_are_no_database_merge_nothing(public: Path, tmp_path: Path) -> None:
    replace_part(public, b"no database")
    refused(source(public), tmp_path / "new.db", "is not a SQLite database")
    plain = tmp_path / "plain.db"
    with closing(sqlite3.connect(plain)) as other:
        other.execute("CREATE TABLE run (id)")
    replace_part(public, plain.read_bytes())
    refused(source(public), tmp_path / "new.db", "is not a kernelcast database")


def test_conflicting_rows_of_two_publishers_merge_nothing(public: Path, tmp_path: Path) -> None:
    lying = Path(shutil.copy(SMALL, tmp_path / "lying.db"))
    with closing(sqlite3.connect(lying)) as other, other:
        other.execute("UPDATE sample SET time_us = time_us * 2 WHERE status = 'ok'")
    for path in lying.parent.glob("lying.db-*"):
        path.unlink()
    merge_databases([SMALL], tmp_path / "new.db")
    before = digest(tmp_path / "new.db")
    replace_part(public, lying.read_bytes())
    with pytest.raises(DataError, match=r"sample [0-9a-f]{32}: .*nothing was stored$"):
        pull(source(public), tmp_path / "new.db")
    assert digest(tmp_path / "new.db") == before


def test_two_publishers_of_one_row_and_one_taken_back(public: Path, keys: Path, tmp_path: Path) -> None:
    publish(SMALL, tmp_path / "b", key=keys / "b", about={"site": "Site B"})
    into = tmp_path / "new.db"
    pull(source(public, keys), into)
    before = digest(into)
    # The same parts: by their digests they are merged already.
    theirs = replace(source(tmp_path / "b", keys), name="b", signer="site-b")
    assert pull(theirs, into).rows == {}
    with Database.open(into, read_only=True) as database:
        merges = stored_merges(database.connection)
    for merge in merges:
        revert_merge(into, merge.id)
    assert digest(into) != before
    with Database.open(into, read_only=True) as database:
        assert not any(database.row_counts().values())


def test_a_missing_part(public: Path, serving: Serving, tmp_path: Path) -> None:
    one, *_ = (public / "parts").iterdir()
    one.unlink()
    with serving(public) as server:
        refused(
            source(server.address),
            tmp_path / "new.db",
            r"parts/[0-9a-f]{64}\.db\.xz: is missing on the server \(404\)$",
        )


def test_no_space(public: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(pulling.shutil, "disk_usage", lambda path: full)
    refused(source(public), tmp_path / "new.db", r"no space: .* need .*; nothing was merged$")


def test_too_large(public: Path, tmp_path: Path) -> None:
    refused(
        source(public),
        tmp_path / "new.db",
        r"the limit is 1\.0 MiB; nothing was merged",
        max_size_bytes=2**20,
    )


def test_a_slow_server_is_given_up(
    public: Path, serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(handler: Handler) -> bool:
        handler.drip(b"x" * 10**6)
        return True

    with serving(public, act) as server:
        asked = source(server.address)
        slow = Transfer(source=asked, silent_s=300, slowest_bytes_per_s=10**9)
        seconds = count(0, 100)  # from one look at the clock to the next
        monkeypatch.setattr(transfers, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
        with pytest.raises(Interrupted, match="is slower than"):  # after some of hours of dripping
            pull(asked, tmp_path / "new.db", transfer=slow)


def test_a_silent_server_is_given_up(public: Path, serving: Serving, tmp_path: Path) -> None:
    given_up = Event()

    def act(handler: Handler) -> bool:
        return given_up.wait(600)

    with serving(public, act) as server:
        asked = source(server.address)
        with pytest.raises(DataError, match="interrupted"):
            pull(asked, tmp_path / "new.db", transfer=Transfer(source=asked, silent_s=0.2))
        given_up.set()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ftp://host/x", "address is 'ftp://host/x', expected an address of file, http or https"),
        ("http:///x", "expected an address of a folder"),
        ("http://user:secret@host/", "expected an address without a user name"),
        ("file://host/x", "expected an address of a folder"),
        ("http://host/?x=1", "expected an address of a folder"),
    ],
)  # fmt: skip
def test_addresses(address: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        source(address)


def test_no_server(tmp_path: Path) -> None:
    refused(source("http://127.0.0.1:9/"), tmp_path / "new.db", "cannot be fetched|interrupted")


def test_one_at_a_time(public: Path, serving: Serving, tmp_path: Path) -> None:
    asked = source(public)
    asked.folder.mkdir(parents=True)
    with (asked.folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(asked, tmp_path / "new.db", "another process is pulling from it$")
