"""The authors' data files: small ones made by hand, and every published one where they are."""

import csv
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database
from kernelcast.store.importers import (
    Description,
    Parsed,
    PublishedError,
    read_estimate_train_time,
    read_published_errors,
    store_parsed,
)
from kernelcast.store.importers.estimate_train_time import COLLECTIVES, FUNCTIONS, DataFile, Function

Found = dict[tuple[str, ...], list[tuple[tuple[int, ...], float | None]]]
REPEATED = "equal to another row of their file (same workload, same time)"


def samples(parsed: Parsed) -> Found:
    found: Found = {}
    for batch in parsed.runs:
        for s in batch.samples:
            key = (s.operator, s.role, s.direction.value) if s.role else (s.operator, s.direction.value)
            found.setdefault(key, []).append((s.vector, s.time_us))
    return found


def test_workload_vectors_by_hand(made: Path) -> None:
    parsed = read_estimate_train_time([made / "Example"])
    found = samples(parsed)
    assert found["gemm", "qkv", "forward"] == [((2048, 2048, 6144), 100.0), ((2048, 2048, 1536), 30.2)]
    assert found["gemm", "qkv", "backward"] == [((2048, 2048, 6144), 210.0), ((2048, 2048, 1536), 60.4)]
    # No column mp: measured at tp = 1.
    assert found["gemm", "attention_output", "forward"] == [((2048, 2048, 2048), 50.0)]
    assert found["batched_gemm", "attention_scores", "backward"] == [((32, 1024, 128, 1024), 140.0)]
    # 50,257 tokens padded to a multiple of 128 · 16, divided by 16.
    assert found["cross_entropy", "forward"] == [((2, 1024, 3200), 400.0)]
    # tp 1 with 4 heads and tp 2 with 8 are the same workload; the same time makes them one row.
    assert found["fused_causal_softmax", "forward"] == [((8, 1024, 1024), 16.0)]
    assert found["fused_causal_softmax", "backward"] == [((8, 1024, 1024), 13.0), ((8, 1024, 1024), 13.4)]
    assert parsed.left_out[REPEATED] == 1
    # d = 2048, tp = 2: a layer has 4·2048 + 4·2048·2049 + 1024·8193 parameters, a vocabulary matrix
    # 25,216 · 2048, the last norm 4096.
    layer, matrix = 8192 + 16_785_408 + 8_389_632, 25_216 * 2048
    assert found["adam", "first_stage", "once"] == [((4 * layer + matrix, 4), 5000.0)]
    assert found["adam", "middle_stage", "once"] == [((4 * layer, 4), 4000.0)]
    assert found["adam", "last_stage", "once"] == [((4 * layer + matrix + 4096, 4), 5100.0)]


def test_collectives_and_what_is_left_out(made: Path) -> None:
    parsed = read_estimate_train_time([made / "Example"])
    found = samples(parsed)
    assert found["all_reduce", "tensor", "once"] == [
        ((1_000_000, 2, 4), 500.0),
        ((2_000_000, 2, 4), 900.0),
        ((1_000_000, 1, 2), 90.0),  # only in the file of all layouts
    ]
    assert found["all_gather", "data", "once"] == [((1_000_000, 8, 1), 700.0)]
    assert parsed.left_out == {
        REPEATED: 1,
        "of allreduce: repeated from the files of single layouts": 2,
        "of optimizer: no operator for it (older format)": 1,
    }


def test_where_it_comes_from(made: Path) -> None:
    done: list[tuple[int, int, str]] = []
    parsed = read_estimate_train_time([made / "Example"], on_progress=lambda *one: done.append(one))
    assert [number for number, *_ in done] == list(range(1, parsed.files + 1))
    assert {(total, bool(file)) for _, total, file in done} == {(parsed.files, True)}
    batch = parsed.runs[0]
    assert batch.run.source.kind == "import"
    assert batch.run.source.name.startswith("NVIDIAEXAMPLE-40GB_")
    assert batch.compute.device_name == "NVIDIA EXAMPLE-40GB"
    assert (batch.compute.memory_gib, batch.compute.multiprocessors) == (40, 0)
    assert {b.fabric.gpus_per_node for b in parsed.runs if b.fabric} == {4}
    one = batch.samples[0]
    assert (one.dtype, one.statistic, one.repetition_count) == ("float16", "middle five of ten", 10)
    assert (one.quiet_us, one.measured_at, batch.run.started_at) == (None, None, None)
    # Nothing is taken for granted about a site that is not known by its name.
    assert {b.run.source.licence for b in parsed.runs} == {""}
    known = Description(source={"licence": "MIT"}, fabric={"nics": ("Slingshot",)})
    parsed = read_estimate_train_time([made / "Example"], described=known)
    assert {b.run.source.licence for b in parsed.runs} == {"MIT"}
    assert {b.fabric.nics for b in parsed.runs if b.fabric} == {("Slingshot",)}


@pytest.mark.parametrize(("name", "gpus_per_node"), [("Perlmutter", 4), ("Vista", 1)])
def test_the_published_sites_are_known_by_their_names(
    made: Path, tmp_path: Path, name: str, gpus_per_node: int
) -> None:
    shutil.copytree(made / "Example", tmp_path / name)
    runs = read_estimate_train_time([tmp_path / name]).runs
    source = runs[0].run.source
    assert (source.licence, source.reference) == ("MIT", "arXiv 2509.22832")
    assert {one.fabric.gpus_per_node for one in runs if one.fabric} == {gpus_per_node}


def test_importing_again_adds_nothing(made: Path, tmp_path: Path) -> None:
    with Database.open(tmp_path / "a.db", create=True) as database:
        first = store_parsed(database, read_estimate_train_time([made / "Example"]))
        again = store_parsed(database, read_estimate_train_time([made / "Example"]))
    assert (first.added, first.already_there) == (20, 0)
    assert (again.added, again.already_there) == (0, 20)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("operator/G_gelu_fp16.csv", "mp,b,l,dim\n", "no column 'F_dur(us)'"),
        ("operator/G_gelu_fp16.csv", "b,l,F_dur(us),B_dur(us)\n", "no column 'dim'"),
        ("operator/G_gelu_fp16.csv", "b,l,dim,x,y,F_dur(us),B_dur(us)\n", "column 'x' is unknown for gelu"),
        ("nccl/G_p2p_fp16_1_2.csv", "shape,dur(us)\n", "no column 'nodes'"),
        ("nccl/G_p2p_fp16_1_2.csv", "", "is empty"),
        ("nccl/G_p2p_fp16_1_2.csv", "shape\0", "is a binary file"),
        ("nccl/G_p2p_fp16_1_2.csv", "shape,nodes,GPUsPerNode,dur(us)\n", "holds no usable row"),
        ("operator/G_moe_fp16.csv", "a,b\n1,2\n", "no usable row: 1 rows of moe: no operator for it"),
        ("operator/G_gelu_int4.csv", "a,b\n1,2\n", "holds no operator/GPU_FUNCTION_fp16.csv"),
        ("notes.txt", "hello", "holds no operator/GPU_FUNCTION_fp16.csv"),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / "site" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_estimate_train_time([tmp_path / "site"])
    assert message in str(caught.value)
    assert "older" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_folders_that_are_something_else(made: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        read_estimate_train_time([tmp_path / "none"])
    with pytest.raises(DataError, match="is not a folder"):
        read_estimate_train_time([made / "times.csv"])
    shutil.copytree(made / "Example", tmp_path / "two")
    (tmp_path / "two/operator/OTHER_gelu_fp16.csv").write_text("b,l,dim,F_dur(us),B_dur(us)\n1,2,4,5,6\n")
    with pytest.raises(DataError, match="files of several devices"):
        read_estimate_train_time([tmp_path / "two"])


def test_malformed_lines(made: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(made / "Example", site)
    gelu = site / "operator/NVIDIAEXAMPLE-40GB_gelu_fp16.csv"
    gelu.write_text("mp,b,l,dim,F_dur(us),B_dur(us)\n1,2,4,8,5,6\n1,2,4,8,5\n1,2,4,8,5,slow\n3,2,4,8,5,6\n")
    reduced = site / "nccl/NVIDIAEXAMPLE-40GB_allreduce_fp16_2_4.csv"
    reduced.write_text("shape,nodes,GPUsPerNode,dur(us)\n64,2,4,5\n64,1,4,5\n")
    parsed = read_estimate_train_time([site])
    assert [(p.path.name, p.line) for p in parsed.problems] == [
        (reduced.name, 3),
        (gelu.name, 3),
        (gelu.name, 4),
        (gelu.name, 5),
    ]
    # A row whose backward time is malformed gives no forward sample either.
    assert samples(parsed)["gelu", "forward"] == [((2, 4, 32), 5.0)]
    with pytest.raises(DataError, match=r"allreduce_fp16_2_4\.csv:3: layout 1 x 4"):
        read_estimate_train_time([site], strict=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIAX_parallel_cross_entropy_128_fp16.csv", ("parallel_cross_entropy_128", "fp16", None)),
        ("NVIDIAX_allgather_large_fp16_2_4.csv", ("allgather_large", "fp16", (2, 4))),
        ("NVIDIAX_linear1_bf16.csv", ("linear1", "bf16", None)),
        ("NVIDIAX.csv", None),
        ("NVIDIAX_linear1.csv", None),
    ],
)
def test_file_names(name: str, expected: tuple[str, str, tuple[int, int] | None] | None) -> None:
    file = DataFile.named(Path(name))
    assert (None if file is None else (file.function, file.precision, file.layout)) == expected


def test_published_errors_by_hand(made: Path) -> None:
    errors = read_published_errors(made / "Example")
    assert [
        (e.operator, e.role, e.direction, e.nodes, e.gpus_per_node, e.validation_error) for e in errors
    ] == [
        ("gemm", "qkv", Direction.BACKWARD, None, None, 0.02),
        ("gemm", "qkv", Direction.FORWARD, None, None, 0.04),
        ("all_reduce", "tensor", Direction.ONCE, 0, 0, 0.015),
        ("all_reduce", "tensor", Direction.ONCE, 2, 4, 0.01),
        ("adam", "first_stage", Direction.ONCE, None, None, 0.03),
    ]
    first: PublishedError = errors[0]
    assert (first.algorithm, dict(first.hyperparameters)) == ("xgboost", {"max_depth": 3, "gamma": 0})
    assert first.dtype == "float16"


SETTINGS = "{" + 1998 * " " + "}"  # as long as they may be


@pytest.mark.parametrize(
    "line",
    [
        'G,gelu,fp16,fwd,rforest,"__import__(1)",0.1',
        "G,gelu,fp16,up,rforest,{},0.1",
        "G,gelu,fp16",
        "G,gelu,fp16,fwd,rforest,[],0.1",
        f"G,gelu,fp16,fwd,rforest,{SETTINGS},0.1\nG,gelu,fp16,bwd,rforest, {SETTINGS[:1]} {SETTINGS[1:]},0.1",
    ],
)
def test_published_errors_that_are_something_else(made: Path, tmp_path: Path, line: str) -> None:
    shutil.copytree(made / "Example", tmp_path / "site")
    path = tmp_path / "site/operator/NVIDIAEXAMPLE-40GB.csv"
    path.write_text("GPU,Function,Precision,Propagation,Best_model,Best_config,Best_error%\n" + line + "\n")
    with pytest.raises(DataError, match=rf"NVIDIAEXAMPLE-40GB\.csv:{2 + line.count(chr(10))}: "):
        read_published_errors(tmp_path / "site")


def test_published_errors_without_a_list(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "Example", tmp_path / "site", ignore=shutil.ignore_patterns("*40GB.csv"))
    with pytest.raises(DataError, match=r"holds no operator/NVIDIAEXAMPLE-40GB\.csv"):
        read_published_errors(tmp_path / "site")


# The published data


def _lines(path: Path) -> int:
    with path.open(newline="") as stream:
        return sum(1 for _ in csv.reader(stream)) - 1


def key(function: Function) -> tuple[str, str]:
    return function.operator, function.role


@pytest.fixture(scope="module")
def perlmutter(real: Path) -> tuple[Path, Parsed]:
    site = real / "estimate-train-time" / "Perlmutter"
    return site, read_estimate_train_time([site], strict=True)


@pytest.mark.slow
def test_every_published_row_lands(perlmutter: tuple[Path, Parsed]) -> None:
    site, parsed = perlmutter
    expected: Counter[tuple[str, str]] = Counter()
    merged = older = 0
    for path in sorted(site.glob("*/*_*.csv")):
        file = DataFile.named(path)
        assert file is not None, path.name
        if file.function == "optimizer":
            older += _lines(path)
        elif file.function in COLLECTIVES:
            if file.layout is None:
                merged += _lines(path)
            else:
                expected[key(COLLECTIVES[file.function])] += _lines(path)
        else:
            both = 1 if file.function.endswith("_optimizer") else 2
            expected[key(FUNCTIONS[file.function])] += both * _lines(path)
    assert len(expected) == 25
    got: Counter[tuple[str, str]] = Counter(
        (s.operator, s.role) for batch in parsed.runs for s in batch.samples
    )
    # Equal rows of one file (the same workload from other raw parameters, by chance the same time) are one.
    assert got <= expected
    assert sum((expected - got).values()) == parsed.left_out[REPEATED] == 3228
    assert parsed.left_out.total() == 3228 + merged + older == 3228 + 24_695 + 319
    assert (sum(got.values()), parsed.files, parsed.problems) == (99_543, 46, [])
    assert {one: got[one] for one in map(key, COLLECTIVES.values())} == {
        ("all_reduce", "tensor"): 8645,
        ("all_reduce", "data"): 9648,
        ("all_gather", "data"): 6402,
        ("point_to_point", "pipeline"): 4012,
    }


@pytest.mark.slow
def test_all_gather_entries_are_one_process_s_shard(perlmutter: tuple[Path, Parsed]) -> None:
    """The links between nodes carry the same bytes/s in every layout only if `shape` is read as the shard."""
    gathered: dict[tuple[int, int], list[float]] = {}
    for batch in perlmutter[1].runs:
        for s in batch.samples:
            if s.operator == "all_gather" and s.time_us:
                entries, nodes, gpus = s.vector
                received_bytes = 2 * entries * (nodes * gpus - 1)
                gathered.setdefault((nodes, gpus), []).append(received_bytes / s.time_us / 1e3)
    rates = {layout: sorted(values)[len(values) // 2] for layout, values in gathered.items()}
    one_per_node = [rates[nodes, 1] for nodes in (2, 4, 8)]
    assert all(1.1 < rate < 1.25 for rate in one_per_node)  # GB/s; as the whole: 0.6, 0.3, 0.15


def test_published_errors(real: Path) -> None:
    errors = read_published_errors(real / "estimate-train-time" / "Perlmutter")
    operators = [e for e in errors if e.nodes is None]
    layouts = [e for e in errors if e.nodes is not None]
    assert (len(operators), len(layouts)) == (39, 24)
    for one, other in pairwise(layouts):
        places = [(e.nodes or 0, e.gpus_per_node or 0) for e in (one, other)]
        assert (one.operator, one.role) != (other.operator, other.role) or places[0] < places[1]
    assert sum(e.validation_error for e in operators) / 39 == pytest.approx(0.0524, abs=5e-5)
    worst = max(layouts, key=lambda e: e.validation_error)
    assert (worst.operator, worst.role, worst.nodes, worst.gpus_per_node) == ("all_gather", "data", 1, 4)
