"""Version 4 of the schema: a sample has the load of its device, and clock, power and temperature as they were read.

Frozen as of then. Ids of samples that state nothing of it stay as they were. Imports of aiconfigurator's tables had a
flag `burst`, with how few repetitions there were and, in some, the power: load and power become columns, the number of
repetitions part of `statistic`. Those samples get the id that importing them again gives.
"""

import re
import sqlite3

from kernelcast.store.rows import Row, json_value, stored_value
from kernelcast.store.sample_rows import meaning_digest, stored_samples

_COLUMNS = (
    "load TEXT NOT NULL DEFAULT '' CHECK (load IN ('', 'burst', 'sustained'))",
    "clock_mhz REAL",
    "power_w REAL",
    "temperature_c REAL",
)
_FLAG = "burst"
# Such as `6 replays of a CUDA graph after 3 warm-ups, at 687.5 of 700 W`; power and its limit may be absent.
_DETAIL = re.compile(
    r"(?P<repetitions>\d+ replays? of .*?)(, at (?P<power>[\d.]+)( of (?P<limit>[\d.]+))? W)?"
)


def upgrade(connection: sqlite3.Connection) -> None:
    """Bring a database of version 3 here, in the caller's transaction; memory does not grow with the database."""
    for column in _COLUMNS:
        connection.execute(f"ALTER TABLE sample ADD COLUMN {column}")
    flagged = connection.execute(
        "SELECT sample_number, detail FROM sample_flag WHERE flag = ? ORDER BY sample_number", (_FLAG,)
    ).fetchall()
    for number, detail in flagged:
        _state_load(connection, number, detail)


def _state_load(connection: sqlite3.Connection, number: int, detail: str) -> None:
    read = _DETAIL.fullmatch(detail)
    [stored] = stored_samples(connection, "number = ?", [number])
    old = {**stored.columns, "vector": json_value("vector", stored.columns["vector"])}
    if (
        read is None
        or not old["statistic"].startswith("mean of ")
        or meaning_digest(old, stored) != stored.id
    ):
        return
    limit = f", power limit {read['limit']} W" if read["limit"] else ""
    new: Row = {**old, "load": _FLAG, "statistic": f"mean of {read['repetitions']}{limit}"}
    if read["power"]:
        new["power_w"] = float(read["power"])
    stored.flags.remove((_FLAG, detail))
    new_id = meaning_digest(new, stored)
    connection.execute("DELETE FROM sample_flag WHERE sample_number = ? AND flag = ?", (number, _FLAG))
    changes = {"id": new_id, **{name: new[name] for name in ("load", "statistic", "power_w")}}
    connection.execute(
        f"UPDATE sample SET {', '.join(f'{name} = ?' for name in changes)} WHERE number = ?",
        [*map(stored_value, changes.values()), number],
    )
