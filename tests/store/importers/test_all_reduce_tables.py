"""Tables of vTrain and Vidur: entries by hand, and what can be wrong with them."""

from pathlib import Path

import pytest

from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.store import Database
from kernelcast.store.importers import Description, Parsed, read_vidur, read_vtrain, store_parsed

DESCRIBED = Description(
    hardware={"device_name": "Example GPU 40GB"}, fabric={"gpus_per_node": 8}, source={"licence": "MIT"}
)
VTRAIN = "size(B),count,type,time(ns),busbw(GB/s),time(ns),busbw(GB/s)\n"
VIDUR = ",time_stats.all_reduce.min,time_stats.all_reduce.median,rank,num_workers,size,collective,devices_per_node\n"


def vtrain(folder: Path, rows: str, name: str = "AR_GPU4.csv", *, strict: bool = False) -> Parsed:
    (folder / name).write_text(VTRAIN + rows)
    return read_vtrain([folder / name], described=DESCRIBED, strict=strict)


def vidur(folder: Path, rows: str, *, strict: bool = False) -> Parsed:
    (folder / "all_reduce.csv").write_text(VIDUR + rows)
    return read_vidur([folder / "all_reduce.csv"], described=DESCRIBED, strict=strict)


def samples(parsed: Parsed) -> list[tuple[str, str, str, tuple[int, ...], float | None]]:
    return [
        (s.operator, s.dtype, s.variant, s.vector, s.time_us) for batch in parsed.runs for s in batch.samples
    ]


def test_vtrain_by_hand(tmp_path: Path) -> None:
    parsed = vtrain(tmp_path, "1048576,262144,float,52429,30.00,52000,30.25\n", strict=True)
    assert samples(parsed) == [
        ("all_reduce", "float32", "out-of-place", (262144, 1, 4), 52.429),
        ("all_reduce", "float32", "in-place", (262144, 1, 4), 52.0),
    ]
    [batch] = parsed.runs
    assert batch.run.source.name == "AR_GPU4.csv"
    assert batch.run.source.licence == "MIT"
    with Database.open(tmp_path / "a.db", create=True) as database:
        assert store_parsed(database, parsed).added == 2
        assert store_parsed(database, parsed).already_there == 2


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        # In µs, the time is a thousandth of what the bandwidth says.
        ("1048576,262144,float,52.4,30.00,52.0,30.25", "time(ns): 52.4 is 3.002e+04 GB/s, expected 30"),
        (
            "1048576,262144,half,52429,30.00,52000,30.25",
            "size(B) is 1048576, which differs from count 262144 of 'half'",
        ),
        (
            "1048576,262145,float,52429,30.00,52000,30.25",
            "size(B) is 1048576, which differs from count 262145 of 'float'",
        ),
        ("1048576,262144,float,52429,30.00", "found 5 cells, expected 7 columns"),
        ("1048576,262144,float,-1,30.00,52000,30.25", "time(ns): found '-1', expected a number above 0"),
    ],
)
def test_malformed_rows_of_vtrain(row: str, expected: str, tmp_path: Path) -> None:
    good = "1048576,262144,float,52429,30.00,52000,30.25\n"
    parsed = vtrain(tmp_path, good + row + "\n")
    assert len(samples(parsed)) == 2
    [problem] = parsed.problems
    assert problem.line == 3
    assert expected in str(problem)
    with pytest.raises(DataError, match="nothing was imported"):
        vtrain(tmp_path, good + row + "\n", strict=True)


def test_what_is_no_table_of_vtrain(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"name is 'other\.csv', expected AR_GPU8\.csv or similar"):
        vtrain(tmp_path, "", "other.csv")
    (tmp_path / "AR_GPU2.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="is not vTrain's: columns are"):
        read_vtrain([tmp_path / "AR_GPU2.csv"], described=DESCRIBED)


def test_vidur_by_hand(tmp_path: Path) -> None:
    parsed = vidur(
        tmp_path, "0,0.03,0.043,0,2,2048,all_reduce,2\n1,0.03,0.9,0,2,2048,all_reduce,1\n", strict=True
    )
    assert samples(parsed) == [("all_reduce", "float16", "", (1024, 1, 2), pytest.approx(43.0))]
    assert sum(parsed.left_out.values()) == 1


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("0,0.03,0.043,0,2,2047,all_reduce,2", "size: 2047 bytes are no whole number of float16 elements"),
        (
            "0,0.03,0,0,2,2048,all_reduce,2",
            "time_stats.all_reduce.median: found '0', expected a number above 0",
        ),
        ("0,0.03,0.04,0,2,2048,all_sum,2", "collective: found 'all_sum', expected all_reduce or send_recv"),
    ],
)
def test_malformed_rows_of_vidur(row: str, expected: str, tmp_path: Path) -> None:
    parsed = vidur(tmp_path, "0,0.03,0.043,0,2,2048,all_reduce,2\n" + row + "\n")
    [problem] = parsed.problems
    assert expected in str(problem)


def test_the_device_has_to_be_named(tmp_path: Path) -> None:
    (tmp_path / "AR_GPU2.csv").write_text(VTRAIN)
    with pytest.raises(UsageError, match="devices per node"):
        read_vtrain([tmp_path / "AR_GPU2.csv"])
