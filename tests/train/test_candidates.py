"""Which candidates a table tries, by its rows alone."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelcast.runtime.operators import Direction
from kernelcast.train import regressor
from kernelcast.train.dataset import Table
from kernelcast.train.regressor import (
    _FASTEST_RATE,
    RICH_ROWS,
    SEARCH_BUDGET,
    Candidate,
    all_candidates,
    applicable,
)

TEXT = Path(__file__).with_name("candidates.txt")


def tried(table: Table) -> list[Candidate]:
    return applicable(all_candidates(), table)


def test_every_candidate_of_every_table(make_table: Callable[..., Table]) -> None:
    """Algorithm, form, inputs and settings, to the digit: `candidates.txt`, which WRITE_CANDIDATES=1 writes again.

    Fits, and with them bundles that ship, follow from these: a change is meant, and noted.
    """
    tables = [("gemm", Direction.FORWARD, count) for count in (20, RICH_ROWS - 1, RICH_ROWS)]
    tables += [(name, Direction.FORWARD, RICH_ROWS) for name in ("batched_gemm", "flash_attention", "gelu")]
    tables += [("all_reduce", Direction.ONCE, count) for count in (20, RICH_ROWS)]
    lines = []
    for operator, direction, count in tables:
        found = tried(make_table(operator, direction, count))
        lines += [
            f"{operator}, {count} rows: {len(found)} of {len(all_candidates().every)} and "
            f"{len(all_candidates().collective)} candidates"
        ]
        lines += [f"  {c.algorithm} {c.form} {json.dumps(c.settings, sort_keys=True)}" for c in found]
    lines.append(f"at most {_FASTEST_RATE} per tree, {SEARCH_BUDGET:g} in all")
    if "WRITE_CANDIDATES" in os.environ:
        TEXT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert lines == TEXT.read_text(encoding="utf-8").splitlines()


def test_vast_tables_try_what_the_budget_allows(
    make_table: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(count=RICH_ROWS)
    everything = tried(table)
    assert len(everything) * 1000 * RICH_ROWS < SEARCH_BUDGET
    monkeypatch.setattr(regressor, "SEARCH_BUDGET", 1000 * RICH_ROWS)
    some = tried(table)
    assert 1 < len(some) < len(everything)
    monkeypatch.setattr(regressor, "SEARCH_BUDGET", 1)
    assert len(tried(table)) == 1


def test_settings_say_everything() -> None:
    settings = [(c.algorithm, c.form, *sorted(c.settings.items())) for kind in all_candidates() for c in kind]
    assert len({repr(s) for s in settings}) == len(settings)
