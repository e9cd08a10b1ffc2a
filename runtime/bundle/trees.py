"""Trees of an ONNX graph: that they are trees, of a bounded number and depth.

ONNX Runtime 1.31 goes down a tree by recursion: one that is 100,000 deep overflows its stack. Which wrong indices it
notices differs between versions, so all are checked here.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.errors import DataError

MAX_TREES = 2_000
MAX_TREE_NODES = 200_000
MAX_DEPTH = 64

_KIND = "TreeEnsembleRegressor"
_LEAF = b"LEAF"
_MODES = {_LEAF, b"BRANCH_LT", b"BRANCH_LEQ"}
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


def tree_columns(attributes: Mapping[str, Any], columns: int) -> int:
    """Columns that the trees of these attributes answer of an input with `columns`: one.

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
    modes = attributes["nodes_modes"]
    unknown = set(modes) - _MODES
    if unknown:
        raise DataError(
            f"{_KIND} has a node of mode {min(unknown)[:40]!r}, expected LEAF, BRANCH_LT or BRANCH_LEQ"
        )
    is_branch = np.array([mode != _LEAF for mode in modes])
    features = attributes["nodes_featureids"]
    if features.min() < 0 or features.max() >= columns:
        raise DataError(
            f"{_KIND} asks for features {features.min()} to {features.max()}, there are {columns}"
        )
    children = np.stack([attributes["nodes_truenodeids"], attributes["nodes_falsenodeids"]])
    if ((children < 0) | (children >= np.repeat(sizes, sizes)))[:, is_branch].any():
        raise DataError(f"{_KIND} has a branch to a node that is not there")
    _check_depth(roots, children + first, is_branch)
    _check_targets(attributes, roots, sizes, np.flatnonzero(~is_branch))
    return 1


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
        expected_type: Any = list if name == "nodes_modes" else np.ndarray
        if not isinstance(value, expected_type) or (
            isinstance(value, np.ndarray) and value.dtype != (np.float32 if is_float else np.int64)
        ):
            raise DataError(f"{_KIND} has {name} of another type")
    if len(base) != 1 or any(len({len(given[name]) for name in names}) != 1 for names in (_NODES, _TARGETS)):
        raise DataError(f"{_KIND} has lists of different lengths")


def _check_depth(roots: _Whole, children: _Whole, is_branch: NDArray[np.bool_]) -> None:
    """Level by level from the roots: every node is reached once, within `MAX_DEPTH` levels."""
    level, reached = roots, 0
    for _ in range(MAX_DEPTH + 1):
        reached += len(level)
        if reached > len(is_branch):
            break
        level = children[:, level[is_branch[level]]].ravel()
        if len(level) == 0:
            break
    if len(level) or reached != len(is_branch):
        raise DataError(f"{_KIND} has a tree deeper than {MAX_DEPTH}, or one that is no tree")


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
