"""Causes of the difference between two traced runs: sums whose cause is known, two real runs, and random ones, as said.

WRITE_WHOLE_TEXTS=1 pytest THIS_FILE writes `differences.txt` again.
"""

import os
from pathlib import Path
from random import Random

import numpy as np
import pytest

from kernelcast.store.difference_causes import DifferenceCause, Work, difference_causes

LAYERS = 4
Made = dict[Work, tuple[float, float]]


def work(
    kernel: str, scope: str, shapes: str = "[[8,8]]", direction: str = "forward", class_: str = "compute"
) -> Work:
    return Work(
        class_=class_, kernel=kernel, operator=kernel, direction=direction, scope=scope, shapes=shapes
    )


def model(batch: int = 8) -> Made:
    """A step of 100 ms: four layers of attention (a product of 5 ms, a kernel of 5 ms) and products of 15 ms."""
    shapes, found = f"[[{batch},8]]", Made()
    for layer in range(LAYERS):
        attention = f"Model_0 / Block_{layer} / Attention_{layer}"
        found[work("mm", f"{attention} / Linear_0", shapes)] = 1.0, 5.0 * batch / 8
        found[work("flash", attention, shapes)] = 1.0, 5.0 * batch / 8
        found[work("mm", f"Model_0 / Block_{layer} / MLP_{layer}", shapes)] = 2.0, 15.0 * batch / 8
    return found


def scaled(sums: Made, launches: float, times: float, part: str) -> Made:
    return {
        one: (values[0] * launches, values[1] * times) if part in one.scope else values
        for one, values in sums.items()
    }


def causes(two: Made, *, idle_ms: float = 0.0, loader_ms: float = 0.0) -> list[tuple[str, str, float]]:
    found = difference_causes(model(), two, idle_ms=(0.0, idle_ms), loader_ms=(0.0, loader_ms))
    assert all(one.line.startswith(f"{one.change_ms:+,.2f} ms: ") for one in found)
    return [(one.kind, one.name, round(one.change_ms, 6)) for one in found]


def test_the_same_runs_have_none() -> None:
    assert causes(model()) == []
    assert causes(scaled(model(), 1, 1.01, "")) == []


@pytest.mark.parametrize("launches", [1, 2])
def test_a_module_that_takes_twice_as_long(launches: int) -> None:
    kind = "more_work" if launches == 2 else "slow_kernels"
    two = scaled(model(), launches, 2, "Attention")
    assert causes(two) == [(kind, "Model / Block / Attention", 40.0)]
    assert causes(scaled(two, 1, 1.5, ""))[:2] == [
        (kind, "Model / Block / Attention", 80.0),
        ("device", "", 50.0),
    ]


def test_one_part_of_a_module() -> None:
    assert causes(scaled(model(), 1, 3, "Linear")) == [
        ("slow_kernels", "Model / Block / Attention / Linear", 40.0)
    ]
    # Most of the time takes longer, but less than three quarters: kernels do not agree on a factor.
    assert causes(scaled(model(), 1, 1.5, "MLP")) == [("slow_kernels", "Model / Block / MLP", 30.0)]


def test_gaps_inside_a_module_are_its_own() -> None:
    gaps = work("gaps between its parts", "Model_0 / Block_0 / Attention_0")
    assert causes(scaled(model(), 2, 2, "Attention") | {gaps: (0.0, 10.0)}) == [
        ("more_work", "Model / Block / Attention", 50.0)
    ]
    two = scaled(model(), 2, 2, "Attention") | {gaps: (0.0, 30.0)}
    assert causes(two) == [("more_work", "Model / Block / Attention", 70.0)]
    [(kind, name, change_ms)] = causes(model() | {gaps: (0.0, 10.0)})
    assert (kind, name, change_ms) == ("host", "Model / Block / Attention", 10.0)


def test_other_kernels() -> None:
    two = model()
    for layer in range(LAYERS):
        scope = f"Model_0 / Block_{layer} / Attention_{layer}"
        del two[work("flash", scope)]
        two |= {work("softmax", scope): (1.0, 6.0), work("bmm", scope): (2.0, 4.0)}
    [(kind, name, change_ms)] = causes(two)
    assert (kind, name, change_ms) == ("kernels", "Model / Block / Attention", 20.0)


def test_without_modules_the_operator_is_named() -> None:
    one = {work("mm", ""): (1.0, 50.0), work("flash", ""): (1.0, 50.0)}
    two = one | {work("flash", ""): (2.0, 100.0)}
    [found] = difference_causes(one, two, idle_ms=(0, 0), loader_ms=(0, 0))
    assert (found.kind, found.name, found.change_ms) == ("more_work", "flash (forward)", 50.0)


def test_all_kernels_and_all_shapes() -> None:
    assert causes(scaled(model(), 1, 1.3, "")) == [("device", "", 30.0)]
    assert causes(scaled(model(), 1, 0.8, "")) == [("device", "", -20.0)]
    assert causes(model(batch=4)) == [("shapes", "", -50.0)]


def test_what_is_no_computing() -> None:
    scope = "Model_0 / Block_0"
    two = model() | {
        work("all_reduce", scope, class_="communication"): (1.0, 12.0),
        work("copy", scope, class_="memory"): (1.0, 6.0),
        work("mm", scope, direction="recomputation"): (1.0, 25.0),
    }
    assert causes(two, idle_ms=30, loader_ms=20) == [
        ("recomputation", "", 25.0), ("data_loader", "", 20.0), ("communication", "", 12.0), ("host", "", 10.0),
        ("copies", "", 6.0),
    ]  # fmt: skip


def test_a_loader_that_no_device_waits_for_is_no_cause() -> None:
    assert causes(model(), loader_ms=20) == []


@pytest.mark.parametrize(
    ("steps", "named"),
    [
        ([20, 21, 19, 20, 200, 20], False),  # one step that something else on the machine delays
        ([20, 34, 22, 45, 20, 25], False),
        ([50, 51, 49, 50, 200, 50], True),
        ([40, 20, 38, 40, 20, 40], False),
    ],
)
def test_the_scatter_between_steps_is_no_cause(steps: list[float], named: bool) -> None:
    flash = work("flash", "Model_0 / Attention_0")
    one = [20.0] * 6 if steps[1] == 20 else [20, 21, 20, 19, 20, 33]
    found = difference_causes(
        {flash: (1.0, sum(one) / 6)}, {flash: (1.0, sum(steps) / 6)}, idle_ms=(0, 0), loader_ms=(0, 0),
        by_steps={flash: np.array([one, steps])},
    )  # fmt: skip
    assert bool(found) is named


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "part"),
    [("GPT: attention not fused", "kernels", "Attention"), ("encoder: half of the batch", "shapes", "")],
)
def test_a_fault_of_a_real_run_is_named(name: str, kind: str, part: str) -> None:
    from tests.collector.ingest.real_faults import faults

    [fault] = [one for one in faults() if one.name == name]
    named: list[tuple[str, str]] = []
    for _ in range(12):  # other work on the machine can hide it in one recording
        found: tuple[DifferenceCause, ...] = fault.found()[1]
        named += [(one.kind, one.name.rpartition(" / ")[2]) for one in found]
        if (kind, part) in named:
            return
    raise AssertionError(named)


def test_one_run_without_shapes_is_compared_by_kernels() -> None:
    assert causes({one._replace(shapes=""): value for one, value in scaled(model(), 1, 1.5, "").items()}) == [
        ("device", "", 50.0)
    ]


def test_a_loader_that_the_device_does_not_wait_for_is_no_cause() -> None:
    assert causes(model(), idle_ms=20.0, loader_ms=-10.0) == [("host", "", 20.0)]


def test_gaps_of_either_run_count_as_its_step() -> None:
    """A cause of 3 ms is above 1.5 % of 103 ms, and below that of 250 ms."""
    for idle_ms, kinds in (((0, 0), ["slow_kernels"]), ((150, 0), ["host"]), ((0, 150), ["host"])):
        found = difference_causes(model(), scaled(model(), 1, 1.05, "MLP"), idle_ms=idle_ms, loader_ms=(0, 0))
        assert [one.kind for one in found] == kinds


def test_nothing_has_no_cause() -> None:
    assert difference_causes({}, {}, idle_ms=(0.0, 0.0), loader_ms=(0.0, 0.0)) == ()


def test_kernels_of_equal_time_stand_by_name() -> None:
    new = {work(name, "Model_0 / MLP_0"): (1.0, 25.0) for name in ("d", "b", "c", "a")}
    [found] = difference_causes({}, new, idle_ms=(0.0, 0.0), loader_ms=(0.0, 0.0))
    assert found.line.endswith("new are a, b, c")


def random_causes(seed: int) -> tuple[DifferenceCause, ...]:
    """Of two runs of up to two layers: kernels run more often, for longer, or in one of them alone."""
    random, one, two = Random(seed), Made(), Made()
    common, by_steps = random.choice([1, 1, 1.1, 0.8]), {}
    for _ in range(random.randint(1, 14)):
        depth = random.randint(0, 4)
        parts = ["Model_0", f"Block_{random.randint(0, 1)}", random.choice(["MLP_0", "Mix_1"]), "Linear_0"][
            :depth
        ]
        name = random.choice(["a", "b", "c", "d", "gaps between its parts" if depth else "e"])
        class_ = random.choice(["compute"] * 6 + ["communication", "memory"])
        shapes = f"[[{random.randint(1, 4)}]]" if seed % 5 else ""
        key = work(
            name, " / ".join(parts), shapes, random.choice(["forward", "backward", "recomputation"]), class_
        )
        launches, time_ms = (
            0.0 if "gaps" in name else float(random.randint(1, 4)),
            float(random.randint(1, 40)),
        )
        if (change := random.random()) < 0.9:
            one[key] = launches, time_ms
        if change > 0.1:
            more, longer = random.choice([1, 1, 1, 2, 0.5]), random.choice([1, 1, 1.3, 2, 0.6, 1.02])
            two[key] = launches * more, time_ms * longer * common
        if seed % 3 == 0:
            steps = [[values.get(key, (0, 0))[1] * random.choice([0.9, 1, 1, 1.1, 2]) for _ in range(6)]
                     for values in (one, two)]  # fmt: skip
            by_steps[key] = np.array(steps)
    idle_ms, loader_ms = ([random.choice([0.0, 5.0, 20.0]) for _ in range(2)] for _ in range(2))
    return difference_causes(one, two, idle_ms=idle_ms, loader_ms=loader_ms, by_steps=by_steps)


def least_factor(seed: int) -> float:
    """How many times as long all steps of a second run must take until that is said, to a thousandth."""
    random, key = Random(seed), work("flash", "Model_0 / Attention_0")
    one, two = ([random.choice([10, 11, 12, 13, 30]) + random.random() for _ in range(random.randint(1, 12))]
                for _ in range(2))  # fmt: skip
    low, high = 0.9, 20.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        steps = np.full((2, 12), np.nan)
        steps[0, : len(one)], steps[1, : len(two)] = one, np.array(two) * middle
        means = (dict.fromkeys([key], (1.0, float(np.nanmean(run)))) for run in steps)
        if difference_causes(*means, idle_ms=(0, 0), loader_ms=(0, 0), by_steps={key: steps}):
            high = middle
        else:
            low = middle
    return high


def test_causes_of_random_differences_are_as_they_were() -> None:
    found = "".join(
        f"{seed}: {one.kind} {one.name}: {one.line}\n" for seed in range(150) for one in random_causes(seed)
    )
    found += "".join(f"{seed}: longer by {least_factor(seed):.3f}\n" for seed in range(40))
    file = Path(__file__).with_name("differences.txt")
    if "WRITE_WHOLE_TEXTS" in os.environ:
        file.write_text(found)
    assert found == file.read_text()
