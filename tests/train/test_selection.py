"""The choice among candidates: measured on rows that were held out, the smallest error wins, all rows are refitted."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from kernelcast.train import selection
from kernelcast.train.baseline import Constant
from kernelcast.train.dataset import Array, Table
from kernelcast.train.regressor import Candidate, Candidates, Regressor, all_candidates, fit
from kernelcast.train.selection import (
    FEWEST_ROWS,
    _Search,
    largest_quarters,
    relative_errors,
    select,
)

SEED = 20


class Remembering:
    """Stands for trees that answer exactly what they were fitted on and `wrong` times too much elsewhere."""

    def __init__(self, table: Table, wrong: Callable[[tuple[float, ...]], float]) -> None:
        self.known = {tuple(w): t for w, t in zip(table.workloads.tolist(), table.times_us, strict=True)}
        self.wrong = wrong

    def predict(self, inputs: Array) -> Array:
        rows = [tuple(row[:-1]) for row in inputs.tolist()]
        return np.log([self.known.get(row, 100 * (1 + self.wrong(row))) for row in rows])


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Table]]:
    """Records every fit. A candidate whose form is a number predicts held-out rows too large by that share."""
    calls: list[tuple[str, Table]] = []

    def recorded(candidate: Candidate, table: Table, seed: int) -> Regressor:
        calls.append((candidate.form, table))
        assert seed == SEED
        share = float(candidate.form)
        trees = Remembering(table, lambda row: share)
        return Regressor(
            candidate=candidate, operator=table.operator, baseline=Constant(mean_log_us=0.0), trees=trees
        )

    monkeypatch.setattr(selection, "fit", recorded)
    shares = ("0.5", "0.25", "0.75")
    candidates = [Candidate(algorithm="remembering", form=s, hyperparameters={}) for s in shares]
    monkeypatch.setattr(selection, "all_candidates", lambda: Candidates(candidates, ()))
    return calls


@pytest.mark.parametrize("count", [FEWEST_ROWS, 22])
def test_the_choice_and_the_error_are_of_rows_that_were_held_out(
    make_table: Callable[..., Table], fits: list[tuple[str, Table]], count: int
) -> None:
    table = make_table(law=lambda v: 100.0, count=count)
    selected = select(table, SEED)
    # Whatever was fitted is exact, so the error of a quarter can only come from rows that were not.
    assert selected.validation_error == pytest.approx(0.25)
    assert selected.held_out_us == pytest.approx(np.full(count, 125.0))
    assert selected.regressor.candidate.form == "0.25"
    # Each candidate without every pair of the five folds.
    everything = {tuple(w) for w in table.workloads.tolist()}
    without = {
        form: [everything - rows_of(part) for _, part in fits[start : start + 10]]
        for start, form in ((0, "0.5"), (10, "0.25"), (20, "0.75"))
    }
    assert [form for form, _ in fits[:30]] == [form for form in without for _ in range(10)]
    for pairs in without.values():
        assert all(sum(row in pair for pair in pairs) == 4 for row in everything)
        assert all(count - len(pair) >= 4 for pair in pairs)
    # Of the fits of everything there is one, the winner's.
    assert [form for form, part in fits if rows_of(part) == everything] == ["0.25"]


def rows_of(table: Table) -> set[tuple[float, ...]]:
    return {tuple(w) for w in table.workloads.tolist()}


def test_the_reported_error_is_of_rows_that_had_no_part_in_the_choice(
    make_table: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two candidates by hand: A errs by 0.2 everywhere, B by 1.5 on one row and 0.1 on the others."""
    table = make_table(law=lambda v: 100.0, count=10)
    unlucky = tuple(table.workloads[3])
    errors: dict[str, Callable[[tuple[float, ...]], float]] = {
        "A": lambda row: 0.2,
        "B": lambda row: 1.5 if row == unlucky else 0.1,
    }

    def fake(candidate: Candidate, part: Table, seed: int) -> Regressor:
        trees = Remembering(part, errors[candidate.form])
        return Regressor(
            candidate=candidate, operator="gelu", baseline=Constant(mean_log_us=0.0), trees=trees
        )

    monkeypatch.setattr(selection, "fit", fake)
    candidates = [Candidate(algorithm="remembering", form=form, hyperparameters={}) for form in "AB"]
    monkeypatch.setattr(selection, "all_candidates", lambda: Candidates(candidates, ()))
    selected = select(table, SEED)
    # Means over all ten rows: A 0.2, B 0.24. Without the two rows of the unlucky split B's 0.1 wins there instead.
    assert selected.regressor.candidate.form == "A"
    assert selected.validation_error == pytest.approx((8 * 0.2 + 0.1 + 1.5) / 10)
    # The same, row by row: what the other rows chose predicted each, without it.
    assert sorted(selected.held_out_us.round(6)) == pytest.approx([110] + [120] * 8 + [250])
    assert selected.held_out_us[3] == pytest.approx(250)


@pytest.mark.usefixtures("few_candidates")
def test_a_changed_time_changes_nothing_that_predicts_its_row(make_table: Callable[..., Table]) -> None:
    """Nested: were the row in any choice or fit behind its own prediction, a factor of a hundred would show."""
    table = make_table(noise=0.3, count=15)
    before = select(table, SEED)
    times_us = table.times_us.copy()
    times_us[4] *= 100
    after = select(replace(table, times_us=times_us), SEED)
    assert after.held_out_us[4] == before.held_out_us[4]
    assert (after.held_out_us != before.held_out_us).any()


@pytest.mark.usefixtures("few_candidates")
def test_every_candidate_is_tried_with_the_level_below_too_where_there_is_one(
    make_table: Callable[..., Table],
) -> None:
    base = make_table(count=12)
    table = replace(base, times_us=1.5 * base.times_us, processes_per_node=2)
    alone = _Search(table=table, base=None, seed=SEED).tried()[0]
    assert not any(one.shared for one in alone)
    both = _Search(table=table, base=base, seed=SEED).tried()[0]
    assert list(both) == [*alone, *(replace(one, shared=True) for one in alone)]


def test_equal_errors_leave_the_choice_to_extrapolation_then_size(
    make_table: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(law=lambda v: 100.0, count=30)
    # Error within the samples and beyond them, tree nodes.
    figures = {
        "large": (0.100, 0.10, 900),
        "small": (0.102, 0.12, 100),
        "far": (0.101, 0.13, 10),
        "bad": (0.110, 0.10, 1),
    }

    class Sized(Regressor):
        @property
        def tree_nodes(self) -> int:
            return figures[self.candidate.form][2]

    def fake(candidate: Candidate, part: Table, seed: int) -> Regressor:
        return Sized(
            candidate=candidate,
            operator="gelu",
            baseline=Constant(mean_log_us=0.0),
            trees=Remembering(part, lambda row: figures[candidate.form][0]),
        )

    monkeypatch.setattr(selection, "fit", fake)
    monkeypatch.setattr(
        selection._Search, "extrapolation_error", lambda self, candidate, rows: figures[candidate.form][1]
    )

    def chosen(*forms: str) -> str:
        candidates = [Candidate(algorithm="remembering", form=form, hyperparameters={}) for form in forms]
        monkeypatch.setattr(selection, "all_candidates", lambda: Candidates(candidates, ()))
        selected = select(table, SEED)
        form = selected.regressor.candidate.form
        assert (selected.validation_error, selected.extrapolation_error) == pytest.approx(figures[form][:2])
        return form

    assert chosen("large", "far", "small", "bad") == "small"
    assert chosen("large", "bad") == "large"
    assert chosen("small", "far") == "far"


def test_noise_cannot_be_learnt_and_is_reported(make_table: Callable[..., Table]) -> None:
    table = make_table(law=lambda v: 100.0, noise=1.0, count=30)
    selected = select(table, SEED)
    fitted = float(np.mean(relative_errors(selected.regressor.predict_us(table.workloads), table.times_us)))
    assert selected.validation_error > 0.5
    assert selected.validation_error > fitted
    assert select(make_table(count=30), SEED).validation_error < 0.02


@pytest.mark.usefixtures("few_candidates")
def test_the_same_seed_chooses_the_same(make_table: Callable[..., Table]) -> None:
    table = make_table(noise=0.3, count=15)
    one, two = select(table, SEED), select(table, SEED)
    assert one.regressor.candidate == two.regressor.candidate
    assert one.validation_error == two.validation_error
    assert (
        one.regressor.predict_us(table.workloads).tolist()
        == two.regressor.predict_us(table.workloads).tolist()
    )
    assert select(table, SEED + 1).validation_error != one.validation_error


def steps(v: tuple[int, ...]) -> float:
    """Twelve times longer above a size: nothing that a formula follows."""
    return 10.0 if v[0] < 20 else 120.0


def power_law(v: tuple[int, ...]) -> float:
    return float(2 * v[0] ** 0.6 * v[1] ** 0.7 * v[2] ** 0.4)


def latency_and_work(v: tuple[int, ...]) -> float:
    return 50 + v[0] * v[1] * v[2] * 2e-5


@pytest.mark.parametrize(
    ("law", "form"), [(steps, "raw"), (power_law, "power_law"), (latency_and_work, "roofline")]
)
def test_each_form_wins_on_its_own_law(
    make_table: Callable[..., Table], law: Callable[[tuple[int, ...]], float], form: str
) -> None:
    selected = select(make_table(law=law, noise=0.01, count=24), SEED)
    assert selected.regressor.candidate.form == form
    assert selected.validation_error < 0.1


def test_each_algorithm_can_win(make_table: Callable[..., Table]) -> None:
    tables = [make_table(law=law, count=24) for law in (steps, latency_and_work)]
    won = {select(table, SEED).regressor.candidate.algorithm for table in tables}
    assert won == {"random_forest", "xgboost"}


def test_a_candidate_without_a_number_never_wins(
    make_table: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def predict(self, inputs: Array) -> Array:
            return np.full(len(inputs), np.nan)

    def fake(candidate: Candidate, table: Table, seed: int) -> Regressor:
        fitted = fit(candidate, table, seed)
        return fitted if candidate.form == "roofline" else replace(fitted, trees=Broken())

    monkeypatch.setattr(selection, "fit", fake)
    selected = select(make_table(count=10), SEED)
    assert selected.regressor.candidate.form == "roofline"
    assert np.isfinite(selected.validation_error)


def test_relative_errors_are_per_row(make_table: Callable[..., Table]) -> None:
    table = make_table(law=lambda v: 100.0, count=4)
    first = replace(table, workloads=table.workloads[:1], times_us=table.times_us[:1])
    trees = Remembering(first, lambda row: -0.5)
    known = Regressor(
        candidate=all_candidates().every[0],
        operator=table.operator,
        baseline=Constant(mean_log_us=0.0),
        trees=trees,
    )
    predicted_us = known.predict_us(table.workloads)
    assert relative_errors(predicted_us, table.times_us) == pytest.approx([0, 0.5, 0.5, 0.5])
    assert relative_errors(np.array([np.nan, 100.0]), np.array([100.0, 100.0])).tolist() == [np.inf, 0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (range(1, 9), {7, 8}),
        ([*range(1, 8), 8, 8, 8, 8, 8], {8}),  # more than a quarter have the largest value
        ([1, 1, 2, 2, 3, 3], None),  # too few values
    ],
)
def test_the_largest_quarter(values: Sequence[int], expected: set[int] | None) -> None:
    workloads = np.array([[one, 5, 2 * one] for one in values], dtype=float)
    found = largest_quarters(workloads)
    assert [(one.features, set(workloads[one.rows, 0])) for one in found] == (
        [((0, 2), expected)] if expected else []
    )
