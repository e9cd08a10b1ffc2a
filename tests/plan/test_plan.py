"""Plans of predicted steps: bytes, defaults, refusals, and what options change."""

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernelcast.plan import Plan, plan, planning
from kernelcast.plan.checkpoint import checkpoint_bytes
from kernelcast.plan.failures import people_detection, published_sites
from kernelcast.plan.fields import RATE
from kernelcast.runtime import Estimator, UsageError, predict

LAYOUT = {"tp": 2, "dp": 32, "micro_batch": 1, "global_batch": 512}


@pytest.fixture(scope="module")
def h100() -> Estimator:
    """Hardware that ships."""
    return Estimator.load("h100-sxm")


@pytest.fixture(scope="module")
def usual(h100: Estimator) -> Plan:
    """Two weeks on eight nodes."""
    return plan(h100, "llama-3-8b", tokens="500B", **LAYOUT)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_checkpoints_have_the_bytes_of_the_states_whatever_is_sharded(h100: Estimator, zero: int) -> None:
    estimate = predict(h100, "llama-3-8b", **{**LAYOUT, "zero": zero})
    total, device = checkpoint_bytes(estimate)
    parameters = 2 * sum(stage.parameters for stage in estimate.stages)  # tp 2
    # Mixed precision has 16-bit weights next to fp32 ones and Adam's moments; FSDP keeps the fp32 ones alone.
    assert total == pytest.approx((12 if zero == 3 else 14) * parameters, rel=0.01)
    assert device == pytest.approx(total / 64, rel=0.01)


def test_a_plan_is_made_of_the_step(usual: Plan) -> None:
    found = usual.to_dict(with_fan=True)
    assert usual.run.steps == math.ceil(500e9 / (512 * 8192))
    assert found["days"]["productive"] == pytest.approx(usual.run.steps * usual.run.step_s / 86_400)
    assert sum(found["lost_days"].values()) + found["days"]["productive"] == pytest.approx(
        found["days"]["mean"]
    )
    assert found["days"]["p50"] <= found["days"]["p90"] <= found["days"]["p95"]
    step = found["step"]
    assert step["p50_s"] <= step["p90_s"] <= step["p99_s"]
    assert found["gpu_hours"] == pytest.approx(64 * 24 * found["days"]["mean"])
    shares = [point[0] for point in found["fan"]]
    assert shares == sorted(shares)
    assert found["fan"][-1][3] == pytest.approx(found["days"]["p50"], rel=0.05)
    least = min(days for _, days in usual.intervals)
    assert usual.expected.total_s / 86_400 <= least * (1 + 1e-3)


def test_a_plan_of_a_framework_has_the_step_that_it_is_predicted_to_have(h100: Estimator) -> None:
    layout = {"dp": 64, "zero": 3, "micro_batch": 1, "framework": "torchtitan", "global_batch": 64}
    step = predict(h100, "llama-3-8b", **layout)
    planned = plan(h100, "llama-3-8b", steps=1000, **layout)
    assert planned.estimate == step
    assert step.provenance.stack is not None


def test_a_neighbours_memory_is_written_over_the_network(h100: Estimator) -> None:
    slow, fast = (
        plan(h100, "llama-3-8b", steps=1000, checkpoint="memory", fabric=name, **LAYOUT).checkpoint
        for name in ("h100-400g", "h100-3200g")
    )
    assert slow.write_s > 4 * fast.write_s > 0
    stated = plan(h100, "llama-3-8b", steps=1000, checkpoint="memory", storage_bandwidth="2GB/s", **LAYOUT)
    assert stated.checkpoint.write_s == pytest.approx(8 * stated.checkpoint.device_bytes / 2e9)


def test_energy_is_at_most_what_the_devices_may_take() -> None:
    found = plan(Estimator.load("a100-sxm"), "llama-3-8b", tokens="500B", **LAYOUT)
    assert found.energy_kwh == (pytest.approx(0.4 * found.gpu_hours), True)


def test_halved_causes_help_and_the_best_first(usual: Plan) -> None:
    saved = list(usual.helps.values())
    assert saved == sorted(saved, reverse=True)
    assert min(usual.helps[cause] for cause in ("failures", "detection", "restart")) > 0


def test_modes_differ_in_what_training_waits_for(h100: Estimator) -> None:
    found = {
        mode: plan(h100, "llama-3-8b", tokens="500B", checkpoint=mode, **LAYOUT)
        for mode in ("async", "sync", "memory")
    }
    waits = {mode: one.checkpoint.stall_s for mode, one in found.items()}
    assert waits["sync"] > waits["async"] == waits["memory"]
    assert found["sync"].checkpoint.write_s == 0
    slow = plan(h100, "llama-3-8b", tokens="500B", storage_bandwidth="100MB/s", **LAYOUT)
    assert slow.checkpoint.storage_s == pytest.approx(10 * found["async"].checkpoint.storage_s)
    assert slow.expected.goodput < found["async"].expected.goodput
    together = plan(h100, "llama-3-8b", tokens="500B", storage_total="1GB/s", **LAYOUT)
    assert together.checkpoint.storage_s == pytest.approx(together.checkpoint.total_bytes / 1e9)


def test_spares_shorten_and_cost(h100: Estimator) -> None:
    few, many = (
        plan(h100, "llama-3-8b", tokens="500B", failure_rate=50, spares=spares, price=2, **LAYOUT)
        for spares in (0, 4)
    )
    assert few.run.short_probability == 1
    assert many.run.short_probability < 0.01
    assert many.expected.total_s < few.expected.total_s
    assert many.gpus == few.gpus + 4 * 8
    elastic = plan(h100, "llama-3-8b", tokens="500B", failure_rate=50, spares=0, elastic=True, **LAYOUT)
    assert elastic.elastic_ratio is not None
    assert 0.8 < elastic.elastic_ratio < 1
    assert elastic.expected.total_s < few.expected.total_s


def test_people_restart_later_and_less_surely(h100: Estimator, usual: Plan) -> None:
    found = plan(h100, "llama-3-8b", tokens="500B", restarted_by="people", **LAYOUT)
    waited_s = [3600 * site.waited_h for site in published_sites().values() if site.waited_h]
    assert found.restart.detection_s == pytest.approx(math.prod(waited_s) ** (1 / len(waited_s)))
    assert np.std(np.log(found.draws.detection)) == pytest.approx(math.log(2) * math.sqrt(1.5), rel=0.05)
    assert np.array_equal(usual.draws.detection, usual.draws.restart)
    assert found.goodput_interval[0] < usual.goodput_interval[0]
    only = people_detection(without=["bloom"])
    assert only == pytest.approx((4.27 * 3600, math.log(2) * math.sqrt(2)))


def test_equal_seeds_give_equal_answers(h100: Estimator, usual: Plan) -> None:
    assert plan(h100, "llama-3-8b", tokens="500B", **LAYOUT).to_dict() == usual.to_dict()


def test_samples_and_epochs_are_tokens_and_padding_takes_steps(h100: Estimator, usual: Plan) -> None:
    length = usual.estimate.model.sequence_length
    count = round(500e9 / length / 2)
    found, padded = (
        plan(h100, "llama-3-8b", samples=count, epochs=2, **more, **LAYOUT)
        for more in ({}, {"packing_efficiency": 0.8, "sample_tokens": length / 2})
    )
    assert found.run.steps == pytest.approx(usual.run.steps, abs=1)
    assert padded.run.steps == pytest.approx(usual.run.steps / 2 / 0.8, abs=1)


@pytest.mark.slow
def test_a_deadline_finds_a_size_that_keeps_it(h100: Estimator) -> None:
    found = plan(h100, "llama-3-8b", tokens="1T", global_batch=512, deadline_s=40 * 86_400)
    assert found.days[1] <= 40


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "none of tokens, samples and steps is given, expected one of them"),
        ({"tokens": 1, "steps": 1}, "tokens and steps are given"),
        ({"steps": 1, "epochs": 2}, "epochs is given without samples"),
        ({"samples": 0}, "samples is 0, expected a whole number from 1"),
        (
            {"samples": 9, "sample_tokens": 10**6},
            "sample_tokens is 1000000.0, expected at most the length of a sample",
        ),
        ({"steps": 100, "failure_rate": -1}, "failure_rate is -1, expected failures per 1,000 days"),
        ({"steps": 100, "spares": 9}, "spares is 9, expected at most the 8 nodes"),
        ({"steps": 100, "elastic": True}, "elastic is given without spares"),
        ({"steps": 100, "repair": "0s"}, "repair is given without spares"),
        ({"steps": 100, "maintenance": "3h"}, "maintenance is given without maintenance_every"),
        (
            {"steps": 100, "storage_total": "1TB/s", "checkpoint": "memory"},
            "storage_total is given with checkpoint memory",
        ),
        ({"steps": 100, "price": 2, "node_month_price": 9}, "price is given with node_month_price"),
        (
            {"steps": 1, "restarted_by": "people", "detection": 9},
            "detection is given with restarted_by people",
        ),
        ({"steps": 100, "storage_bandwidth": "2"}, "storage_bandwidth is '2', expected a rate such as 2GB/s"),
        ({"steps": 100, "failure_rate": 1e6}, "no progress is made"),
        (
            {"steps": 100, "checkpoint_every": 1, "storage_bandwidth": "1MB/s"},
            "expected storage that is faster",
        ),
        ({"steps": 100, "walltime_limit": "30s"}, "walltime_limit is 30.00 s, expected more than start-up"),
        (
            {"tokens": "150T", "failure_rate": 100, "simulations": 100_000},
            "in each of 100,000 simulations, expected at most 2,000: fewer tokens, failures or simulations",
        ),
        ({"steps": 100, "tokns": 1}, "unknown"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    h100: Estimator, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        plan(h100, "llama-3-8b", **LAYOUT, **fields)  # type: ignore[arg-type]
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_given_rate_has_no_uncertainty(h100: Estimator) -> None:
    found = plan(h100, "llama-3-8b", tokens="500B", failure_rate=4, **LAYOUT)
    assert found.rate.to_dict()["interval"] is None
    assert replace(found, seed=1).expected == found.expected


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("5000B", 5e3),
        ("5000B/s", 5e3),
        ("5 kB/s", 5e3),
        ("5KB", 5e3),
        ("1.5mB", 1.5e6),
        ("2GB/s", 2e9),
        ("1TB", 1e12),
    ],
)
def test_rates_are_as_many_bytes_per_second_as_they_say(text: str, rate: float) -> None:
    assert RATE.read(text) == RATE.read(rate) == rate
    assert RATE.read("0.9kB") is RATE.read(1.1e15) is RATE.read("5B") is RATE.read("B") is None


def test_a_deadline_is_approached_by_what_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a size that is asked for `days`, all but steps takes a tenth and two days, and uncertainty a third."""
    asked: list[float] = []

    def planned(estimator: Any, wish: Any, own: Any, **more: Any) -> Any:
        asked.append(wish.days)
        expected = SimpleNamespace(work_s=wish.days * 86_400)
        return SimpleNamespace(days=(0.0, max(least, (1.1 * wish.days + 2) * 4 / 3)), expected=expected)

    monkeypatch.setattr(
        planning, "answer", lambda estimator, wish, values, **more: SimpleNamespace(estimate=wish)
    )
    monkeypatch.setattr(
        planning, "read_question_fields", lambda *given, **more: ("it", "a model", None, {"global_batch": 8})
    )
    monkeypatch.setattr(planning, "plan_of", planned)
    least = 0.0
    found = plan("it", "a model", tokens="1T", deadline_s=40 * 86_400)  # type: ignore[arg-type]
    for before, after in pairwise(asked):
        assert after == pytest.approx(0.999 * 40 * before / ((1.1 * before + 2) * 4 / 3))
    assert (asked[0], len(asked)) == (40, 4)
    assert found.days[1] == pytest.approx((1.1 * asked[-1] + 2) * 4 / 3)
    assert found.days[1] <= 40
    asked.clear()
    least = 50.0
    with pytest.raises(UsageError) as caught:
        plan("it", "a model", tokens="1T", deadline_s=40 * 86_400)  # type: ignore[arg-type]
    assert str(caught.value) == "deadline is 40 days, expected at least 50.0: that of the largest size tried"
    assert len(asked) == 5
    assert asked[-1] == pytest.approx(0.999 * 40 * asked[-2] / 50)
