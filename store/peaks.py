"""Published peaks of the devices in a database: a copy of kernelcast's table, to read rates by."""

import sqlite3

from kernelcast.runtime.hardware.devices import device_named


def write_peaks(connection: sqlite3.Connection) -> None:
    """Bring the peaks of the database's hardware up to this kernelcast's, in the caller's transaction."""
    if peaks_are_current(connection):
        return
    connection.executemany(
        "INSERT INTO device_peak VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET flops_per_s = excluded.flops_per_s,"
        " memory_bytes_per_s = excluded.memory_bytes_per_s, source = excluded.source",
        _expected(connection),
    )


def peaks_are_current(connection: sqlite3.Connection) -> bool:
    """Whether the database already has what this kernelcast would write."""
    return _expected(connection) <= set(connection.execute("SELECT * FROM device_peak"))


def _expected(connection: sqlite3.Connection) -> set[tuple[str, str, float, float, str]]:
    found = set()
    for (name,) in connection.execute("SELECT DISTINCT device_name FROM hardware WHERE kind <> 'cpu'"):
        if (device := device_named(name)) is not None:
            for dtype, rate in device.flops_per_s.items():
                found.add((name, dtype, float(rate), float(device.memory_bytes_per_s), device.source))
    return found
