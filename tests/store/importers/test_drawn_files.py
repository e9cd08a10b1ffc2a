"""What is read of small files of each format with values, lines or words changed: `drawn_files.txt`.

WRITE_DRAWN_FILES=1 pytest THIS_FILE writes it again.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from kernelcast.runtime import KernelcastError
from kernelcast.runtime.operators import OPERATORS
from kernelcast.store.importers import (
    Parsed,
    read_aiconfigurator,
    read_csv_files,
    read_description,
    read_estimate_train_time,
    read_liger,
    read_nccl_tests,
    read_published_errors,
    read_simumax,
    read_vidur,
    read_vtrain,
)
from kernelcast.store.importers.job_logs import read_failure_log, read_mlperf_steps
from kernelcast.store.importers.raw_parameters import needed_symbols, workload_vector
from kernelcast.store.importers.tables import Malformed
from tests.store.importers import test_aiconfigurator as tables
from tests.store.importers import test_all_reduce_tables as reduces
from tests.store.importers import test_liger as liger
from tests.store.importers import test_simumax as simumax

TEXT = Path(__file__).with_name("drawn_files.txt")
DATA = Path(__file__).parents[2] / "data" / "importers"
DESCRIBED = reduces.DESCRIBED
NUMBERS = [
    "0",
    "-1",
    "1",
    "2",
    "3",
    "7",
    "16",
    "1024",
    "1.5",
    "0.1",
    "1e9",
    "nan",
    "x",
    "99999999999999999999",
]
WORDS = [
    "half",
    "float32",
    "bfloat16",
    "forward",
    "backward",
    "full",
    "sum",
    "ms",
    "us",
    "liger",
    "torch",
    "bwd",
    "TN",
]
WORDS += [
    "",
    "NT",
    "all_gather",
    "alltoall",
    "True",
    "False",
    "fp8",
    "bf16",
    "ok",
    "failed",
    "N/A",
    "in-place",
]
JOBS = """start,end,nodes,outcome,cause
2026-01-01T00:00,2026-01-02T00:00,20,failed,switch
2026-01-02T00:00,2026-01-02T06:00,40,failed,
2026-01-05T00:00,2026-01-06T12:00,2,ok,
"""


def changed(random: Random, text: str) -> str:
    """One to three changes: of a number, of a word, a line left out or twice."""
    for _ in range(random.randint(1, 3)):
        kind = random.random()
        if kind < 0.85:
            pattern = r"(?<![\w.])\d[\d.]*" if kind < 0.5 else r"[A-Za-z][\w-]*"
            places = [*re.finditer(pattern, text)]
            if places:
                place = random.choice(places)
                text = (
                    text[: place.start()]
                    + random.choice(NUMBERS if kind < 0.5 else WORDS)
                    + text[place.end() :]
                )
            continue
        lines = text.splitlines()
        if lines:
            row = random.randrange(len(lines))
            lines[row : row + 1] = [] if kind < 0.92 else [lines[row]] * 2
        text = "\n".join(lines) + "\n"
    return text


def of_parsed(parsed: Parsed) -> Iterator[str]:
    for batch in parsed.runs:
        run = batch.run
        yield f"  {run.command} {run.source.name} {run.source.licence} {run.conditions} {run.started_at}"
        network = "" if batch.fabric is None else batch.fabric.description
        yield f"    {batch.compute.description}; {network}; {batch.software.description}"
        for one in batch.samples:
            said = (one.operator, one.role, one.direction.value, one.dtype, one.vector, one.variant, one.statistic,
                    one.load.value, one.repetition_count, one.measured_at, one.power_w, one.flags)  # fmt: skip
            yield f"    {said} {one.time_us} {one.flops} {one.moved_bytes}"
    yield from (f"  {one}" for one in parsed.problems)
    yield f"  left out {dict(parsed.left_out)}"


def tried(read: Callable[[], Any], folder: Path) -> Iterator[str]:
    try:
        found = read()
        lines = [*of_parsed(found)] if isinstance(found, Parsed) else [f"  {found}"]
    except KernelcastError as error:
        lines = [f"  {type(error).__name__}: {error}"]
    yield from (re.sub(r"[0-9a-f]{64}", "#", one.replace(str(folder), "HERE")) for one in lines)


def drawn(name: str, path: Path, read: Callable[[], Any], *, count: int = 8) -> Iterator[str]:
    """What a file comes to as it is, and with changes; each with the lines that differ."""
    random, text = Random(name), path.read_text()
    before = [*tried(read, path.parent)]
    yield from (f"*** {name}", *before)
    for _ in range(count):
        other = changed(random, text)
        path.write_text(other)
        yield f"- {sorted({*other.splitlines()} - {*text.splitlines()})}"
        after = [*tried(read, path.parent)]
        yield f"  without {sum(one not in after for one in before)} of the lines"
        yield from (one for one in after if one not in before)
    path.write_text(text)


def of_tables(folder: Path) -> Iterator[str]:
    """Parquet files of aiconfigurator, with a cell of one or two rows changed."""
    random = Random(11)
    for row in (tables.GEMM, tables.ATTENTION, tables.NCCL, tables.MOE, tables.MAMBA, tables.DELTA):
        for _ in range(9):
            rows: list[dict[str, Any]] = [
                dict(row),
                {**row, "latency": 0.25, "version": random.choice(["0.9.1", "0.20.0"])},
            ]
            changes = {}
            for name in random.sample(sorted(row), 2):
                number = type(row[name]) in (int, float)
                value = (
                    random.choice([0, 1, 3, 64, 257, -1])
                    if number
                    else random.choice([*WORDS, "fp8_block", "int4", "VLLM"])
                )
                changes[name] = rows[0][name] = type(row[name])(value)
            path = tables.write(folder / "table.parquet", *rows)
            yield f"*** {row['op_name']} {changes}"
            yield from tried(lambda: read_aiconfigurator([path]), folder)  # noqa: B023


def of_parameters() -> Iterator[str]:
    random = Random(12)
    for name, operator in OPERATORS.items():
        for role in operator.roles:
            needed = sorted(needed_symbols(name, role))
            yield f"{name} {role}: {needed}"
            for _ in range(3 if needed else 1):
                given = {one: random.choice([1, 2, 4, 8, 16, 48]) for one in needed if random.random() < 0.93}
                given |= {"tp": random.choice([1, 2, 3])} if "tp" in needed else {}
                given |= {"v_raw": 50_257} if "v" in needed and random.random() < 0.3 else {}
                try:
                    yield f"  {given}: {workload_vector(operator, role, given)}"
                except Malformed as error:
                    yield f"  {given}: {error}"


def mlperf() -> str:
    keys = [
        ("submission_org", "Example"),
        ("submission_benchmark", "bert"),
        ("global_batch_size", 64),
        ("run_start", None),
    ]
    moments = [1000 + 10 * place for place in range(len(keys))]
    rows: list[dict[str, Any]] = [
        {"time_ms": time_ms, "key": key, "value": value}
        for time_ms, (key, value) in zip(moments, keys, strict=True)
    ]
    for one in range(8):
        rows.append(
            {
                "time_ms": 2000 + 100 * one,
                "key": "tracked_stats",
                "value": {"train_step_time": 0.1 * (one + 1)},
            }
        )
    rows.append({"time_ms": 9000, "key": "run_stop", "value": None, "metadata": {"status": "success"}})
    return "".join(f"0: :::MLLOG {json.dumps(row)}\n" for row in rows)


def of_files(folder: Path) -> Iterator[str]:
    shutil.copytree(DATA, folder / "data")
    data = folder / "data"
    csv, logs = data / "times.csv", [data / "two_nodes.log"]
    yield from drawn("csv", csv, lambda: read_csv_files([csv]), count=24)
    about = csv.with_suffix(".toml")
    yield from drawn("description", about, lambda: read_description(about), count=18)
    yield from drawn("nccl-tests", logs[0], lambda: read_nccl_tests(logs), count=24)
    older = data / "older.log"
    yield from drawn(
        "older log",
        older,
        lambda: read_nccl_tests([older], collective="all_reduce", as_dtype="float16"),
        count=12,
    )
    for path in sorted((data / "Example").rglob("*.csv")):
        published = path.name.count("_") == 0
        read = (lambda: read_published_errors(data / "Example")) if published else (
            lambda: read_estimate_train_time([data / "Example"]))  # fmt: skip
        yield from drawn(path.name, path, read, count=4)
    rows = [liger.NORM, liger.NORM | {"kernel_operation_mode": "full", "y_value_50": "1.25"},
            liger.named("cross_entropy", "V", 512, {"B": 8, "T": 64}), liger.named("rope", "T", 64, {
                "hidden_size": 256, "num_q_heads": 4, "num_kv_heads": 2, "dtype": "bfloat16"}),
            liger.named("fused_moe", "E", 8, {"T": 64, "E": None, "H": 32, "intermediate_dim": 16, "K": 2,
                                              "dtype": "torch.bfloat16"}),
            liger.named("megatron_swiglu", "ffn_local", 64, {"S": 16, "B": 2})]  # fmt: skip
    path = liger.write(folder / "liger.csv", *rows)
    yield from drawn("liger", path, lambda: read_liger([path]), count=30)
    factors: dict[str, dict[str, float]] = {
        "matmul": {simumax.FORWARD: 0.5, simumax.INPUT_GRADIENT: 0.25, simumax.WEIGHT_GRADIENT: 0.8},
        "group_matmul": {simumax.GROUPED.format("fp32", "fwd", "False"): 0.5},
        "sdp_fwd": {simumax.ATTENTION.format(128, "True"): 0.8},
        "sdp_bwd": {simumax.ATTENTION.format(64, "False"): 0.5},
        "conv": {"b=1": 0.5},
    }
    system = simumax.system(folder, **factors)
    yield from drawn("simumax", system, lambda: read_simumax([system]), count=36)
    reduce = folder / "AR_GPU4.csv"
    reduce.write_text(
        reduces.VTRAIN
        + "1048576,262144,float,52429,30.00,52000,30.25\n2097152,1048576,half,98304,32,98000,32.1\n"
    )
    yield from drawn("vtrain", reduce, lambda: read_vtrain([reduce], described=DESCRIBED), count=15)
    vidur = folder / "all_reduce.csv"
    vidur.write_text(
        reduces.VIDUR + "0,0.01,0.02,0,4,4096,all_reduce,4\n1,0.03,0.05,0,8,65536,all_reduce,4\n"
    )
    yield from drawn("vidur", vidur, lambda: read_vidur([vidur], described=DESCRIBED), count=15)
    jobs = folder / "jobs.csv"
    jobs.write_text(JOBS)
    yield from drawn("jobs", jobs, lambda: read_failure_log(jobs, gpus_per_node=4), count=15)
    sacct = folder / "jobs.json"
    states = [
        (["COMPLETED"], 86_400, 4),
        ("NODE_FAIL", 43_200, {"set": True, "number": 8}),
        (["FAILED"], 500, 1),
    ]
    listed = [
        {"state": {"current": state}, "time": {"elapsed": elapsed}, "allocation_nodes": nodes}
        for state, elapsed, nodes in states
    ]
    sacct.write_text(json.dumps({"jobs": listed}, indent=1))
    yield from drawn("sacct", sacct, lambda: read_failure_log(sacct), count=15)
    log = folder / "log.txt"
    log.write_text(mlperf())
    yield from drawn("mlperf steps", log, lambda: read_mlperf_steps(log, gpus=8), count=18)
    yield from drawn("mlperf jobs", log, lambda: read_failure_log(log, nodes=2), count=12)


def test_drawn_files(tmp_path: Path) -> None:
    printed = "\n".join((*of_files(tmp_path), *of_tables(tmp_path), *of_parameters())) + "\n"
    if "WRITE_DRAWN_FILES" in os.environ:
        TEXT.write_text(printed, encoding="utf-8")
    assert printed == TEXT.read_text(encoding="utf-8")
