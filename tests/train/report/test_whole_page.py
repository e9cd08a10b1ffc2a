"""All that a training's report says, to the digit: `whole_page.txt`, which WRITE_WHOLE_PAGE=1 pytest THIS_FILE writes.

Errors are given, as the libraries of trees change their rounding; of pictures there are the descriptions.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernelcast.runtime.bundle.regressor_entry import PRIOR, HeldOut, Interval
from kernelcast.runtime.operators import Direction
from kernelcast.train.fit import Trained
from kernelcast.train.loads import LoadRatio
from kernelcast.train.notes import Note
from kernelcast.train.report import plots
from kernelcast.train.report.figures import figures, table_rows
from kernelcast.train.report.page import page
from kernelcast.train.report.reference import Reference

TEXT = Path(__file__).with_name("whole_page.txt")
PUBLISHED = Path(__file__).parent.parent.parent / "data" / "importers" / "Example"
_LEFT_OUT = re.compile(r'<(style|script)\b.*?</\1>|sha256-[\w+/=]*|(?<=src=")[^"]*', re.DOTALL)
_LONG = re.compile(r"\d+\.\d{5,}(?:e[-+]\d+)?")


def with_given_errors(trained: Trained) -> Trained:
    """Two roles of the product, an interval by layout, one regressor that is not fitted here."""
    selections, entries = [], []
    for place, (selected, entry) in enumerate(
        zip(trained.selections, trained.manifest.regressors, strict=True)
    ):
        times_us = selected.table.times_us
        roles = dict.fromkeys(entry.role_errors, times_us)
        if entry.operator == "gemm":
            roles["mlp_up"] = np.where(np.arange(len(times_us)) < 10, times_us, np.nan)
        off = np.geomspace(0.8, 1.6, len(times_us))
        off[place] = np.nan if place == 2 else 0.1
        selections.append(
            replace(
                selected,
                table=replace(selected.table, role_times_us=roles),
                held_out_us=times_us * off,
                outliers=(len(times_us) - 1, 0)[: 2 - place],
            )
        )
        by_layout = Interval(
            method="cross_conformal", level=0.9, by="layout", size_bounds=(), layouts=((1, 2),),
            log_half_widths=(0.1, 0.4),
        )  # fmt: skip
        held_out = HeldOut(kind="size", doublings=2.0 + place, rows=10 * (1 + place), inside=0.75)
        entries.append(
            replace(
                entry,
                algorithm="random_forest",
                form="roofline",
                hyperparameters={"n_estimators": 7 + place, "shared": place == 1, "inputs": "product"},
                validation_error=0.01 * (3 + place),
                role_errors={role: 0.02 * (1 + place + at) for at, role in enumerate(roles)},
                interval=Interval.of_all(0.2) if place else by_layout,
                interval_coverage=None if place == 1 else 0.8 + 0.05 * place,
                extrapolation_error=0.3 if place == 2 else None,
                widening=replace(PRIOR, held_out=(held_out,)),
                size_bytes=1000 * (1 + place),
            )
        )
    text = Note(operator="softmax", direction=Direction.FORWARD, text="a note")
    ratio = LoadRatio(
        operator="gelu", direction=Direction.FORWARD, processes_per_node=1, workloads=9, median=1.2, low=1.1, high=1.3
    )  # fmt: skip
    manifest = replace(
        trained.manifest, regressors=tuple(entries), kernelcast_version="1.2.3", dataset_digest="cd" * 16
    )
    return replace(
        trained, path=Path("here.kcast"), manifest=manifest, selections=tuple(selections), digest="ab" * 32,
        notes=(text,), load_ratios=(ratio,),
    )  # fmt: skip


def shown(trained: Trained, reference: Reference | None) -> Iterator[str]:
    found = figures(trained, reference)
    yield from _LEFT_OUT.sub("", page(found)).replace("><", ">\n<").splitlines()
    yield json.dumps(found.to_dict(), indent=1)
    yield from map(str, table_rows(found))
    yield f"{[(one.name, one.title, one.anchor, one.prior, one.is_carried) for one in found.operators]}"


def test_whole_page(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "image", lambda draw, title, description: f"[{title}: {description}]")
    given = with_given_errors(trained)
    first, *others = given.selections
    manifest = replace(given.manifest, regressors=given.manifest.regressors[:1])
    fewer = replace(
        given, manifest=manifest, selections=(), skipped=(), notes=(), load_ratios=(), samples=7, without_quiet=2
    )  # fmt: skip
    lines = [
        *shown(given, Reference.read(PUBLISHED)),
        "*** one regressor taken over ***",
        *shown(replace(given, selections=tuple(others)), None),
        "*** a collective alone ***",
        *shown(fewer, None),
    ]
    assert first.table.operator == "all_reduce"
    printed = _LONG.sub(lambda number: f"{float(number[0]):.5g}", "\n".join(lines)) + "\n"
    if "WRITE_WHOLE_PAGE" in os.environ:
        TEXT.write_text(printed, encoding="utf-8")
    assert printed == TEXT.read_text(encoding="utf-8")
