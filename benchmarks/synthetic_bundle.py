"""A bundle in the size of a real one, made of nothing: every operator's roofline with random trees on top.

What it predicts means nothing; how long it takes to load and to ask is what a trained bundle of as many trees takes.
"""

import math
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from kernelcast.runtime.bundle.file import Manifest, RegressorEntry, write_bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.bundle.interval import Interval
from kernelcast.runtime.operators import OPERATORS, Direction, Operator

TREES, DEPTH, SEED = 150, 5, 7
SPREAD = 0.05  # standard deviation of what all trees together add to log(time)
LAUNCH_US, FLOPS_PER_US, BYTES_PER_US, LINK_BYTES_PER_US = 5.0, 150e6, 1.5e6, 50e3
ELEMENT_BYTES = 2


def write_synthetic_bundle(path: Path) -> None:
    """Write the bundle."""
    random = np.random.default_rng(SEED)
    entries, models = [], {}
    for operator in OPERATORS.values():
        for direction in operator.directions:
            model = _model(operator, direction, random)
            entry = RegressorEntry.for_model(
                model,
                operator=operator.name,
                direction=direction,
                dtype="float16",
                training_range=((1.0, 1e12),) * len(operator.features),
                algorithm="xgboost",
                form="roofline",
                hyperparameters={"n_estimators": TREES, "max_depth": DEPTH},
                validation_error=0.0,
                interval=Interval.of_all(math.log(1.1)),
                rows=1000,
                statistic="middle_five",
                table_digest="00",
                recipe_digest="00",
            )
            entries.append(entry)
            models[entry.file] = model
    write_bundle(
        path,
        Manifest(
            kernelcast_version="0",
            created_at="2026-01-01T00:00:00+00:00",
            dtype="float16",
            statistic="middle_five",
            compute=(ComputeFingerprint(kind="cuda", device_name="Example GPU", memory_gib=80),),
            fabric=(FabricFingerprint(backend="nccl", gpus_per_node=8),),
            software=(SoftwareFingerprint(torch="2.13.0", driver="570"),),
            dataset_digest="00",
            seed=SEED,
            regressors=tuple(entries),
        ),
        models,
    )


def _model(operator: Operator, direction: Direction, random: np.random.Generator) -> bytes:
    """Time is exp(log(Σ coefficient · Π features) + trees(log features)), and 10 % either way."""
    exponents, rates = _terms(operator, direction)
    features = len(operator.features)
    nodes = [
        helper.make_node("Max", ["workload", "one"], ["positive"]),  # a stage may hold no layer
        helper.make_node("Log", ["positive"], ["logs"]),
        helper.make_node("MatMul", ["logs", "exponents"], ["powers"]),
        helper.make_node("Add", ["powers", "rates"], ["scaled"]),
        helper.make_node("Exp", ["scaled"], ["terms"]),
        helper.make_node("MatMul", ["terms", "ones"], ["base"]),
        helper.make_node("Log", ["base"], ["log_base"]),
        helper.make_node(
            "TreeEnsembleRegressor",
            ["logs"],
            ["residual"],
            domain="ai.onnx.ml",
            n_targets=1,
            **_trees(features, random),
        ),
        helper.make_node("Add", ["log_base", "residual"], ["log_time"]),
        helper.make_node("Exp", ["log_time"], ["time_us"]),
        helper.make_node("Mul", ["time_us", "low"], ["low_us"]),
        helper.make_node("Mul", ["time_us", "high"], ["high_us"]),
    ]
    graph = helper.make_graph(
        nodes,
        operator.name,
        [helper.make_tensor_value_info("workload", TensorProto.FLOAT, ["N", features])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 1])
            for name in ("time_us", "low_us", "high_us")
        ],
        [
            onnx.numpy_helper.from_array(np.array(value, dtype=kind), name)
            for name, value, kind in (
                ("exponents", exponents, np.float32),
                ("rates", rates, np.float32),
                ("ones", [[1.0]] * len(rates), np.float32),
                ("one", [1.0], np.float32),
                ("low", [1 / 1.1], np.float32),
                ("high", [1.1], np.float32),
            )
        ],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=imports)
    model.ir_version = 8
    serialised: bytes = model.SerializeToString()
    return serialised


def _terms(operator: Operator, direction: Direction) -> tuple[list[list[float]], list[float]]:
    """Exponents [features, terms] of the monomials of FLOPs and bytes, and logs of their µs, with a constant."""
    cost, names = operator.costs[direction], list(operator.features)
    bandwidth = LINK_BYTES_PER_US if operator.is_collective else BYTES_PER_US
    columns, rates = [[0.0] * len(names)], [math.log(LAUNCH_US)]
    for terms, unit_us in ((cost.flops, 1 / FLOPS_PER_US), (cost.elements, ELEMENT_BYTES / bandwidth)):
        for term in terms:
            columns.append([float(term.features.count(name)) for name in names])
            rates.append(math.log(term.coefficient * unit_us) if term.coefficient else -80.0)
    return [list(row) for row in zip(*columns, strict=True)], rates


def _trees(features: int, random: np.random.Generator) -> dict[str, list[float]]:
    """Full binary trees of DEPTH, node i with the children 2i + 1 and 2i + 2; thresholds on logs."""
    inner, leaves = 2**DEPTH - 1, 2**DEPTH
    every = inner + leaves
    tree_ids = np.repeat(np.arange(TREES), every)
    node_ids = np.tile(np.arange(every), TREES)
    is_inner = node_ids < inner
    leaf_ids = node_ids[~is_inner]
    return {
        "nodes_treeids": tree_ids.tolist(),
        "nodes_nodeids": node_ids.tolist(),
        "nodes_featureids": np.where(is_inner, random.integers(0, features, every * TREES), 0).tolist(),
        "nodes_values": np.where(is_inner, random.uniform(0.0, 25.0, every * TREES), 0.0).tolist(),
        "nodes_modes": np.where(is_inner, "BRANCH_LT", "LEAF").tolist(),
        "nodes_truenodeids": np.where(is_inner, 2 * node_ids + 1, 0).tolist(),
        "nodes_falsenodeids": np.where(is_inner, 2 * node_ids + 2, 0).tolist(),
        "target_treeids": tree_ids[~is_inner].tolist(),
        "target_nodeids": leaf_ids.tolist(),
        "target_ids": [0] * len(leaf_ids),
        "target_weights": random.normal(0.0, SPREAD / math.sqrt(TREES), len(leaf_ids)).tolist(),
    }
