"""Step times in the logs of training frameworks: each line's wording is a row of a table."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from kernelcast.runtime.errors import DataError, shown_path
from kernelcast.runtime.small_file import read_small_file

_MOST_BYTES = 1 << 28
_WARM_UP = 2  # lines: compilation, allocation and first connections are in them
_NUMBER = r"([0-9][0-9,]*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Wording:
    """How a framework prints its speed: `unit` says what the number is, a time or a rate."""

    framework: str
    pattern: re.Pattern[str]
    unit: str


def _wording(framework: str, before: str, unit: str, after: str = "") -> Wording:
    return Wording(framework, re.compile(before + _NUMBER + after), unit)


WORDINGS = (
    _wording("Megatron-LM", r"elapsed time per iteration \(ms\): *", "ms"),
    _wording("NeMo", r"train_step_timing in s(?:econds)?\W+", "s"),
    _wording("DeepSpeed", r"CurrSamplesPerSec=", "samples/s"),
    _wording("DeepSpeed", r"SamplesPerSec=", "samples/s"),
    _wording("torchtitan", r"\btps: *", "tokens/s/device"),
    _wording("Composer", r"throughput/batches_per_sec\W+", "steps/s"),
    _wording("Composer", r"throughput/tokens_per_sec\W+", "tokens/s"),
    _wording("Composer", r"throughput/device/tokens_per_sec\W+", "tokens/s/device"),
    # The Trainer's own summary, whole epochs with evaluation left out; then its progress bar, step by step.
    _wording("Hugging Face Trainer", r"train_steps_per_second\W+", "steps/s"),
    _wording("Hugging Face Trainer", r"\d+/\d+ \[[^\]]*, *", "s", r" ?s/it"),
    _wording("Hugging Face Trainer", r"\d+/\d+ \[[^\]]*, *", "steps/s", r" ?it/s"),
)
"""The first wording that a log has is what counts: of two that one framework prints, the finer one stands first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedSteps:
    """The step times of a log, in its order and without the first two where it has more than four. Seconds."""

    framework: str
    steps_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return median(self.steps_s)


def logged_steps(path: Path, *, samples: int, tokens: int, devices: int) -> LoggedSteps:
    """Read the step times of a log of steps with `samples` and `tokens` on `devices`; DataError without any."""
    where = f"log {shown_path(path)}"
    content = read_small_file(path, where=where, most_bytes=_MOST_BYTES, expected="a training log")
    text = _COLOURS.sub("", content.decode(errors="replace"))
    amounts = {
        "steps/s": 1.0,
        "samples/s": float(samples),
        "tokens/s": float(tokens),
        "tokens/s/device": tokens / devices,
    }
    for wording in WORDINGS:
        values = [float(found.replace(",", "")) for found in wording.pattern.findall(text)]
        steps_s = tuple(_seconds(value, wording.unit, amounts) for value in values if value > 0)
        if steps_s:
            steady = steps_s[_WARM_UP:] if len(steps_s) > 2 * _WARM_UP else steps_s
            return LoggedSteps(framework=wording.framework, steps_s=steady)
    known = ", ".join(dict.fromkeys(wording.framework for wording in WORDINGS))
    raise DataError(f"{where}: tells no step time, expected a log of {known}")


def _seconds(value: float, unit: str, amounts: Mapping[str, float]) -> float:
    if unit == "ms":
        return value / 1e3
    return value if unit == "s" else amounts[unit] / value
