"""Which candidates a table tries, by its rows alone."""

from collections.abc import Callable

import pytest

from kernelcast.runtime.operators import Direction
from kernelcast.train import candidates
from kernelcast.train.candidates import (
    CANDIDATES,
    COLLECTIVE_CANDIDATES,
    RICH_ROWS,
    SEARCH_BUDGET,
    applicable,
)
from kernelcast.train.dataset import Table
from kernelcast.train.regressor import Candidate


def tried(table: Table) -> list[Candidate]:
    return applicable(CANDIDATES, COLLECTIVE_CANDIDATES, table)


def test_few_rows_try_few(make_table: Callable[..., Table]) -> None:
    few, many = tried(make_table(count=20)), tried(make_table(count=RICH_ROWS))
    assert {c.form for c in few} == {"raw", "power_law", "roofline"}
    assert {c.algorithm for c in few} == {"random_forest", "xgboost"}
    assert not any(c.inputs != "product" for c in few)
    assert len(few) < len(many)


def test_few_rows_try_fewer_trees(make_table: Callable[..., Table]) -> None:
    def trees(table: Table) -> dict[tuple[str, str, str], tuple[object, ...]]:
        return {
            (c.algorithm, c.form, str(c.hyperparameters["max_depth"])): (
                c.hyperparameters["n_estimators"],
                c.hyperparameters.get("learning_rate"),
            )
            for c in tried(table)
            if c.inputs == "product"
        }

    few, many = trees(make_table(count=RICH_ROWS - 1)), trees(make_table(count=RICH_ROWS))
    assert (few["random_forest", "raw", "8"], many["random_forest", "raw", "8"]) == ((10, None), (40, None))
    assert (few["xgboost", "roofline", "1"], many["xgboost", "roofline", "1"]) == ((20, 0.3), (60, 0.1))
    assert (few["xgboost", "raw", "4"], many["xgboost", "raw", "4"]) == ((26, 0.3), (80, 0.15))
    assert ("random_forest", "power_law", "8") not in few


@pytest.mark.parametrize(
    ("operator", "kind"),
    [("gemm", "tiles"), ("batched_gemm", "tiles"), ("flash_attention", "shapes"), ("gelu", "shapes")],
)
def test_matrix_products_are_seen_in_tiles(
    make_table: Callable[..., Table], operator: str, kind: str
) -> None:
    found = {c.inputs for c in tried(make_table(operator, count=RICH_ROWS))}
    assert found == {"product", kind}


def test_collectives_try_latency_and_bandwidth(make_table: Callable[..., Table]) -> None:
    few = tried(make_table("all_reduce", Direction.ONCE, 20))
    many = tried(make_table("all_reduce", Direction.ONCE, RICH_ROWS))
    assert {c.form for c in few} == {"raw", "power_law", "roofline", "latency_bandwidth"}
    assert {c.form for c in many} == {"raw", "latency_bandwidth"}
    assert len(many) > 5


def test_vast_tables_try_what_the_budget_allows(
    make_table: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(count=RICH_ROWS)
    everything = tried(table)
    assert len(everything) * 1000 * RICH_ROWS < SEARCH_BUDGET
    monkeypatch.setattr(candidates, "SEARCH_BUDGET", 1000 * RICH_ROWS)
    some = tried(table)
    assert 1 < len(some) < len(everything)
    monkeypatch.setattr(candidates, "SEARCH_BUDGET", 1)
    assert len(tried(table)) == 1


def test_settings_say_everything() -> None:
    settings = [
        (c.algorithm, c.form, *sorted(c.settings.items())) for c in (*CANDIDATES, *COLLECTIVE_CANDIDATES)
    ]
    assert len({repr(s) for s in settings}) == len(settings)
