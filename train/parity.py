"""Compares an exported model with the Python regressor, before anybody sees it."""

import numpy as np

from kernelcast.runtime.answers.onnx_runtime import onnx_runtime
from kernelcast.runtime.answers.predictor import INPUT_NAME, OUTPUT_NAMES
from kernelcast.runtime.bundle.interval import Interval
from kernelcast.runtime.errors import DataError
from kernelcast.train.dataset import Array, Table
from kernelcast.train.intervals import log_half_widths
from kernelcast.train.regressor import Regressor

PARITY_TOLERANCE = 1e-4
_RANDOM_ROWS = 256
_BEYOND = 4.0


def check_parity(model: bytes, regressor: Regressor, interval: Interval, table: Table, seed: int) -> float:
    """Largest relative difference between ONNX and Python, over all outputs, all rows and random rows around them.

    Raises:
        DataError: it exceeds `PARITY_TOLERANCE`, or the model cannot be run.
    """
    where = f"{table.operator} ({table.direction})"
    workloads = np.concatenate([table.workloads, _random_workloads(table.workloads, seed)])
    try:
        session = onnx_runtime().InferenceSession(model, providers=["CPUExecutionProvider"])
        answers = session.run(OUTPUT_NAMES, {INPUT_NAME: workloads.astype(np.float32)})
    except Exception as error:
        # ONNX Runtime has exception types of its own, without a common base.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{where}: the exported model cannot be run ({reason})") from error
    expected_us = regressor.predict_us(workloads)
    factors = np.exp(log_half_widths(interval, workloads))
    worst = 0.0
    for name, answer, expected in zip(
        OUTPUT_NAMES, answers, (expected_us, expected_us / factors, expected_us * factors), strict=True
    ):
        difference = float(np.max(np.abs(answer[:, 0] / expected - 1)))
        if not difference <= PARITY_TOLERANCE:
            raise DataError(
                f"{where}: ONNX answers {name} that differs from Python's by {difference:.1e}, "
                f"expected at most {PARITY_TOLERANCE:.0e}"
            )
        worst = max(worst, difference)
    return worst


def _random_workloads(workloads: Array, seed: int) -> Array:
    """Whole numbers, half of them within the range of each feature and half beyond it too."""
    generator = np.random.default_rng(seed)
    low, high = np.maximum(workloads.min(axis=0), 1), np.maximum(workloads.max(axis=0), 1)
    beyond = np.repeat([1.0, _BEYOND], _RANDOM_ROWS // 2)[:, None]
    share = generator.random((_RANDOM_ROWS, workloads.shape[1]))
    drawn: Array = np.round(low * (high * beyond / low) ** share)
    return drawn
