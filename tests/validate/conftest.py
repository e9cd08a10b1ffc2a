"""A small site of the method's authors' kind: every file that a two-stage LLaMA-like step needs, times by a formula."""

import csv
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

DEVICE = "NVIDIAEXAMPLE-40GB"
SETTINGS = {"rforest": "{'n_estimators': 10}", "xgboost": "{'n_estimators': 20, 'max_depth': 3}"}
_TOKENS = ("embedding", "linear1", "linear2", "linear3", "gelu", "linear4", "linear_final")
_OPERATORS = {
    **dict.fromkeys(_TOKENS, ("mp", "b", "l", "dim")),
    "RMSlayernorm": ("b", "l", "dim"),
    "res_add": ("b", "l", "dim"),
    "RoPE": ("mp", "b", "h", "l", "dim"),
    "flash_atten": ("mp", "b", "h", "l", "dim"),
    "parallel_cross_entropy_128": ("mp", "b", "l"),
}
_VALUES = {"mp": (1,), "b": (1, 2), "h": (4,), "l": (16, 32), "dim": (32, 64, 128)}
RUNS = """
site = "Example"
hardware = "two devices a node"
source = "made up"
[models.small]
biases = "none"  # the authors measured none apart: with them, ours would sum more than theirs
hidden_size = 64
sequence_length = 32
attention_heads = 4
layers = 6
vocabulary_size = 50257
norm = "rms_norm"
[defaults]
model = "small"
pp = 2
tp = 1
micro_batch = 2
micro_batches = 4
gpus_per_node = 2
recompute = "full"
[[runs]]
dp = 2
measured_s = 0.02
published_error = 0.5
published_components = { Encoder_Fwd = 0.25, PP_P2P = -0.5, Stage_Fwd_Max = 0.1, Stage_Bwd_Max = 0.1 }
[[runs]]
name = "second"
dp = 1
measured_s = 0.01
[runs.measured_components]
PP_P2P = 1e-5
"""


def _write(path: Path, columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(rows)


def _operator(folder: Path, function: str, parameters: tuple[str, ...]) -> None:
    values = dict(_VALUES)
    if "dim" not in parameters:
        values |= {"b": (1, 2, 4), "l": (8, 16, 32)}
    rows: list[tuple[object, ...]] = []
    for point in product(*(values[name] for name in parameters)):
        given = dict(zip(parameters, point, strict=True))
        time_us = 10 + given["b"] * given["l"] * given.get("dim", 64) / 50
        rows.append((*point, time_us, 2 * time_us))
    columns = (*parameters, "F_dur(us)", "B_dur(us)")
    _write(folder / "operator" / f"{DEVICE}_{function}_fp16.csv", columns, rows)


def _once(folder: Path) -> None:
    for stage in ("first", "last"):
        rows: list[tuple[object, ...]] = [
            (1, d, n, 20 + d * n / 10) for d in (32, 64, 128) for n in (2, 3, 4)
        ]
        columns = ("mp", "dim", "encoders", "dur(us)")
        _write(folder / "operator" / f"{DEVICE}_{stage}Stage_optimizer_fp16.csv", columns, rows)
    for function in ("allreduce_large", "allgather_large", "p2p"):
        for nodes, gpus in ((1, 2), (2, 1)):
            rows = [(2**n, nodes, gpus, 30 * nodes + 2**n / 5000) for n in range(8, 24)]
            columns = ("shape", "nodes", "GPUsPerNode", "dur(us)")
            _write(folder / "nccl" / f"{DEVICE}_{function}_fp16_{nodes}_{gpus}.csv", columns, rows)


def _settings(folder: Path) -> None:
    heads = ("GPU", "Function", "Precision", "Propagation", "Best_model", "Best_config", "Best_error%")
    rows: list[tuple[object, ...]] = []
    for function in _OPERATORS:
        for propagation, model in (("fwd", "rforest"), ("bwd", "xgboost")):
            rows.append((DEVICE, function, "fp16", propagation, model, SETTINGS[model], 0.05))
    for stage in ("first", "last"):
        rows.append((DEVICE, f"{stage}Stage_optimizer", "fp16", "dur", "xgboost", SETTINGS["xgboost"], 0.05))
    _write(folder / "operator" / f"{DEVICE}.csv", heads, rows)
    heads = (
        "GPU",
        "Function",
        "Precision",
        "Nodes",
        "GPUsPerNode",
        "Best_model",
        "Best_config",
        "Best_error%",
    )
    rows = [
        (DEVICE, function, "fp16", nodes, gpus, "rforest", SETTINGS["rforest"], 0.05)
        for function in ("allreduce_large", "allgather_large", "p2p")
        for nodes, gpus in ((1, 2), (2, 1))
    ]
    _write(folder / "nccl" / f"{DEVICE}.csv", heads, rows)


@pytest.fixture
def make_site(tmp_path: Path) -> Callable[[], Path]:
    """Writes the folder `Example`, with `runs.toml` next to it."""

    def make() -> Path:
        folder = tmp_path / "Example"
        folder.mkdir()
        for function, parameters in _OPERATORS.items():
            _operator(folder, function, parameters)
        _once(folder)
        _settings(folder)
        (tmp_path / "runs.toml").write_text(RUNS)
        return folder

    return make
