"""Version 2 to 3: operators become laws with roles, and every row keeps its meaning.

schemas/version_2.db was written by the code of version 2: tests/data/small.db of then (measured, see
docs/small_database.py) merged with made-up rows of everything that changes: every operator with flags, repetitions,
kernels and failures, steps with predictions, regressors, a trace, and imports of tests/data/importers.
"""

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.store import Database, check_database, merge_databases
from kernelcast.store.importers import (
    read_csv_files,
    read_estimate_train_time,
    read_nccl_tests,
    store_parsed,
)

VERSION_2 = Path(__file__).parent / "schemas" / "version_2.db"
MADE = Path(__file__).resolve().parents[1] / "data" / "importers"

# What every operator of version 2 is called since. What is not listed kept its name.
RENAMED = {
    "qkv_linear": ("gemm", "qkv"), "attention_output_linear": ("gemm", "attention_output"),
    "mlp_up_linear": ("gemm", "mlp_up"), "mlp_gate_up_linear": ("gemm", "mlp_gate_up"),
    "mlp_down_linear": ("gemm", "mlp_down"), "logits_linear": ("gemm", "logits"),
    "attention_scores": ("batched_gemm", "attention_scores"),
    "attention_values": ("batched_gemm", "attention_values"),
    "grouped_rope": ("rope", ""), "grouped_flash_attention": ("flash_attention", ""),
    "mp_all_reduce": ("all_reduce", "tensor"), "dp_all_reduce": ("all_reduce", "data"),
    "mp_all_gather": ("all_gather", "tensor"), "dp_all_gather": ("all_gather", "data"),
    "mp_reduce_scatter": ("reduce_scatter", "tensor"), "dp_reduce_scatter": ("reduce_scatter", "data"),
    "pp_p2p": ("point_to_point", "pipeline"), "ep_all_to_all": ("all_to_all", "expert"),
    "optimizer_first_stage": ("adam", "first_stage"), "optimizer_middle_stage": ("adam", "middle_stage"),
    "optimizer_last_stage": ("adam", "last_stage"),
}  # fmt: skip

SAMPLES = """
    SELECT sample.*, run.command, (SELECT json_group_array(json_array(flag, detail)) FROM
        (SELECT * FROM sample_flag WHERE sample_number = number ORDER BY flag)) AS flags,
    (SELECT json_group_array(json_array(repetition_index, r.time_us, r.start_us, (
        SELECT json_group_array(json_array(sequence, name, k.start_us, duration_us, stream)) FROM
        (SELECT * FROM kernel WHERE sample_number = number AND repetition_index = r.repetition_index
            ORDER BY sequence) AS k JOIN kernel_name ON kernel_name.number = k.name_number
    ))) FROM (SELECT * FROM repetition WHERE sample_number = number ORDER BY repetition_index) AS r) AS repetitions
    FROM sample JOIN run ON run.id = sample.run_id
"""


def rows(path: Path, sql: str) -> list[dict[str, Any]]:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    found = [dict(row) for row in connection.execute(sql)]
    connection.close()
    return found


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copy(VERSION_2, tmp_path / "old.db"))


@pytest.fixture
def migrated(tmp_path: Path) -> Path:
    path = Path(shutil.copy(VERSION_2, tmp_path / "migrated.db"))
    Database.open(path).close()
    return path


LATER = {"load", "clock_mhz", "power_w", "temperature_c"}  # columns of version 4


def comparable(row: dict[str, Any]) -> str:
    return json.dumps(
        {name: value for name, value in row.items() if name not in ("id", "number", *LATER)}, sort_keys=True
    )


def expected(row: dict[str, Any]) -> dict[str, Any]:
    operator, role = RENAMED.get(row["operator"], (row["operator"], ""))
    vector = json.loads(row["vector"])
    if row["operator"] in ("rope", "flash_attention"):
        vector = [*vector[:3], vector[2], vector[3]]
    if row["command"] == "import nccl-tests":
        role = ""  # was stored once per group
    return {**row, "operator": operator, "role": role, "vector": json.dumps(vector, separators=(",", ":"))}


def test_every_sample_keeps_its_meaning(migrated: Path) -> None:
    before = [expected(row) for row in rows(VERSION_2, SAMPLES)]
    # Every role that such a database could have.
    found = {(row["operator"], row["role"]) for row in before}
    paper = {
        (row.name, role.name)
        for row in OPERATORS.values()
        for role in row.roles.values()
        if role.paper_name and not row.dtype
    }
    assert paper <= found
    assert len(found) == 40
    counts = Counter(map(comparable, before))
    # Equal in everything: rows of nccl-tests, and a rotary embedding stored as grouped and as not grouped.
    assert sum(counts.values()) - len(counts) == 9
    assert Counter(map(comparable, rows(migrated, SAMPLES))) == Counter(counts.keys())


def test_every_id_is_that_of_its_row(migrated: Path) -> None:
    assert check_database(migrated) == []
    with Database.open(migrated, read_only=True) as database:
        assert all(sample.id for sample in database.samples_in_full())
        unchanged = {
            "hardware",
            "fabric",
            "software",
            "source",
            "run",
            "run_note",
            "trace",
            "unrecognised_kernel",
        }
        for table in unchanged:
            assert rows(migrated, f"SELECT * FROM {table} ORDER BY id") == rows(
                VERSION_2, f"SELECT * FROM {table} ORDER BY id"
            )


def test_regressors_keep_their_operator_as_law_and_role(migrated: Path) -> None:
    def regressors(path: Path) -> Counter[str]:
        found = rows(path, "SELECT * FROM predictor")
        names = [RENAMED.get(row["operator"], (row["operator"], row.get("role", ""))) for row in found]
        return Counter(
            comparable({**row, "operator": operator, "role": role})
            for row, (operator, role) in zip(found, names, strict=True)
        )

    assert regressors(migrated) == regressors(VERSION_2)
    with Database.open(migrated, read_only=True) as database:
        assert ("gemm", "qkv", Direction.BACKWARD) in {
            (one.operator, one.role, one.direction) for one in database.predictor_list()
        }


def test_steps_and_predictions_keep_their_times(migrated: Path) -> None:
    with Database.open(migrated, read_only=True) as database:
        steps = {step.reference_us or step.reason or step.min_s: step for step in database.step_list()}
        step = steps[40.0]
        assert (step.pp, step.tp, step.dp, step.repetitions_s) == (2, 2, 1, (0.5, 0.55, 0.6))
        assert (step.model["layers"], "encoders" in step.model) == (3, False)
        assert (step.options["layer_counts"], "encoder_counts" in step.options) == ([2, 1], False)
        assert step.components_s == {
            "Encoder_Fwd": 0.02,
            "MP_Allreduce": 0.001,
            "operator gemm/qkv forward": 0.01,
            "operator rope forward": 0.003,  # grouped and not grouped
            "operator gelu backward": 0.003,
            "operator adam/last_stage once": 0.004,
            "kernel aten::add qkv_linear forward": 0.005,
        }
        predictions = [one for one in database.prediction_list() if one.step_id == step.id]
        assert {(p.timeline, p.predicted_s, p.low_s, p.high_s) for p in predictions} == {
            ("closed form", 0.58, 0.5, 0.7),
            ("schedule", 0.58, 0.5, 0.7),
        }
        assert steps["out of memory"].model == {"name": "big-gpt", "layers": 96}
        accuracy = database.query("SELECT tp, error_percent FROM step_accuracy WHERE model = 'small-gpt'")
        assert accuracy == [{"tp": 2, "error_percent": 16.0}] * 2


def test_old_and_migrated_copies_merge_without_duplicates(old: Path, migrated: Path, tmp_path: Path) -> None:
    before = old.read_bytes()
    with Database.open(migrated, read_only=True) as database:
        digest, counts = database.content_digest(), database.row_counts()
    for sources in ([old, migrated], [migrated, old]):
        into = tmp_path / f"{sources[0].stem}_first.db"
        assert merge_databases(sources, into).content_digest == digest
        with Database.open(into, read_only=True) as database:
            assert database.row_counts() == counts
    assert old.read_bytes() == before
    assert merge_databases([migrated], old).content_digest == digest  # migrated on the way
    assert merge_databases([VERSION_2], migrated).content_digest == digest


OLD_CSV = """\
# kernelcast.csv/1
operator,direction,mp,b,l,d,h,v,m,k,n,entries,nodes,gpus_per_node,time_us,repetitions_us,x_job
qkv_linear,forward,2,4,2048,4096,32,,,,,,,,412.5,,17
qkv_linear,backward,,,,,,,8192,4096,6144,,,,830.1,,17
layer_norm,forward,,4,2048,4096,,,,,,,,,96.4,,17
cross_entropy,forward,2,4,2048,,,50432,,,,,,,702.9,,18
gelu,forward,2,4,2048,4096,,,,,,,,,,88.0;87.0;86.5;86.0;90.0;86.2;86.1;86.3;86.4;86.6,18
mp_all_reduce,,,,,,,,,,,33554432,1,2,611.2,,19
"""


def test_what_was_imported_before_is_there_already(migrated: Path, tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text(OLD_CSV)
    shutil.copy(MADE / "times.toml", tmp_path)
    with Database.open(migrated) as database:
        for parsed, added, samples in (
            # All-to-alls had no operator then.
            (read_nccl_tests([MADE / "two_nodes.log"]), 2, 10),
            (read_estimate_train_time([MADE / "Example"]), 0, 20),
            (read_csv_files([tmp_path / "times.csv"]), 0, 6),
        ):
            imported = store_parsed(database, parsed)
            assert (imported.added, imported.already_there) == (added, samples)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("UPDATE sample SET time_us = 1.0 WHERE operator = 'qkv_linear' AND status = 'ok'", "sample"),
        ("UPDATE sample SET vector = '[1]' WHERE operator = 'flash_attention'", "sample"),
        ("UPDATE sample SET vector = '7' WHERE operator = 'rope'", "sample"),
        ("UPDATE sample SET vector = '" + "[" * 100_000 + "' WHERE operator = 'rope'", "sample"),
        ("UPDATE kernel SET duration_us = 9.0", "sample"),
        ("UPDATE sample_flag SET detail = 'nothing'", "sample"),
        ("UPDATE step SET min_s = 0.1 WHERE status = 'ok'", "step"),
        ("UPDATE step SET model = '[]'", "step"),
        ("UPDATE step SET components_s = 'none'", "step"),
        ("UPDATE prediction SET predicted_s = 0.1", "prediction"),
        ("UPDATE predictor SET hyperparameters = '{\"a\": NaN}'", "predictor"),
        ("UPDATE predictor SET validation_error = 0.0", "predictor"),
    ],
)
def test_a_row_that_did_not_match_its_id_is_not_made_sound(
    old: Path, tmp_path: Path, change: str, where: str
) -> None:
    connection = sqlite3.connect(old)
    with connection:
        connection.execute(change)
    connection.close()
    with pytest.raises(DataError, match=rf"old\.db: {where} ") as caught:
        merge_databases([old], tmp_path / "new.db")
    assert "\n" not in str(caught.value)
    Database.open(old).close()
    assert {finding.partition(" ")[0].rstrip(":") for finding in check_database(old)} == {where}


def test_operators_that_another_kernelcast_knows_stay(old: Path) -> None:
    connection = sqlite3.connect(old)
    with connection:
        connection.execute(
            "INSERT INTO operator VALUES ('later', 'Later', 'invented', 'compute-bound', '', '[]', '{}')"
        )
    connection.close()
    with Database.open(old) as database:
        names = {row["name"]: row for row in database.query("SELECT * FROM operator")}
        assert names.keys() == {*OPERATORS, "later"}
        assert (names["later"]["title"], names["later"]["roles"]) == ("invented", '{"":"Later"}')


KILLED = """
import os, signal, sqlite3, sys
from kernelcast.store.migrations import migrate
class Connection(sqlite3.Connection):
    def execute(self, sql, *parameters):
        if sql.startswith("ALTER TABLE predictor_3"):  # samples, steps and predictions are written
            os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(sql, *parameters)
connection = sqlite3.connect(sys.argv[1], isolation_level=None, factory=Connection)
connection.execute("PRAGMA journal_mode = WAL")
connection.execute("PRAGMA cache_size = 10")
migrate(connection)
"""


def test_a_killed_migration_can_be_repeated(old: Path, migrated: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(old)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert old.with_name("old.db-wal").stat().st_size > 100_000
    assert {row["name"] for row in rows(old, "SELECT name FROM operator")} >= set(RENAMED)
    with Database.open(old) as database, Database.open(migrated) as other:
        assert database.content_digest() == other.content_digest()
