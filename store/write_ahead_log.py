"""Two files of a database: -wal, whose transactions SQLite drops without a word where a page is damaged, and -journal,
an interrupted transaction, which SQLite undoes when the database is written.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from kernelcast.runtime.errors import DataError

# https://sqlite.org/fileformat2.html, section 4: a header, then frames of a header and a page each.
_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_MAGIC = (0x377F0682, 0x377F0683)  # checksums over little-endian and big-endian words
_FRAMES_AT_ONCE = 1000
_WRITER_S = 0.1  # a frame that is being written is complete by then

Words = npt.NDArray[np.uint32]


def check_log(path: Path, target: Path) -> None:
    """Refuse a database whose -wal file has transactions behind a damaged frame, which SQLite ignores.

    `path` is its name in messages, `target` where links lead. A DataError names the first damaged frame.
    """
    log = target.with_name(target.name + "-wal")
    if _damaged_frame(log) is None:
        return
    time.sleep(_WRITER_S)
    if (frame := _damaged_frame(log)) is not None:
        raise DataError(
            f"{path}: its log {log.name} is damaged at frame {frame} and transactions follow, expected none; "
            "opening it for writing drops them"
        )


def _damaged_frame(log: Path) -> int | None:
    """Number of the first frame that does not match its checksum, counted from 1 (0: the header); None without one.

    Frames of an earlier use of the file may follow, with another salt, and frames of a transaction that was given up
    and has no last frame. Both are no damage.
    """
    try:
        file = log.open("rb")
    except FileNotFoundError:
        return None
    with file:
        header = file.read(_HEADER_BYTES)
        if len(header) < _HEADER_BYTES:
            return None
        words = np.frombuffer(header, ">u4").astype(np.uint32)
        order = ">u4" if words[0] & 1 else "<u4"
        page_bytes = int(words[2])
        sums = _sums(np.frombuffer(header[:24], order)[None], np.zeros(2, np.uint32))[0]
        damaged = None if words[0] in _MAGIC and (sums == words[6:8]).all() else 0
        if page_bytes not in (1 << power for power in range(9, 17)):
            return 0
        first = 1
        for frames in _frames(file, _FRAME_HEADER_BYTES + page_bytes):
            heads = frames[:, :_FRAME_HEADER_BYTES].copy().view(">u4").astype(np.uint32)
            salts = heads[:, 2:4] == words[4:6]
            ends = salts.any(axis=1) & (heads[:, 1] > 0)  # one of both may be what is damaged
            if damaged is None:
                checked = np.delete(frames, range(8, _FRAME_HEADER_BYTES), axis=1)
                checked = np.ascontiguousarray(checked).view(order)
                found = _sums(checked, sums)
                if (wrong := ~salts.all(axis=1) | (found != heads[:, 4:6]).any(axis=1)).any():
                    damaged = first + int(wrong.argmax())
                    ends = ends[wrong.argmax() :]
                sums = found[-1]
            if damaged is not None and ends.any():
                return damaged
            first += len(frames)
    return 0 if damaged == 0 else None


def _frames(file: BinaryIO, frame_bytes: int) -> Iterator[npt.NDArray[np.uint8]]:
    """All whole frames, some at a time, [frames, bytes]."""
    while whole := len(content := file.read(frame_bytes * _FRAMES_AT_ONCE)) // frame_bytes:
        yield np.frombuffer(content[: whole * frame_bytes], np.uint8).reshape(whole, frame_bytes)


def _sums(words: npt.NDArray[Any], before: Words) -> Words:
    """The checksum after each row of words, [rows, 2], that goes on from the checksum `before`.

    s0 += x0 + s1; s1 += x1 + s0 for each pair of words, modulo 2^32: a linear map, so that a row adds a product with
    Fibonacci numbers to a power of the map.
    """
    pairs = words.shape[1] // 2
    powers = np.empty((pairs + 1, 2, 2), np.uint32)  # of the map of one pair
    powers[0], step = np.eye(2, dtype=np.uint32), np.array([[1, 1], [1, 2]], np.uint32)
    for power in range(pairs):
        powers[power + 1] = powers[power] @ step
    even, odd = words[:, 0::2].astype(np.uint32), words[:, 1::2].astype(np.uint32)
    added = np.stack([even, even + odd], axis=2)  # what a pair adds to both sums
    rows = np.einsum("pij,rpj->ri", powers[:pairs][::-1], added)
    found = np.empty((len(words), 2), np.uint32)
    for number, row in enumerate(rows):
        before = found[number] = powers[pairs] @ before + row
    return found


# https://sqlite.org/fileformat2.html, section 3: a super-journal's name stands at the end, before the same eight bytes.
_ROLLBACK_MAGIC = bytes.fromhex("d9d505f920a163d7")


def check_journal(path: Path, target: Path, *, read_only: bool) -> None:
    """Refuse a database whose journal cannot be undone, or not safely: for reading, or since it names another file.

    SQLite deletes a super-journal that a journal names, whatever that file is. kernelcast never writes such a name.
    `path` is the database's name in messages, `target` where links lead. A DataError names the journal.
    """
    journal = target.with_name(target.name + "-journal")
    try:
        with journal.open("rb") as file:
            is_finished = file.read(1) in (b"", b"\0")
            file.seek(-min(len(_ROLLBACK_MAGIC), file.seek(0, os.SEEK_END)), os.SEEK_END)
            names_another = file.read() == _ROLLBACK_MAGIC
    except FileNotFoundError:
        return
    if is_finished:  # and kept
        return
    if names_another:
        raise DataError(
            f"{path}: its journal {journal.name} names another file, which SQLite would delete, "
            "expected a transaction of this database alone"
        )
    if read_only:
        raise DataError(
            f"{path}: a transaction was interrupted ({journal.name}), expected none; opening it for writing undoes it"
        )
