"""What may train and what is left out: by name, with a reason."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from kernelcast.runtime import DataError
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, Sample
from kernelcast.train.notes import Note
from kernelcast.train.screening import Screened, screen

Measure = Callable[..., list[Sample]]
FORWARD = Direction.FORWARD


def screened(database: Database, statistic: str = "quiet") -> Screened:
    return screen(database.read_samples(), statistic=statistic, where="bench.db")


def test_everything_with_a_time_trains(database: Database, measure: Measure) -> None:
    samples = measure(database, count=3) + measure(database, "embedding", count=2)
    found = screened(database)
    assert found.skipped == ()
    assert {sample.sample_id for sample in found.samples} == {sample.id for sample in samples}
    for sample, row in zip(found.samples, found.rows, strict=True):
        assert (row.operator, row.direction, row.vector) == (sample.operator, sample.direction, sample.vector)
        assert row.time_us == sample.quiet_us
    assert [row.time_us for row in screened(database, "middle_five").rows] == [
        s.time_us for s in found.samples
    ]


def test_stored_doubts_keep_a_sample_out_and_are_named(database: Database, measure: Measure) -> None:
    samples = measure(database, count=3)
    flags = (("impossible", "twice the peak"), ("difference", "full less forward"))
    database.add_samples([replace(one, flags=(flag,)) for one, flag in zip(samples[:2], flags, strict=True)])
    found = screen(
        [one for one in database.read_samples() if one.flags or one.sample_id == samples[2].id],
        statistic="quiet",
        where="bench.db",
    )
    [note] = found.skipped
    vector = ", ".join(map(str, samples[0].vector))
    assert note.text == f"1 of 3 samples, flagged impossible ([{vector}]: twice the peak)"
    assert len(found.rows) == 2
    assert found.doubts == {"impossible": 1, "outlier": 0}


def test_processes_that_ran_an_operator_at_once_count_for_all_but_collectives(
    database: Database, measure: Measure
) -> None:
    for processes, operator, direction in (
        (2, "gelu", FORWARD),
        (0, "gelu", FORWARD),
        (2, "point_to_point", Direction.ONCE),
    ):
        measure(
            database, operator, direction, 3, conditions={"processes_per_node": processes}, seed=processes
        )
    found = Counter((row.operator, row.processes_per_node) for row in screened(database).rows)
    assert found == {("gelu", 2): 3, ("gelu", 1): 3, ("point_to_point", 1): 3}


def test_rows_keep_their_role_and_roles_may_be_measured_in_the_same_way(
    database: Database, measure: Measure
) -> None:
    measure(database, "gemm", count=2, role="qkv")
    measure(database, "gemm", count=3, role="mlp_up", seed=1)
    found = screened(database)
    assert Counter(row.role for row in found.rows) == {"qkv": 2, "mlp_up": 3}
    assert found.skipped == ()


def test_a_sample_without_a_quiet_time_is_named(database: Database, measure: Measure) -> None:
    [sample] = measure(database, count=1, quiet=False)
    with pytest.raises(
        DataError,
        match=rf"^bench\.db: sample {sample.id} of gelu has no quiet time, expected one; train with --statistic",
    ):
        screened(database)
    assert len(screened(database, "middle_five").rows) == 1


def test_times_that_are_not_above_zero_and_vast_workloads_are_left_out(
    database: Database, measure: Measure
) -> None:
    vast = (2**40, 2**40, 2**40)
    measure(database, times_us={(1, 1, 1): 0.5, (1, 1, 2): 0.0, (1, 1, 3): -1.0, vast: 9.0})
    found = screened(database)
    assert [row.vector for row in found.rows] == [(1, 1, 1)]
    [skipped] = found.skipped
    assert (skipped.operator, skipped.direction) == ("gelu", FORWARD)
    assert skipped.text == (
        "3 of 4 samples, whose quiet time is not above 0 and finite or whose workload multiplies to more than 1e+30"
    )


def test_operators_of_another_version_are_left_out(database: Database, measure: Measure) -> None:
    database.connection.execute("INSERT INTO operator VALUES ('later', 'x', 'x', '[]', '{}', '{}')")
    measure(database, count=1)
    measure(database, "gelu", Direction.ONCE, times_us={(1, 2, 3): 4.0})
    measure(database, "later", times_us={(1, 2): 4.0})
    found = screened(database)
    reason = "this version has no such operator and direction"
    assert found.skipped == (
        Note(operator="gelu", direction=Direction.ONCE, text=reason),
        Note(operator="later", direction=FORWARD, text=reason),
    )
    assert {(row.operator, row.direction) for row in found.rows} == {("gelu", FORWARD)}


def test_several_ways_of_measuring_are_never_mixed(database: Database, measure: Measure) -> None:
    measure(database, "gelu", count=2, variant="in-place")
    measure(database, "gelu", count=2)
    measure(database, "softmax", count=2, conditions={"power_limit_w": 300})
    measure(database, "softmax", count=2, conditions={"power_limit_w": 400, "processes_per_node": 2})
    measure(database, "swiglu", count=2, conditions={"processes_per_node": 2})
    found = screened(database)
    assert [(s.operator, s.text) for s in found.skipped] == [
        ("gelu", "measured in several ways, expected one: {}; in-place {}"),
        (
            "softmax",
            'measured in several ways, expected one: {"power_limit_w":300}; {"power_limit_w":400}',
        ),
    ]
    assert {row.operator for row in found.rows} == {"swiglu"}


def test_a_collective_trains_on_what_frameworks_call(database: Database, measure: Measure) -> None:
    """nccl-tests measures in place and out of place, and rings; torch.distributed reduces in place."""
    once = Direction.ONCE
    for name in ("in-place", "out-of-place"):
        measure(database, "all_reduce", once, 3, variant=name)
        measure(database, "all_gather", once, 3, variant=name)
        measure(database, "point_to_point", once, 2, variant=name)
        measure(database, "point_to_point", once, 2, variant=f"{name}, ring", seed=1)
    found = screen(database.read_samples(), statistic="quiet", where="bench.db")
    assert Counter((s.operator, s.variant) for s in found.samples) == {
        ("all_reduce", "in-place"): 3,
        ("all_gather", "out-of-place"): 3,
        ("point_to_point", "out-of-place"): 2,
        ("point_to_point", "out-of-place, ring"): 2,
    }
    assert [(s.operator, s.text) for s in found.skipped] == [
        ("all_gather", "3 of 6 samples, measured in-place: frameworks do not call it this way"),
        ("all_reduce", "3 of 6 samples, measured out-of-place: frameworks do not call it this way"),
        (
            "point_to_point",
            "4 of 8 samples, measured in-place; in-place, ring: frameworks do not call it this way",
        ),
    ]


def test_a_collective_measured_in_one_way_only_trains_on_that(database: Database, measure: Measure) -> None:
    measure(database, "all_reduce", Direction.ONCE, 3, variant="out-of-place")
    found = screen(database.read_samples(), statistic="quiet", where="bench.db")
    assert (len(found.samples), found.skipped) == (3, ())


def test_the_quiet_time_of_a_collective_is_the_mean_of_its_inner_repetitions(
    database: Database, measure: Measure
) -> None:
    """A step makes dozens of exchanges, and many may stall; where few do, the fastest step has no stall."""
    stalled = (2.0, 3.0, 2.0, 13.0)
    measure(database, "all_reduce", Direction.ONCE, times_us={(64, 1, 2): 2.0}, repetitions_us=stalled)
    measure(database, "gelu", times_us={(1, 2, 3): 2.0}, repetitions_us=stalled)
    assert {row.operator: row.time_us for row in screened(database).rows} == {"all_reduce": 5, "gelu": 2}
    rarely = (2.0,) * 9 + (4000.0,)
    measure(database, "all_gather", Direction.ONCE, times_us={(64, 1, 2): 2.0}, repetitions_us=rarely)
    assert {row.operator: row.time_us for row in screened(database).rows}["all_gather"] == 2
    middle_five = {row.operator: row.time_us for row in screened(database, "middle_five").rows}
    assert middle_five == {"all_reduce": 2.2, "gelu": 2.2, "all_gather": 2.2}


def test_a_collective_without_repetitions_has_the_quiet_time_that_is_stored(
    database: Database, measure: Measure
) -> None:
    measure(database, "all_reduce", Direction.ONCE, times_us={(64, 1, 2): 4.0})
    assert [row.time_us for row in screened(database).rows] == [4]
