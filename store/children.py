"""Flags, repetitions and kernels of samples, written in large batches: nearly every row is one of these."""

import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

_ROWS_AT_ONCE = 50_000

_ADD_REPETITION = (
    "INSERT INTO repetition (sample_number, repetition_index, time_us, start_us) VALUES (?, ?, ?, ?)"
)
_ADD_FLAG = "INSERT INTO sample_flag (sample_number, flag, detail) VALUES (?, ?, ?)"
_ADD_KERNEL = (
    "INSERT INTO kernel"
    " (sample_number, repetition_index, sequence, name_number, start_us, duration_us, stream)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)


class KernelRow(NamedTuple):
    """A kernel as the database stores it; its place in the list is its sequence. Times in µs."""

    name: str
    start_us: float
    duration_us: float
    stream: int


class ChildRows:
    """Collects rows and writes them in batches, in the caller's transaction; end with `flush`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._name_numbers: dict[str, int] = {}
        self._repetitions: list[tuple[Any, ...]] = []
        self._kernels: list[tuple[Any, ...]] = []
        self._flags: list[tuple[Any, ...]] = []

    def add_flags(self, sample_number: int, flags: Sequence[tuple[str, str]]) -> None:
        """Add a sample's flags with their details."""
        self._flags.extend((sample_number, flag, detail) for flag, detail in flags)

    def add(
        self,
        sample_number: int,
        repetition_index: int,
        time_us: float,
        start_us: float,
        kernels: list[KernelRow],
    ) -> None:
        """Add one repetition and its kernels, in order of start."""
        self._repetitions.append((sample_number, repetition_index, time_us, start_us))
        number = self._name_number
        self._kernels.extend(
            (sample_number, repetition_index, sequence, number(name), kernel_start_us, duration_us, stream)
            for sequence, (name, kernel_start_us, duration_us, stream) in enumerate(kernels)
        )
        if len(self._kernels) + len(self._repetitions) >= _ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write what is still waiting."""
        self._connection.executemany(_ADD_REPETITION, self._repetitions)
        self._connection.executemany(_ADD_KERNEL, self._kernels)
        self._connection.executemany(_ADD_FLAG, self._flags)
        self._repetitions.clear()
        self._kernels.clear()
        self._flags.clear()

    def _name_number(self, name: str) -> int:
        """The number of a kernel's name, looked up or given once per transaction."""
        known = self._name_numbers.get(name)
        if known is not None:
            return known
        self._connection.execute(
            "INSERT INTO kernel_name (name) VALUES (?) ON CONFLICT (name) DO NOTHING", (name,)
        )
        found = self._connection.execute("SELECT number FROM kernel_name WHERE name = ?", (name,)).fetchone()
        self._name_numbers[name] = int(found[0])
        return self._name_numbers[name]
