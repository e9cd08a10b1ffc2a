"""The load of a sample and what was read meanwhile: kept through merges and exports, selected, compared."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.devices import Load
from kernelcast.store import Database, Run, Sample, check_database, merge_databases
from kernelcast.store.export import Subset, export_database
from kernelcast.store.querying import questions

Maker = Callable[..., Sample]


def sustained(sample: Sample, factor: float) -> Sample:
    """The sample as if it had been measured under sustained load."""
    return replace(
        sample,
        load=Load.SUSTAINED,
        time_us=factor * (sample.time_us or 0),
        quiet_us=factor * (sample.quiet_us or 0),
        clock_mhz=1200.04,
        power_w=399.5,
        temperature_c=71.0,
    )


def test_what_states_nothing_keeps_its_id(make_sample: Maker) -> None:
    sample = make_sample()
    assert sample.load is Load.NOT_STATED
    assert replace(sample, load=Load.BURST).id != sample.id
    assert replace(sample, power_w=300.0).id != sample.id
    assert replace(replace(sample, load=Load.BURST), load=Load.NOT_STATED).id == sample.id


def test_another_load_is_refused(make_sample: Maker) -> None:
    with pytest.raises(UsageError, match="'full' is not a valid Load"):
        replace(make_sample(), load="full")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="clock_mhz: found inf, expected a finite number"):
        replace(make_sample(), clock_mhz=float("inf"))


def test_it_is_kept_through_merge_and_anonymous_export(
    database: Database, make_sample: Maker, tmp_path: Path
) -> None:
    one = sustained(make_sample(), 1.25)
    database.add_samples([one, make_sample()])
    database.close()
    merge_databases([database.path, database.path], tmp_path / "merged.db")
    export_database(tmp_path / "merged.db", tmp_path / "shared.db", Subset(anonymous=True))
    assert check_database(tmp_path / "shared.db") == []
    with Database.open(tmp_path / "shared.db", read_only=True) as shared:
        [found] = shared.read_samples(load=Load.SUSTAINED)
        assert found.sample_id == one.id
        assert (found.load, found.clock_mhz, found.power_w, found.temperature_c) == (
            Load.SUSTAINED,
            1200.04,
            399.5,
            71.0,
        )
        assert [sample.load for sample in shared.samples_in_full() if sample.id == one.id] == [Load.SUSTAINED]


def test_points_are_known_by_load(database: Database, run: Run, make_sample: Maker) -> None:
    database.add_samples([make_sample(rows=64), sustained(make_sample(rows=128), 1.0)])
    keys = run.compute_id, run.software_id

    def rows(load: Load | None) -> set[int]:
        return {vector[0] for *_, vector in database.measured_points(*keys, load=load)}

    # What is not stated counts as a burst.
    assert (rows(Load.BURST), rows(Load.SUSTAINED), rows(None)) == ({64}, {128}, {64, 128})


def test_the_ratio_of_both(database: Database, make_sample: Maker) -> None:
    both, apart = make_sample(rows=64), make_sample(rows=128)
    database.add_samples([both, sustained(both, 1.25), sustained(both, 1.5), apart])
    [found] = database.query("SELECT * FROM sustained_slowdown")
    assert (found["operator"], found["vector"], found["ratio"]) == ("gemm", "[64,512,1536]", 1.25)
    assert found["sustained_us"] == pytest.approx(1.25 * found["burst_us"])
    assert (found["burst_clock_mhz"], found["sustained_clock_mhz"]) == (None, 1200.0)
    assert (found["sustained_power_w"], found["sustained_temperature_c"]) == (399.5, 71.0)
    [question] = [one for one in questions("questions.sql") if one.name == "sustained_slowdown"]
    [answer] = database.query(question.sql)
    assert (answer["operator"], answer["workloads"], answer["ratio"]) == ("gemm", 1, 1.25)
    points = database.query("SELECT load, samples FROM point_time WHERE vector = '[64,512,1536]' ORDER BY 1")
    assert [(one["load"], one["samples"]) for one in points] == [("burst", 1), ("sustained", 2)]
