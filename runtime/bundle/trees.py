"""Trees of an ONNX graph, read from its bytes: that they are trees, of a bounded number and depth; what they answer.

The wire format is protocol buffers' (https://protobuf.dev/programming-guides/encoding/). A reader that skips what it
does not know sees another message than ONNX Runtime does: every field has to be known, and a single value stands once.

ONNX Runtime 1.31 goes down a tree by recursion: one that is 100,000 deep overflows its stack. Which wrong indices it
notices differs between versions, so all are checked here.
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


MAX_TREES = 2_000
MAX_TREE_NODES = 200_000
MAX_DEPTH = 64

_KIND = "TreeEnsembleRegressor"
_LEAF = b"LEAF"
_AT_MOST = b"BRANCH_LEQ"
_MODES = {_LEAF, b"BRANCH_LT", _AT_MOST}
_NODES = (
    "nodes_treeids",
    "nodes_nodeids",
    "nodes_featureids",
    "nodes_truenodeids",
    "nodes_falsenodeids",
    "nodes_modes",
    "nodes_values",
)
_TARGETS = ("target_treeids", "target_nodeids", "target_ids", "target_weights")
_ONCE = {"n_targets": 1, "post_transform": b"NONE"}

_Whole = NDArray[np.int64]


class Trees(NamedTuple):
    """Trees as arrays over all their nodes: `roots` [trees], the others [nodes], `children` [2, nodes] (no, yes).

    A leaf is its own child; a value below the limit of a node goes to `yes`.
    """

    roots: _Whole
    children: _Whole
    features: _Whole
    limits: NDArray[np.float32]
    weights: NDArray[np.float32]
    levels: int
    base: np.float32

    def __call__(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """The sum of the trees' weights, float32 [rows, 1]; bit for bit that of ONNX Runtime with one thread."""
        number = len(rows)
        columns, row = np.ascontiguousarray(rows.T).ravel(), np.arange(number)
        children = self.children.T.ravel()
        node = np.repeat(self.roots[:, None], number, axis=1)
        for _ in range(self.levels):
            value = columns[self.features[node] * number + row]
            node = children[2 * node + (value < self.limits[node])]
        # Row by row of an array, so one tree after the other.
        total: NDArray[np.float32] = np.add.reduce(self.weights[node], axis=0) + self.base
        return total[:, None]


def checked_trees(attributes: Mapping[str, Any], columns: int) -> Trees:
    """The trees of these attributes, for rows of `columns`.

    Raises:
        DataError: they are no trees, or too many, too deep or too large ones.
    """
    _check_attributes(attributes)
    trees: _Whole = attributes["nodes_treeids"]
    if len(trees) > MAX_TREE_NODES:
        raise DataError(f"{_KIND} has {len(trees)} nodes, expected at most {MAX_TREE_NODES}")
    steps = np.diff(trees, prepend=np.int64(-1))
    roots = np.flatnonzero(steps)
    if len(trees) == 0 or trees[0] != 0 or (steps[roots] != 1).any() or len(roots) > MAX_TREES:
        raise DataError(f"{_KIND} has trees not numbered from 0, or more than {MAX_TREES}")
    sizes = np.diff(roots, append=len(trees))
    first = np.repeat(roots, sizes)
    if (attributes["nodes_nodeids"] != np.arange(len(trees)) - first).any():
        raise DataError(f"{_KIND} has a tree whose nodes are not numbered from 0")
    modes: Words = attributes["nodes_modes"]
    if unknown := set(modes.texts) - _MODES:
        raise DataError(
            f"{_KIND} has a node of mode {min(unknown)[:40]!r}, expected LEAF, BRANCH_LT or BRANCH_LEQ"
        )
    is_branch = np.array([one != _LEAF for one in modes.texts])[modes.places]
    features = attributes["nodes_featureids"]
    if features.min() < 0 or features.max() >= columns:
        raise DataError(
            f"{_KIND} asks for features {features.min()} to {features.max()}, there are {columns}"
        )
    children = np.stack([attributes["nodes_truenodeids"], attributes["nodes_falsenodeids"]])
    if ((children < 0) | (children >= np.repeat(sizes, sizes)))[:, is_branch].any():
        raise DataError(f"{_KIND} has a branch to a node that is not there")
    levels = _depth(roots, children + first, is_branch)
    _check_targets(attributes, roots, sizes, np.flatnonzero(~is_branch))
    limits = attributes["nodes_values"]
    if _AT_MOST in modes.texts:  # at most a limit is below the next number
        at_most = np.array([one == _AT_MOST for one in modes.texts])[modes.places]
        limits = np.where(at_most, np.nextafter(limits, np.float32(np.inf)), limits)
    weights = np.zeros(len(trees), np.float32)
    weights[roots[attributes["target_treeids"]] + attributes["target_nodeids"]] = attributes["target_weights"]
    return Trees(
        roots=roots,
        children=np.where(is_branch, children + first, np.arange(len(trees)))[::-1],
        features=features,
        limits=limits,
        weights=weights,
        levels=levels,
        base=attributes["base_values"][0] if "base_values" in attributes else np.float32(0),
    )


def _check_attributes(attributes: Mapping[str, Any]) -> None:
    given = dict(attributes)
    base = given.pop("base_values", np.zeros(1, np.float32))
    expected = {*_NODES, *_TARGETS, *_ONCE}
    if not expected - {"post_transform"} <= given.keys() <= expected:
        wrong = ", ".join(sorted(given.keys() ^ expected))[:200]
        raise DataError(f"{_KIND} lacks or has attributes that it should not: {wrong}")
    if any(
        type(found := given.get(name, value)) is not type(value) or found != value
        for name, value in _ONCE.items()
    ):
        raise DataError(f"{_KIND} has several targets or transforms them, expected one as it is")
    for name in (*_NODES, *_TARGETS, "base_values"):
        value = base if name == "base_values" else given[name]
        is_float = name.endswith(("_values", "_weights"))
        expected_type: Any = Words if name == "nodes_modes" else np.ndarray
        if not isinstance(value, expected_type) or (
            isinstance(value, np.ndarray) and value.dtype != (np.float32 if is_float else np.int64)
        ):
            raise DataError(f"{_KIND} has {name} of another type")
        if is_float and not np.isfinite(value).all():
            raise DataError(f"{_KIND} has {name} that are not finite")
    lists = {**given, "nodes_modes": given["nodes_modes"].places}
    if len(base) != 1 or any(len({len(lists[name]) for name in names}) != 1 for names in (_NODES, _TARGETS)):
        raise DataError(f"{_KIND} has lists of different lengths")


def _depth(roots: _Whole, children: _Whole, is_branch: NDArray[np.bool_]) -> int:
    """Branches of the deepest tree. Level by level from the roots: every node is reached once, within `MAX_DEPTH`."""
    level, reached = roots, 0
    for depth in range(MAX_DEPTH + 1):  # noqa: B007
        reached += len(level)
        if reached > len(is_branch):
            break
        level = children[:, level[is_branch[level]]].ravel()
        if len(level) == 0:
            break
    if len(level) or reached != len(is_branch):
        raise DataError(f"{_KIND} has a tree deeper than {MAX_DEPTH}, or one that is no tree")
    return depth


def _check_targets(attributes: Mapping[str, Any], roots: _Whole, sizes: _Whole, leaves: _Whole) -> None:
    trees, nodes = attributes["target_treeids"], attributes["target_nodeids"]
    inside = (trees >= 0) & (trees < len(roots))
    if (
        not inside.all()
        or (nodes < 0).any()
        or (nodes >= sizes[trees]).any()
        or attributes["target_ids"].any()
    ):
        raise DataError(f"{_KIND} has a weight for a node or target that is not there")
    if not np.array_equal(np.sort(roots[trees] + nodes), leaves):
        raise DataError(f"{_KIND} has leaves without one weight each")
