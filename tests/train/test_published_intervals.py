"""Coverage of the intervals on the authors' published Perlmutter measurements, if these are next to the checkout."""

from pathlib import Path

import numpy as np
import pytest

from kernelcast.runtime.bundle.regressor_entry import LEVEL
from kernelcast.store.importers import read_estimate_train_time
from kernelcast.train import selection
from kernelcast.train.dataset import Row, tables
from kernelcast.train.intervals import calibrate, log_half_widths
from kernelcast.train.selection import select

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "estimate-train-time" / "Perlmutter"
# Enough to see the coverage of each operator within some points, few enough for a test.
MOST_ROWS = 1500


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER.is_dir(), reason="no ../shared/data/estimate-train-time next to the checkout")
def test_nine_in_ten_rows_never_seen_lie_within(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of the rows is held out from fitting, selection and calibration."""
    # The coverage must not depend on how good the fit is: one quick candidate per form will do.
    boosted = [c for c in selection.all_candidates().every if c.algorithm == "xgboost" and c.form != "raw"]
    quick = {c.form: c for c in reversed(boosted)}
    some = selection.all_candidates()._replace(every=list(quick.values()))
    monkeypatch.setattr(selection, "all_candidates", lambda: some)
    rows = [
        Row(operator=s.operator, direction=s.direction, vector=s.vector, time_us=s.time_us)
        for batch in read_estimate_train_time([FOLDER]).runs
        for s in batch.samples
        if s.time_us is not None and s.time_us > 0
    ]
    generator = np.random.default_rng(5)
    covered, counted = {}, {}
    for table in tables(rows, statistic="middle_five"):
        order = generator.permutation(len(table))[:MOST_ROWS]
        seen, unseen = table.part(order[len(order) // 5 :]), table.part(order[: len(order) // 5])
        selected = select(seen, 20)
        calibrated = calibrate(seen, selected.held_out_us, 20)
        name = f"{table.operator} ({table.direction})"
        assert calibrated.coverage is not None, name
        assert 0.85 <= calibrated.coverage <= 0.95, f"{name} says {calibrated.coverage}"
        off = np.abs(np.log(selected.regressor.predict_us(unseen.workloads) / unseen.times_us))
        covered[name] = float(np.mean(off <= log_half_widths(calibrated.interval, unseen.workloads)))
        counted[name] = len(unseen)
    assert len(covered) >= 30
    for name, share in covered.items():
        # Of n rows, the share itself varies: three deviations of a binomial share beyond the five points.
        allowed = 0.05 + 3 * (LEVEL * (1 - LEVEL) / counted[name]) ** 0.5
        assert abs(share - LEVEL) <= allowed, f"{name}: {share} of {counted[name]} rows"
    assert np.mean(list(covered.values())) == pytest.approx(LEVEL, abs=0.02)
