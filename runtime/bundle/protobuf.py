"""Reading protocol buffers' wire format, as far as ONNX graphs need it. Nothing unknown is skipped: it is refused.

Format: https://protobuf.dev/programming-guides/encoding/. A reader that skips what it does not know sees another
message than ONNX Runtime does. So every field has to be known, and one that holds a single value stands once.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.errors import DataError

_VARINT, _BYTES, _FLOAT = 0, 2, 5
_MOST_VARINT_BYTES = 10
_MOST_WORDS = 16

NUMBER, TEXT, NUMBERS, FLOATS, TEXTS, ONE_FLOAT = "number", "text", "numbers", "floats", "texts", "float"
WORDS = "words"
"""Kinds of field: one integer, one text or message, many of them, one float32, many texts of few kinds."""

_WIRE = {NUMBER: _VARINT, NUMBERS: _VARINT, FLOATS: _FLOAT, ONE_FLOAT: _FLOAT}
_WIRE |= dict.fromkeys((TEXT, TEXTS, WORDS), _BYTES)


class Words(NamedTuple):
    """Many texts, each by its place among the distinct ones: uint8 [n]."""

    places: NDArray[np.uint8]
    texts: list[bytes]


def read_message(message: bytes, known: Mapping[int, tuple[str, str]], where: str) -> dict[str, Any]:
    """The fields of a message by name; `known` maps field numbers to (name, kind). Absent fields are left out.

    Integers are int64; NUMBERS are int64 [n], FLOATS float32 [n], TEXTS lists of bytes, WORDS `Words`.

    Raises:
        DataError: the message is cut, or has another field or type than `known`; begins with `where`.
    """
    found: dict[str, Any] = {}
    position = 0
    while position < len(message):
        start = position
        tag, position = _varint(message, position, where)
        name, kind = known.get(tag >> 3, ("", ""))
        if not name or _WIRE[kind] != tag & 7:
            raise DataError(f"{where} has field {tag >> 3} of wire type {tag & 7}, which no bundle needs")
        if kind == TEXTS:
            values, position = _texts(message, position, tag, where)
            found.setdefault(name, []).extend(values)
            continue
        if name in found:
            raise DataError(f"{where} has its {name} twice")
        if kind == NUMBER:
            unsigned, position = _varint(message, position, where)
            found[name] = unsigned - (1 << 64) if unsigned >> 63 else unsigned
        elif kind == TEXT:
            found[name], position = _text(message, position, where)
        elif kind == NUMBERS:
            found[name], position = _numbers(message, start, tag, where)
        elif kind == WORDS:
            found[name], position = _words(message, start, tag, where)
        else:
            found[name], position = _floats(message, start, tag, where)
            if kind == ONE_FLOAT and len(found[name]) != 1:
                raise DataError(f"{where} has its {name} twice")
    return found


def _varint(message: bytes, position: int, where: str) -> tuple[int, int]:
    if position < len(message) and (value := message[position]) < 0x80:
        return value, position + 1
    value = 0
    for count, byte in enumerate(message[position : position + _MOST_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value & ((1 << 64) - 1), position + count + 1
    raise DataError(f"{where} is cut or damaged at byte {position}")


def _text(message: bytes, position: int, where: str) -> tuple[bytes, int]:
    size, position = _varint(message, position, where)
    if size > len(message) - position:
        raise DataError(f"{where} is cut or damaged at byte {position}")
    return message[position : position + size], position + size


def _texts(message: bytes, position: int, tag: int, where: str) -> tuple[list[bytes], int]:
    """A text, and those that follow it after tags of one byte."""
    first, position = _text(message, position, where)
    found = [first]
    while tag < 0x80 and position + 1 < len(message) and message[position] == tag:
        one, position = _text(message, position + 1, where)
        found.append(one)
    return found, position


def _words(message: bytes, start: int, tag: int, where: str) -> tuple[Words, int]:
    """All texts of a field that stand one after the other: trees have ten thousands of them, of three kinds."""
    texts, records, end = list[bytes](), list[bytes](), start
    while end < len(message) and message[end] == tag:
        text, after = _text(message, end + 1, where)
        texts.append(text)
        records.append(message[end:after])
        if tag in records[-1][1:] or len(records) > _MOST_WORDS:
            raise DataError(f"{where} has texts that no bundle needs, {text[:40]!r} among them")
        run = re.compile(b"(?:%b)*" % b"|".join(map(re.escape, records))).match(message, end)
        end = after if run is None else run.end()
    if not records:
        raise DataError(f"{where} is cut or damaged at byte {start}")
    # Only a record's first byte is the tag, so that a record is found nowhere else.
    places = message[start:end]
    for place, record in enumerate(records):
        places = places.replace(record, bytes([place]))
    return Words(np.frombuffer(places, np.uint8), texts), end


def _numbers(message: bytes, start: int, tag: int, where: str) -> tuple[NDArray[np.int64], int]:
    """All integers of a field that stand one after the other, each after its tag: trees have ten thousands of them."""
    rest = np.frombuffer(message, np.uint8)[start:]
    short = rest[: len(rest) // 2 * 2].reshape(-1, 2)
    other = np.flatnonzero(short[:, 0] != tag)
    short = short[: other[0] if len(other) else len(short)]
    if tag < 0x80 and len(short) and (short[:, 1] < 0x80).all():
        return short[:, 1].astype(np.int64), start + short.size
    ends = np.flatnonzero(rest < 0x80)
    ends = ends[: len(ends) // 2 * 2]
    starts = np.concatenate([[0], ends + 1])[: len(ends)]
    lengths = ends - starts + 1
    values = np.zeros(len(ends), np.uint64)
    for count in range(min(int(lengths.max(initial=0)), _MOST_VARINT_BYTES)):
        holds = np.flatnonzero(lengths > count)
        bits = (rest[starts[holds] + count] & 0x7F).astype(np.uint64)
        values[holds] |= bits << np.uint64(7 * count)
    other = np.flatnonzero((values[::2] != tag) | (lengths[::2] > _MOST_VARINT_BYTES))
    pairs = int(other[0]) if len(other) else len(ends) // 2
    if pairs == 0 or lengths[: 2 * pairs].max() > _MOST_VARINT_BYTES:
        raise DataError(f"{where} is cut or damaged at byte {start}")
    return values[1 : 2 * pairs : 2].view(np.int64).copy(), start + int(ends[2 * pairs - 1]) + 1


def _floats(message: bytes, start: int, tag: int, where: str) -> tuple[NDArray[np.float32], int]:
    """All float32 of a field that stand one after the other, each after its tag of one byte."""
    records = np.frombuffer(
        message, np.dtype([("tag", "u1"), ("value", "<f4")]), (len(message) - start) // 5, start
    )
    other = np.flatnonzero(records["tag"] != tag)
    count = int(other[0]) if len(other) else len(records)
    if count == 0:
        raise DataError(f"{where} is cut or damaged at byte {start}")
    return records["value"][:count].astype(np.float32), start + 5 * count
