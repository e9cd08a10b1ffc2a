"""Trees of an ONNX graph: that they are trees, of a bounded number and depth, and what they answer.

ONNX Runtime 1.31 goes down a tree by recursion: one that is 100,000 deep overflows its stack. Which wrong indices it
notices differs between versions, so all are checked here.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.bundle.protobuf import Words
from kernelcast.runtime.errors import DataError

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
