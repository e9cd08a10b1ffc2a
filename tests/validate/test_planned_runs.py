"""Published runs against their plans."""

import json
from itertools import islice

import pytest

from kernelcast.plan.failures import published_sites
from kernelcast.runtime.dataclass import replace
from kernelcast.validate.plans import PlannedRun, planned_runs
from tests.cli.printed import ended


def test_hours_lost_per_failure_are_the_site_s_own() -> None:
    *shares, of_hours = islice(planned_runs(), 6)
    assert of_hours.to_dict()["quantity"] == "gpu_hours"
    assert 0.3 * of_hours.predicted < of_hours.interval[0] < of_hours.predicted < of_hours.interval[1]
    found = {one.name: one for one in shares}
    bloom = found["bloom"]
    # 118 days on 48 nodes, a tenth of them lost, and 25 lost GPUs.
    reported, planned = bloom.lost_per_failure_h or (0.0, 0.0)
    assert reported == pytest.approx(24 * 118 * 0.1 / 25)
    lost_s = sum(bloom.plan.expected.lost_s.values())
    assert planned == pytest.approx(lost_s / bloom.plan.expected.failures / 3600)
    assert bloom.to_dict()["lost_per_failure_h"] == [reported, planned]
    for name, one in found.items():
        waited_h = published_sites()[name].waited_h if name in published_sites() else None
        if waited_h is not None:
            lost_h, planned_h = one.lost_per_failure_h or (0.0, 0.0)
            others_h = planned_h - one.plan.restart.detection_s / 3600
            assert waited_h == pytest.approx(lost_h - others_h, abs=0.05)
    assert {name for name, one in found.items() if one.run.at_least} == {"llama-3", "megascale"}
    # Its failures are not in the table.
    assert found["byterobust"].lost_per_failure_h is None
    for one in found.values():
        assert one.interval[0] < one.predicted < one.interval[1]
        assert one.is_within
    check_errors(bloom, replace(bloom, run=replace(bloom.run, goodput=None, gpu_hours=0.5)))


def check_errors(share: PlannedRun, hours: PlannedRun) -> None:
    """Errors of a goodput, which may be a bound, and of GPU-hours."""

    def asked(one: PlannedRun, reported: float, at_least: bool) -> tuple[float, bool]:
        run = replace(one.run, at_least=at_least)
        found = replace(one, run=run, predicted=0.8, interval=(0.7, 0.9), reported=reported)
        return round(found.error, 9), found.is_within

    assert asked(share, 0.85, False) == (-0.05, True)
    assert asked(share, 0.65, False) == (0.15, False)
    assert asked(share, 0.65, True) == (0.0, True)  # at least that much is reached
    assert asked(share, 0.95, True) == (-0.15, False)
    for edge in (0.7, 0.9):
        assert asked(share, edge, False)[1]
    assert asked(hours, 0.5, False) == (0.6, False)
    rounded = replace(hours, interval=(0.7, 0.9), run=replace(hours.run, rounding=0.02))
    seen = [replace(rounded, reported=reported).is_within for reported in (0.68, 0.69, 0.91, 0.92)]
    assert seen == [False, True, True, False]
    assert hours.to_dict()["quantity"] == "gpu_hours"
    assert hours.lost_per_failure_h is None


def test_the_command_prints_every_run_and_the_mean_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("validate", "plans", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    for quantity in ("goodput", "gpu_hours"):
        errors = [abs(one["error"]) for one in document["runs"] if one["quantity"] == quantity]
        assert document[f"{quantity}_error"] == pytest.approx(sum(errors) / len(errors))
    assert document["within"] == sum(one["within"] for one in document["runs"]) > 5
