"""Version 3 of the schema: operators are laws that are called in roles; `tp` and `layers` replace `mp` and `encoders`.

Frozen as of then. Every row keeps its meaning and gets the id that it would have if it were stored in version 3, so
migrated databases merge without duplicates, and importing the same file again adds nothing. Recorded digests of bundles
and training sets stay. A row whose old id does not match its content keeps that id, for `db check` to report.
"""

import sqlite3
from collections.abc import Mapping
from typing import Any

from kernelcast.runtime.bundle.fingerprint import canonical_json
from kernelcast.store.canonical import record_digest
from kernelcast.store.rows import JSON_COLUMNS, Row, insert, json_value, rows, stored_value
from kernelcast.store.sample_rows import meaning_digest, stored_samples
from kernelcast.store.schema import definitions

OPERATORS: Mapping[str, tuple[str, str]] = {
    "qkv_linear": ("gemm", "qkv"),
    "attention_output_linear": ("gemm", "attention_output"),
    "mlp_up_linear": ("gemm", "mlp_up"),
    "mlp_gate_up_linear": ("gemm", "mlp_gate_up"),
    "mlp_down_linear": ("gemm", "mlp_down"),
    "logits_linear": ("gemm", "logits"),
    "attention_scores": ("batched_gemm", "attention_scores"),
    "attention_values": ("batched_gemm", "attention_values"),
    "rope": ("rope", ""),
    "grouped_rope": ("rope", ""),
    "flash_attention": ("flash_attention", ""),
    "grouped_flash_attention": ("flash_attention", ""),
    "mp_all_reduce": ("all_reduce", "tensor"),
    "mp_all_gather": ("all_gather", "tensor"),
    "mp_reduce_scatter": ("reduce_scatter", "tensor"),
    "dp_all_reduce": ("all_reduce", "data"),
    "dp_all_gather": ("all_gather", "data"),
    "dp_reduce_scatter": ("reduce_scatter", "data"),
    "pp_p2p": ("point_to_point", "pipeline"),
    "ep_all_to_all": ("all_to_all", "expert"),
    "optimizer_first_stage": ("adam", "first_stage"),
    "optimizer_middle_stage": ("adam", "middle_stage"),
    "optimizer_last_stage": ("adam", "last_stage"),
}
"""Operators of version 2 with another name or vector in version 3: name → operator and role."""

_FEATURES = {
    "rope": '{"b":"samples","l":"tokens","heads":"heads","kv_heads":"heads","head_size":"elements"}',
    "flash_attention": '{"b":"samples","l":"tokens","heads":"heads","kv_heads":"heads","head_size":"elements"}',
    "batched_gemm": '{"batch":"heads","m":"rows","k":"columns in","n":"columns out"}',
    "adam": '{"parameters":"elements","layers":"layers"}',
}

_SAMPLE = """\
CREATE TABLE sample_3 ( -- One measurement of an operator at a workload. A failure is a row with a reason and no time.
    number INTEGER PRIMARY KEY, -- row number in this file; flag, repetition and kernel link to it
    id TEXT NOT NULL UNIQUE CHECK (length(id) = 32), -- digest of the other columns, flags, repetitions and kernels
    run_id TEXT NOT NULL REFERENCES run (id), -- measured by
    operator TEXT NOT NULL REFERENCES operator (name), -- what was measured
    role TEXT NOT NULL, -- why a step calls it (operator.roles), such as qkv; empty for no particular reason
    direction TEXT NOT NULL, -- which of its times; backward of a linear is the sum of its two gradients
    dtype TEXT NOT NULL, -- element type, torch's name (float32, bfloat16, ...)
    variant TEXT NOT NULL, -- how it was called, where there are several ways, such as in-place; else empty
    vector TEXT NOT NULL, -- workload vector, JSON list in the order of operator.features
    status TEXT NOT NULL CHECK (status IN ('ok', 'failed', 'unsupported')), -- ok: has a time
    reason TEXT NOT NULL, -- why there is no time; empty when ok
    time_us REAL, -- microseconds: mean of the middle five of the first ten repetitions, or what `statistic` says
    quiet_us REAL, -- microseconds: 10th percentile over all repetitions; NULL where repetitions are not known
    spread REAL, -- no unit: (90th - 10th percentile) / median over all repetitions; NULL where they are not known
    statistic TEXT NOT NULL, -- how time_us was computed: "middle five of ten", or as an import states
    repetition_count INTEGER NOT NULL, -- repetitions behind the times; 0 where unknown
    flops REAL, -- floating-point operations of one execution
    moved_bytes REAL, -- bytes read and written by one execution (collectives: bytes that one process puts in)
    reference_us REAL, -- microseconds of a short fixed kernel timed with it: how disturbed the machine was
    measured_at TEXT, -- UTC; NULL where an imported file has no date
    CHECK (direction IN ('forward', 'backward', 'input_gradient', 'weight_gradient', 'once')),
    CHECK ((status = 'ok') = (time_us IS NOT NULL)),
    CHECK ((status = 'ok') = (reason = ''))
) STRICT
"""


def upgrade(connection: sqlite3.Connection) -> None:
    """Bring a database of version 2 here, in the caller's transaction; memory does not grow with the database."""
    for name, statement in definitions("table", "operator", "predictor").items():
        connection.execute(statement.replace(name, f"{name}_3", 1))
    connection.execute(_SAMPLE)
    connection.execute("ALTER TABLE step RENAME COLUMN mp TO tp")
    _move_operators(connection)
    _move_samples(connection)
    for row in rows(connection, "SELECT * FROM predictor ORDER BY rowid"):
        old = _meaning(row)
        operator, role = OPERATORS.get(old["operator"], (old["operator"], ""))
        new = {**old, "operator": operator, "role": role}
        insert(connection, "predictor_3", {"id": _new_id("predictor", row["id"], old, new), **new})
    for row in rows(connection, "SELECT * FROM step ORDER BY rowid"):
        _change_step(connection, row)
    for table in ("operator", "sample", "predictor"):
        connection.execute(f"DROP TABLE {table}")
        connection.execute(f"ALTER TABLE {table}_3 RENAME TO {table}")
    for statement in definitions("index", "sample", "predictor").values():
        connection.execute(statement)


def _move_operators(connection: sqlite3.Connection) -> None:
    moved: dict[str, Row] = {}
    for old in rows(connection, "SELECT * FROM operator ORDER BY rowid"):
        name, role = OPERATORS.get(old["name"], (old["name"], ""))
        features = _FEATURES.get(name, old["features"])
        row = moved.setdefault(name, {**old, "name": name, "features": features, "roles": {}})
        row["roles"][role] = row["roles"].get(role) or old["paper_name"]
    connection.executemany(
        "INSERT INTO operator_3 VALUES (:name, :title, :class, :directions, :features, :roles)",
        [{**row, "roles": canonical_json(row["roles"])} for row in moved.values()],
    )


def _move_samples(connection: sqlite3.Connection) -> None:
    columns = ", ".join(
        name for (name,) in connection.execute("SELECT name FROM pragma_table_info('sample')")
    )
    old_names = ", ".join(f"'{name}'" for name in OPERATORS)
    connection.execute(
        f"INSERT INTO sample_3 ({columns}, role) SELECT {columns}, '' FROM sample WHERE operator NOT IN ({old_names})"
    )
    # nccl-tests times a collective, whichever group will call it: version 2 stored each row once per group.
    numbers = connection.execute(
        "SELECT number, run.command = 'import nccl-tests' FROM sample LEFT JOIN run ON run.id = sample.run_id"
        f" WHERE operator IN ({old_names}) ORDER BY number"
    )
    for number, has_no_role in numbers:
        [stored] = stored_samples(connection, "number = ?", [number])
        old = {**stored.columns, "vector": _value(stored.columns, "vector")}
        operator, role = OPERATORS[old["operator"]]
        new = {**old, "operator": operator, "role": "" if has_no_role else role}
        new["vector"] = _vector(operator, old["vector"])
        is_sound = meaning_digest(old, stored) == stored.id
        new_id = meaning_digest(new, stored) if is_sound else stored.id
        if insert(connection, "sample_3", {"number": number, "id": new_id, **new}) is None:
            for table in (
                "kernel",
                "repetition",
                "sample_flag",
            ):  # equal to another row in all but its old name
                connection.execute(f"DELETE FROM {table} WHERE sample_number = ?", (number,))


def _vector(operator: str, vector: Any) -> Any:
    if operator in ("rope", "flash_attention") and isinstance(vector, list) and len(vector) == 4:
        b, length, heads, head_size = vector
        return [b, length, heads, heads, head_size]
    return vector


def _change_step(connection: sqlite3.Connection, row: Row) -> None:
    new = _meaning(row)
    old = {**new, "tp": None, "mp": new["tp"]}
    renamed = {"encoders": "layers", "encoder_counts": "layer_counts"}
    for column in ("model", "options"):
        if isinstance(new[column], dict):
            new[column] = {renamed.get(name, name): value for name, value in new[column].items()}
    new["components_s"] = _components(new["components_s"])
    new_id = _update(connection, "step", row["id"], old, new)
    for prediction in list(rows(connection, "SELECT * FROM prediction WHERE step_id = ?", [row["id"]])):
        said = _meaning(prediction)
        _update(connection, "prediction", prediction["id"], said, {**said, "step_id": new_id})


def _components(value: Any) -> Any:
    """Parts of a traced step: `operator qkv_linear forward` becomes `operator gemm/qkv forward`."""
    if not isinstance(value, dict) or not all(isinstance(seconds, float) for seconds in value.values()):
        return value
    found: dict[str, float] = {}
    for name, seconds in value.items():
        kind, _, rest = name.partition(" ")
        operator, _, direction = rest.rpartition(" ")
        if kind == "operator" and operator in OPERATORS:
            name = f"operator {'/'.join(filter(None, OPERATORS[operator]))} {direction}"
        found[name] = round(found.get(name, 0.0) + seconds, 9)  # as times are stored
    return found


def _meaning(row: Row) -> Row:
    """The values that the id of a row is the digest of."""
    values = {name: _value(row, name) for name in row if name not in ("id", "model_name")}
    return values | ({"recomputation": bool(row["recomputation"])} if "recomputation" in row else {})


def _value(row: Row, column: str) -> Any:
    """A column's value, parsed where it is JSON in the stored form."""
    try:
        return json_value(column, row[column]) if column in JSON_COLUMNS else row[column]
    except ValueError:
        return row[column]


def _new_id(record: str, old_id: str, old: Row, new: Row) -> str:
    return record_digest(record, new) if record_digest(record, old) == old_id else old_id


def _update(connection: sqlite3.Connection, table: str, old_id: str, old: Row, new: Row) -> str:
    new_id = _new_id(table, old_id, old, new)
    changes = {name: stored_value(value) for name, value in new.items()} | {"id": new_id}
    assignments = ", ".join(f"{name} = ?" for name in changes)
    connection.execute(f"UPDATE {table} SET {assignments} WHERE id = ?", [*changes.values(), old_id])
    return new_id
