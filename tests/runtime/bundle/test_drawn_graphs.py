"""What is said of every operator at inputs of every shape, and of trees and bytes with changes: `drawn_graphs.txt`.

WRITE_DRAWN_GRAPHS=1 pytest THIS_FILE writes it again.
"""

import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from kernelcast.runtime import DataError
from kernelcast.runtime.bundle.graph import Graph, check_graph
from tests.runtime.bundle.hostile_graphs import model_of, node, trees_of

TEXT = Path(__file__).with_name("drawn_graphs.txt")
CONSTANTS: dict[str, Any] = {"zero": 2.0, "one": [1.0, 2.0, 3.0], "row": [[1.0, 2.0, 3.0]], "square": [[1.0] * 3] * 3,
                             "column": [[1.0], [2.0]], "index": [0, 2], "beyond": [-4, 1]}  # fmt: skip
KINDS = ("Add", "Max", "MatMul", "Concat", "Gather", "Exp", "Cast", "Softmax", "TreeEnsembleRegressor")
ATTRIBUTES: dict[str, Any] = {"Concat": {"axis": 1}, "Gather": {"axis": 1}, "Cast": {"to": 1}}
_TREE = trees_of()


def said(content: bytes, columns: int = 3) -> str:
    try:
        found: Graph = check_graph(content, columns)
    except DataError as error:
        return str(error)
    nodes = [
        (one.kind, one.constant is not None and str(one.constant).replace("\n", "")[:160])
        for one in found.nodes[:1]
    ]
    return f"{found.input} {len(found.outputs)} {sorted(found.constants)} {nodes}"


def of_shapes() -> Iterator[str]:
    """Nodes of one and two inputs, and of three of a kind."""
    names = ["workload", *CONSTANTS, "nothing"]
    for kind in KINDS:
        more: dict[str, Any] = dict(ATTRIBUTES.get(kind, {}))
        if kind.startswith("Tree"):
            more = {"domain": "ai.onnx.ml", **_tree_attributes()}
        for inputs in (
            *((one,) for one in names),
            *product(names, names),
            ("row",) * 3,
            ("workload", "one", "zero"),
        ):
            nodes, next_one = [node(kind, *inputs, **more)], node("MatMul", "time_us", "shape", output="more")
            found = said(model_of(nodes, **CONSTANTS))
            if found.startswith("b'"):  # what it computes, as the next one refuses it
                found = said(model_of([*nodes, next_one], shape=[[1.0]] * 7, **CONSTANTS))
            yield f"{kind} {' '.join(inputs)}: {found}"
        if not kind.startswith("Tree"):
            for wrong in ({}, {"axis": 0}, {"to": 7}, {"axis": 1, "to": 1}, {"to": [1]}):
                yield f"{kind} {wrong}: {said(model_of([node(kind, 'workload', 'index', **wrong)], **CONSTANTS))}"


def _tree_attributes() -> dict[str, Any]:
    """Of a tree with one branch, as `trees_of` makes it."""
    return {
        "n_targets": 1, "nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0] * 3,
        "nodes_values": [1.0] * 3, "nodes_modes": ["BRANCH_LT", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0],
        "target_weights": [1.0, 2.0],
    }  # fmt: skip


def of_trees() -> Iterator[str]:
    random = Random(31)
    for _ in range(160):
        depth = random.choice([1, 2, 3])
        name = random.choice(
            [*sorted(_tree_attributes()), "base_values", "post_transform", "aggregate_function"]
        )
        value = random.choice([-1, 0, 1, 2, 9])
        place = random.randrange(2 * depth)

        def change(values: Any, name: str = name, value: int = value, place: int = place) -> Any:
            if not isinstance(values, list):
                return value
            new = (
                random.choice(["LEAF", "BRANCH_LT", "BRANCH_EQ"])
                if name == "nodes_modes"
                else type(values[0])(value)
            )
            return [*values[:place], *([] if random.random() < 0.15 else [new]), *values[place + 1 :]]

        known = name in _tree_attributes()
        usual = {"post_transform": random.choice(["NONE", "LOGISTIC"]), "aggregate_function": "MAX",
                 "base_values": random.choice([[0.5], [0.5, 1.0], [float("nan")], [2]])}  # fmt: skip
        changes: dict[str, Any] = {name: change if known else usual[name]}
        try:
            content = trees_of(depth, **changes)
        except (TypeError, ValueError):
            continue
        yield f"{depth} {name} {place} {value}: {said(content, random.choice([1, 3, 3]))}"


def of_models() -> Iterator[str]:
    """Versions, numbers of nodes, and single bytes of a sound tree."""
    plain = [node("Exp", "workload")]
    for versions in (
        {"opset": 1},
        {"opset": 21},
        {"ml_opset": 9},
        {"ir_version": 2},
        {"ir_version": 99},
        {"opset": 13},
    ):
        yield f"{versions}: {said(model_of(plain, **versions))}"
    for change in (
        "graph.input",
        "graph.output",
        "opset_import",
        "metadata_props",
        "graph.node",
        "graph.initializer",
    ):

        def twice(model: Any, change: str = change) -> None:
            for part in change.split("."):
                model = getattr(model, part)
            if len(model):
                model.append(model[0])

        yield f"{change} twice: {said(model_of(plain, change=twice, **CONSTANTS))}"
    random = Random(32)
    for _ in range(300):
        content = bytearray(_TREE)
        place = random.randrange(len(content))
        content[place] ^= 1 << random.randrange(8)
        yield f"{place}: {said(bytes(content))[:200]}"


def test_drawn_graphs() -> None:
    printed = "\n".join((*of_shapes(), *of_trees(), *of_models())) + "\n"
    if "WRITE_DRAWN_GRAPHS" in os.environ:
        TEXT.write_text(printed, encoding="utf-8")
    assert printed == TEXT.read_text(encoding="utf-8")
