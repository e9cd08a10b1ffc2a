"""Logs of nccl-tests: entries by hand for each collective, layouts, and what can be wrong with a log."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime.errors import DataError, KernelcastError, UsageError
from kernelcast.store import Database
from kernelcast.store.importers import Description, read_nccl_tests, store_parsed
from kernelcast.store.importers.description import device_named

HEAD = """# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902
# Collective test starting: {collective}_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 graph: 0
# Using devices
{ranks}
#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong
"""
RANKS = "\n".join(
    f"#  Rank  {rank} Group  0 Pid  {rank} on node{rank // 2} device  {rank % 2} [0000:00] Example GPU 40GB"
    for rank in range(4)
)
ROW = "   1024    256   float   sum   -1   20.5   0.05   0.07   0   20.1   0.05   0.08   N/A\n"


def log(folder: Path, rows: str = ROW, *, collective: str = "all_reduce", ranks: str = RANKS) -> Path:
    path = folder / "one.log"
    path.write_text(HEAD.format(collective=collective, ranks=ranks) + rows)
    return path


def test_entries_and_layouts_by_hand(made: Path) -> None:
    parsed = read_nccl_tests([made / "two_nodes.log"], strict=True)
    found: dict[tuple[str, str], list[tuple[tuple[int, ...], float | None]]] = {}
    for batch in parsed.runs:
        for s in batch.samples:
            found.setdefault((s.operator, s.variant), []).append((s.vector, s.time_us))
    assert found == {
        ("all_reduce", "out-of-place"): [((256, 2, 2), 20.5), ((512, 2, 2), 22.5)],
        ("all_reduce", "in-place"): [((256, 2, 2), 20.1), ((512, 2, 2), 22.1)],
        # 2048 bytes gathered from 2 processes: 256 floats each; reduced from inputs of 512.
        ("all_gather", "out-of-place"): [((256, 2, 1), 30.5)],
        ("all_gather", "in-place"): [((256, 2, 1), 30.1)],
        ("reduce_scatter", "out-of-place"): [((512, 2, 1), 31.5)],
        ("reduce_scatter", "in-place"): [((512, 2, 1), 31.1)],
        # 2048 bytes of each process, half of them for either.
        ("all_to_all", "out-of-place"): [((512, 2, 1), 32.5)],
        ("all_to_all", "in-place"): [((512, 2, 1), 32.1)],
        ("point_to_point", "out-of-place"): [((512, 2, 1), 12.5)],
        ("point_to_point", "in-place"): [((512, 2, 1), 12.1)],
    }
    assert parsed.left_out == {"of empty messages": 1}
    batch = parsed.runs[0]
    assert (batch.compute.device_name, batch.compute.memory_gib) == ("Example GPU 40GB", 40)
    assert (batch.software.nccl, batch.software.torch) == ("2.29.2", "")
    assert batch.fabric is not None
    assert (batch.fabric.backend, batch.fabric.gpus_per_node) == ("nccl", 2)
    assert {b.run.fabric_id for b in parsed.runs} == {batch.fabric.digest}
    assert batch.run.conditions["benchmark"] == "nccl-tests 2.17.8"
    one = batch.samples[0]
    assert (one.dtype, one.statistic, one.repetition_count) == ("float32", "mean of 20", 20)
    assert "alpha" not in str(parsed)  # no host name gets anywhere


def test_importing_again_adds_nothing(made: Path, tmp_path: Path) -> None:
    with Database.open(tmp_path / "a.db", create=True) as database:
        first = store_parsed(database, read_nccl_tests([made / "two_nodes.log"]))
        again = store_parsed(database, read_nccl_tests([made / "two_nodes.log"]))
        rows = database.query("SELECT role, gigabytes_per_s FROM operator_time WHERE operator = 'all_reduce'")
    assert (first.added, again.added, again.already_there) == (12, 0, 12)
    assert len(rows) == 4
    assert {row["role"] for row in rows} == {""}  # the same exchange, whichever group will call it


def test_an_older_log_has_to_be_told_its_collective(made: Path) -> None:
    with pytest.raises(DataError, match=r"older\.log:2: the log does not say which collective"):
        read_nccl_tests([made / "older.log"], strict=True)
    again = made / "again.log"
    again.write_text((made / "older.log").read_text())
    parsed = read_nccl_tests([made / "older.log", again], collective="all_reduce", strict=True)
    batch, _ = parsed.runs
    assert {s.vector for s in batch.samples} == {(512, 1, 2)}
    assert {s.dtype for s in batch.samples} == {"float16"}
    assert (batch.software.nccl, batch.software.cuda) == ("2.8.4", "11.2")


def test_as_another_dtype(tmp_path: Path) -> None:
    parsed = read_nccl_tests([log(tmp_path)], as_dtype="float16")
    (batch,) = parsed.runs
    assert {(s.vector, s.dtype) for s in batch.samples} == {((512, 2, 2), "float16")}
    assert batch.run.conditions["bytes_counted_as"] == "float16"
    assert batch.run.conditions["measured_types"] == ["float"]
    integers = ROW.replace("float", "int8").replace("    256 ", "   1024 ")
    assert read_nccl_tests([log(tmp_path, integers)], as_dtype="float16").sample_count == 2
    parsed = read_nccl_tests([log(tmp_path, ROW + integers)])
    assert parsed.left_out == {"of int8: no dtype of a training step": 1}
    odd = integers.replace("1024", "1023")
    with pytest.raises(DataError, match="1023 bytes are no whole number of float16 elements"):
        read_nccl_tests([log(tmp_path, odd)], as_dtype="float16", strict=True)
    with pytest.raises(UsageError, match="as-dtype: found 'half'"):
        read_nccl_tests([log(tmp_path)], as_dtype="half")


TYPES = {
    "double": ("float64", 8), "float": ("float32", 4), "half": ("float16", 2), "bfloat16": ("bfloat16", 2),
    "f8e4m3": ("float8_e4m3fn", 1), "f8e5m2": ("float8_e5m2", 1), "int8": ("", 1), "uint8": ("", 1),
    "int32": ("", 4), "uint32": ("", 4), "int64": ("", 8), "uint64": ("", 8),
}  # fmt: skip


def test_every_type_has_its_bytes(tmp_path: Path) -> None:
    rows = [ROW.replace("float", name).replace("1024", str(256 * size)) for name, (_, size) in TYPES.items()]
    parsed = read_nccl_tests([log(tmp_path, "".join(rows))])
    assert parsed.problems == []
    assert {s.dtype for b in parsed.runs for s in b.samples} == {name for name, _ in TYPES.values() if name}
    assert parsed.left_out.total() == sum(not name for name, _ in TYPES.values())


def test_what_a_log_says_of_the_test_and_what_holds_where_it_says_nothing(tmp_path: Path) -> None:
    one_time = ROW.partition("   0.05")[0] + "\n"
    path = log(tmp_path, one_time)
    said = "nThread 1 nGpus 1 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 graph: 0"
    text = path.read_text().replace("time  algbw  busbw  #wrong  time  algbw  busbw  #wrong", "time")
    names = ("threads_per_process", "gpus_per_thread", "aggregated_iterations", "cuda_graph_launches")
    for line, expected, statistic in (
        ("nThread 2 nGpus 3 iters: 7 agg iters: 4 graph: 5", [2, 3, 4, 5], ("mean of 7", 7)),
        ("nThread -", [1, 1, 1, 0], ("mean of several", 0)),
    ):
        path.write_text(text.replace(said, line))
        [batch] = read_nccl_tests([path], strict=True).runs
        assert [batch.run.conditions[name] for name in names] == expected
        [sample] = batch.samples
        assert (sample.time_us, sample.variant) == (20.5, "out-of-place")
        assert (sample.statistic, sample.repetition_count) == statistic


@pytest.mark.parametrize(
    ("before", "inside", "nccl", "cuda"),
    [
        ("# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902", "", "2.29.2", ""),
        ("# nccl-tests version 2.9.1 nccl-library=2804", "", "2.8.4", ""),
        ("# nccl-tests version 2.9.1 nccl-library=9999", "", "9.9.99", ""),
        ("# nccl-tests version 2.9.1 nccl-library=10000", "", "1.0.0", ""),
        ("# nccl-tests version 2.9.1", "", "", ""),
        ("# nccl-tests version 2.9.1", "NCCL version 2.27.3+cuda12.9\n", "2.27.3", "12.9"),
    ],
)
def test_versions(tmp_path: Path, before: str, inside: str, nccl: str, cuda: str) -> None:
    path = log(tmp_path)
    path.write_text(
        before + "\n" + path.read_text().partition("\n")[2].replace("# Using", inside + "# Using")
    )
    [batch] = read_nccl_tests([path], strict=True).runs
    assert (batch.software.nccl, batch.software.cuda) == (nccl, cuda)


def test_variants(tmp_path: Path) -> None:
    (batch,) = read_nccl_tests([log(tmp_path, collective="sendrecv")]).runs
    assert {s.variant for s in batch.samples} == {"out-of-place, ring", "in-place, ring"}
    for processes, variant in ((2, "out-of-place"), (3, "out-of-place, ring")):
        ranks = "\n".join(RANKS.splitlines()[:processes]).replace("node1 device  0", "node0 device  2")
        (batch,) = read_nccl_tests([log(tmp_path, collective="sendrecv", ranks=ranks)]).runs
        assert batch.samples[0].variant == variant
    (batch,) = read_nccl_tests([log(tmp_path, ROW.replace("20.1", "N/A"))], strict=True).runs
    assert [s.variant for s in batch.samples] == ["out-of-place"]
    (batch,) = read_nccl_tests([log(tmp_path, ROW.replace("sum", "max"))]).runs
    assert {s.variant for s in batch.samples} == {"out-of-place, max", "in-place, max"}


def test_a_node_has_as_many_devices_as_the_largest_test_used(made: Path, tmp_path: Path) -> None:
    alone = "#  Rank  0 Group  0 Pid 1 on x device  0 [0] Example GPU 40GB\n"
    pair = alone + "#  Rank  1 Group  0 Pid 2 on y device  0 [0] Example GPU 40GB"
    paths = [log(tmp_path, ranks=pair), made / "two_nodes.log"]
    parsed = read_nccl_tests(paths)
    assert {b.fabric.gpus_per_node for b in parsed.runs if b.fabric} == {2}
    stated = Description(fabric={"gpus_per_node": 8, "links": ("NVLink 4",)})
    parsed = read_nccl_tests(paths, described=stated)
    assert {(b.fabric.gpus_per_node, b.fabric.links) for b in parsed.runs if b.fabric} == {(8, ("NVLink 4",))}
    with pytest.raises(UsageError, match="give --gpus-per-node"):
        read_nccl_tests([log(tmp_path, ranks="#")], described=Description(hardware={"device_name": "GPU"}))
    with pytest.raises(DataError, match="holds no usable row: 1 rows of one process alone"):
        read_nccl_tests([log(tmp_path, ranks=alone)])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW[:40] + "\n", "values, expected 13 (size count type redop"),
        (ROW.replace("20.5", "fast"), "time: found 'fast', expected a number above 0"),
        (ROW.replace("20.1", "0"), "in-place time: found '0'"),
        (ROW.replace("float", "quad"), "type: found 'quad'"),
        (ROW.replace("1024", "1028"), "size 1028 does not fit count 256 of float, expected 1024"),
        (ROW.replace("1024", "10x4"), "size: found '10x4'"),
        (ROW.replace("0.07   0 ", "0.07   3 "), "the test found wrong results (#wrong 3 and N/A)"),
    ],
)
def test_malformed_rows(tmp_path: Path, row: str, message: str) -> None:
    path = log(tmp_path, ROW + row)
    parsed = read_nccl_tests([path])
    assert [(p.path, p.line) for p in parsed.problems] == [(path, 11)]
    assert message in parsed.problems[0].text
    assert parsed.sample_count == 2
    with pytest.raises(DataError, match=r"one\.log:11: "):
        read_nccl_tests([path], strict=True)


def test_a_row_has_one_or_two_times(tmp_path: Path) -> None:
    path = log(tmp_path, ROW.replace("\n", " 20.3\n"))
    path.write_text(path.read_text().replace("#wrong\n", "#wrong time\n"))
    with pytest.raises(DataError, match="found 3 columns called time, expected one or two"):
        read_nccl_tests([path])


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ("#", "lists no devices"),
        (RANKS.rsplit("\n", 1)[0], "nodes have different numbers of devices (1, 2)"),
        (RANKS.replace("3 Group  0", "3 Group  1"), "2 groups ran at once"),
    ],
)
def test_layouts_that_are_none(made: Path, tmp_path: Path, ranks: str, message: str) -> None:
    path = log(tmp_path, ranks=ranks)
    parsed = read_nccl_tests([path, made / "two_nodes.log"])
    assert [(p.path, p.line) for p in parsed.problems] == [(path, 3)]
    assert message in parsed.problems[0].text
    with pytest.raises(DataError, match=r"one\.log:3: .*; nothing was imported"):
        read_nccl_tests([path, made / "two_nodes.log"], strict=True)


def test_files_that_are_something_else(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.log"
    for content, message in (
        (b"hello\n", "is not a log of nccl-tests"),
        (b"", "is empty"),
        (b"\x7fELF\0\0", "is a binary file"),
        (HEAD.format(collective="all_reduce", ranks=RANKS).encode(), "holds no usable row"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            read_nccl_tests([path])
    path.write_bytes(b"hello\n")
    with pytest.raises(DataError, match=r"other\.log: is not a log of nccl-tests"):
        read_nccl_tests([made / "two_nodes.log", path])
    with pytest.raises(DataError, match="no such file"):
        read_nccl_tests([tmp_path / "none.log"])
    other = log(tmp_path, ranks=RANKS.replace("Example GPU 40GB", "Other GPU"))
    with pytest.raises(DataError, match="measured on 'Other GPU', expected 'Example GPU 40GB'"):
        read_nccl_tests([made / "two_nodes.log", other])


LINES = st.sampled_from(
    [*HEAD.format(collective="all_reduce", ranks=RANKS).splitlines(), ROW.rstrip(), "# size count type", "#"]
)


@given(lines=st.lists(LINES | st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=30))
def test_whatever_stands_there_is_rows_or_one_line(
    lines: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("any") / "any.log"
    path.write_text("\n".join(lines), encoding="utf-8", newline="")
    try:
        parsed = read_nccl_tests([path])
    except KernelcastError as error:
        message = str(error)
    else:
        message = ""
        assert parsed.sample_count >= 1
    assert "\n" not in message


def test_tests_without_an_operator_are_counted(tmp_path: Path) -> None:
    good = log(tmp_path)
    (tmp_path / "other").mkdir()
    other = log(tmp_path / "other", collective="broadcast")
    assert read_nccl_tests([good, other]).left_out == {"of broadcast: no operator for it": 1}


def test_the_published_logs(real: Path) -> None:
    paths = sorted((real / "nccl-tests").glob("*.log"))
    parsed = read_nccl_tests(paths, strict=True)
    counts: Counter[tuple[str, int, int]] = Counter()
    for batch in parsed.runs:
        counts.update((s.operator, s.vector[1], s.vector[2]) for s in batch.samples)
    everywhere = [(1, 4), (1, 8), (10, 1), (10, 8)]
    # Ten sizes, out-of-place and in-place; on two nodes sendrecv and alltoall alone, three sizes.
    expected = {
        (operator, *layout): 20
        for operator in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point")
        for layout in everywhere
    }
    on_two = [(operator, 2, gpus) for operator in ("point_to_point", "all_to_all") for gpus in (1, 2, 4, 8)]
    assert counts == expected | dict.fromkeys(on_two, 6)
    assert parsed.left_out == {}
    assert parsed.files == 8
    batch = parsed.runs[0]
    assert batch.compute.device_name == "NVIDIA H100 80GB HBM3"
    assert batch.software.nccl == "2.29.2"
    assert batch.fabric is not None
    assert batch.fabric.gpus_per_node == 8


def test_bandwidth_agrees_with_what_the_logs_print(real: Path) -> None:
    """Bandwidth (busbw) of nccl-tests, from our entries: what a process receives, per second."""
    parsed = read_nccl_tests([real / "nccl-tests" / "nccl_N1_G8.log"])
    largest = {}
    for batch in parsed.runs:
        for s in batch.samples:
            if s.variant.startswith("out-of-place"):
                largest[s.operator] = s
    received = {"all_gather": 7.0, "reduce_scatter": 7 / 8, "all_reduce": 2 * 7 / 8, "point_to_point": 1.0}
    for operator, share in received.items():
        sample = largest[operator]
        assert sample.time_us is not None
        assert 300 < 8 * sample.vector[0] * share / sample.time_us / 1e3 < 500  # GB/s


def test_a_device_name_that_counts_a_cpus_memory_gives_the_gpus() -> None:
    assert device_named("NVIDIA GH200 480GB") == {"device_name": "NVIDIA GH200 480GB", "memory_gib": 96}
    assert device_named("NVIDIA H200") == {"device_name": "NVIDIA H200"}
