"""Merged rows know their merge; taking a merge back leaves the content as it was before."""

import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.store import Database, Sample, check_database, merge_databases
from kernelcast.store.export import Subset, export_database
from kernelcast.store.merges import revert_merge, stored_merges

SampleMaker = Callable[..., Sample]
SMALL = Path(__file__).parent.parent / "data" / "small.db"


def digest(path: Path) -> str:
    with Database.open(path, read_only=True) as database:
        return database.content_digest()


@pytest.fixture
def own(database: Database, make_sample: SampleMaker) -> Path:
    database.add_samples([make_sample(rows=rows) for rows in range(1, 5)])
    database.close()
    return database.path


def test_a_merge_is_taken_back_exactly(own: Path) -> None:
    before = digest(own)
    merged = merge_databases([SMALL], own)
    assert merged.content_digest != before
    [merge] = merged.merges
    assert (merge.signer, merge.into_own_runs) == ("", 0)
    assert merge.rows == sum(merged.added[0][1].values())
    with Database.open(own, read_only=True) as database:
        assert {sample.origin for sample in database.read_samples()} == {"", merge.id}
    reverted = revert_merge(own, merge.id[:8])
    assert reverted.content_digest == digest(own) == before
    assert reverted.removed == +merged.added[0][1]
    assert check_database(own) == []
    with pytest.raises(UsageError, match="0 merges start with"):
        revert_merge(own, merge.id)
    assert merge_databases([SMALL], own).content_digest == merged.content_digest


def test_what_two_merges_brought_stays_until_both_are_taken_back(own: Path, tmp_path: Path) -> None:
    part = tmp_path / "part.db"
    export_database(SMALL, part, Subset(operators=("gelu",)))
    for path in (first := shutil.copy(own, tmp_path / "a.db"), second := shutil.copy(own, tmp_path / "b.db")):
        merge_databases([part], path)
        merge_databases([SMALL], path)
    small, gelu = (one.id for one in sorted(stored(first), key=lambda one: -one.rows))
    only_part = merge_databases([part, own], tmp_path / "c.db").content_digest
    assert revert_merge(Path(first), small).content_digest == only_part
    assert revert_merge(Path(first), gelu).content_digest == digest(own)
    with_all = digest(Path(second))
    assert revert_merge(Path(second), gelu).content_digest == with_all
    assert revert_merge(Path(second), small).content_digest == digest(own)


def stored(path: Path) -> list[object]:
    with Database.open(path, read_only=True) as database:
        return stored_merges(database.connection)  # type: ignore[return-value]


def test_what_own_rows_refer_to_stays(own: Path, tmp_path: Path, make_sample: SampleMaker) -> None:
    # A device that came with a merge, and was measured on since.
    new = tmp_path / "new.db"
    shutil.copy(SMALL, tmp_path / "theirs.db")
    merge_databases([SMALL], new)
    with Database.open(new) as database:
        sample = next(database.samples_in_full())
        database.connection.execute(
            "DELETE FROM merged_row WHERE row_id = ?", (sample.id,)
        )  # own from now on
    [merge] = stored(new)
    reverted = revert_merge(new, merge.id)  # type: ignore[attr-defined]
    with Database.open(new, read_only=True) as database:
        assert [one.id for one in database.samples_in_full()] == [sample.id]
        assert [run.id for run in database.run_list()] == [sample.run_id]
    assert reverted.kept >= 4  # run, source, hardware, software
    assert check_database(new) == []


def test_samples_of_runs_that_were_measured_here_are_marked(
    own: Path, tmp_path: Path, make_sample: SampleMaker, database: Database
) -> None:
    theirs = tmp_path / "theirs.db"
    shutil.copy(own, theirs)
    with Database.open(theirs) as copy:
        copy.add_samples([make_sample(rows=9)])
    [merge] = merge_databases([theirs], own).merges
    assert (merge.rows, merge.into_own_runs) == (1, 1)


def test_future_dates_are_refused(own: Path, tmp_path: Path, make_sample: SampleMaker) -> None:
    theirs = tmp_path / "theirs.db"
    shutil.copy(own, theirs)
    with Database.open(theirs) as copy:
        copy.add_samples([replace(make_sample(rows=9), measured_at="2999-01-01T00:00:00Z")])
    [finding] = check_database(theirs)
    assert finding.endswith("measured_at is 2999-01-01T00:00:00.000Z, expected no future moment")
    before = digest(own)
    with pytest.raises(DataError, match="expected no future moment; nothing was stored"):
        merge_databases([theirs], own)
    assert digest(own) == before


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed")
def test_a_signed_file_is_merged_by_its_signer(own: Path, tmp_path: Path) -> None:
    theirs, key, signers = (
        Path(shutil.copy(SMALL, tmp_path / "theirs.db")),
        tmp_path / "key",
        tmp_path / "signers",
    )
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    signers.write_text(f"site-b {key.with_suffix('.pub').read_text()}")
    with pytest.raises(DataError, match="signature"):
        merge_databases([theirs], own, allowed_signers=signers)
    sign = ["ssh-keygen", "-q", "-Y", "sign", "-n", "kernelcast-database", "-f", str(key), str(theirs)]
    subprocess.run(sign, check=True)
    with pytest.raises(DataError, match="does not hold for site-c"):
        merge_databases([theirs], own, allowed_signers=signers, signer="site-c")
    with closing(sqlite3.connect(shutil.copy(theirs, tmp_path / "changed.db"))) as changed, changed:
        changed.execute("UPDATE sample SET time_us = 1 WHERE status = 'ok'")
    shutil.copy(tmp_path / "theirs.db.sig", tmp_path / "changed.db.sig")
    with pytest.raises(DataError, match="does not hold"):
        merge_databases([tmp_path / "changed.db"], own, allowed_signers=signers)
    assert stored(own) == []
    [merge] = merge_databases([theirs], own, allowed_signers=signers, signer="site-b").merges
    assert merge.signer == "site-b"
