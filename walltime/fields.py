"""What a job's description may say: every field, what it means and what it accepts, from TOML or as text.

The one table behind `kernelcast.toml`, `#KERNELCAST` lines, the site file and the options of the command.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import get_args

from kernelcast.runtime.request.layout import MAX_DEGREE, Recompute, Schedule
from kernelcast.runtime.step.timeline_kinds import TimelineKind
from kernelcast.walltime.durations import read_duration

Value = int | float | str | bool | tuple[int, ...]

DEFAULT_MARGIN = 0.1
MAX_STEPS = 10**12
MAX_TOKENS = 10**18
# A century; nothing that a scheduler runs takes longer.
_MAX_DURATION_S = 100 * 366 * 86_400.0
_LONGEST_TEXT = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a field accepts, in words, and its reading; `read` answers None for anything else."""

    expected: str
    read: Callable[[object], Value | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field. `site_only` fields stand in the site file only."""

    name: str
    kind: Kind
    help: str
    site_only: bool = False

    @property
    def option(self) -> str:
        """Its option on the command line."""
        return "--" + self.name.replace("_", "-")


def _decimal(value: object) -> Decimal | None:
    """An exact number, from a number or its text (`1e9`, `1_000`); never one of thousands of digits."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text = value.strip() if isinstance(value, str) else str(value)
    if len(text) > 50 or not re.fullmatch(r"[+-]?[0-9][0-9_]*(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?", text):
        return None
    try:
        return Decimal(text.replace("_", ""))
    except InvalidOperation:
        return None


def _whole(low: int, high: int) -> Kind:
    def read(value: object) -> int | None:
        number = _decimal(value)
        if number is None or not low <= number <= high or number != number.to_integral_value():
            return None
        return int(number)

    return Kind(expected=f"a whole number from {low} to {_power(high)}", read=read)


def _power(number: int) -> str:
    exponent = round(math.log10(number))
    return f"1e{exponent}" if exponent > 5 and number == 10**exponent else str(number)


def _number(low: float, high: float) -> Kind:
    def read(value: object) -> float | None:
        number = _decimal(value)
        return float(number) if number is not None and low <= number <= high else None

    return Kind(expected=f"a number from {low:g} to {high:g}", read=read)


def _share() -> Kind:
    def read(value: object) -> float | None:
        percent = isinstance(value, str) and value.endswith("%")
        number = _decimal(value[:-1] if isinstance(value, str) and percent else value)
        if number is None:
            return None
        share = number / 100 if percent else number
        return float(share) if 0 <= share <= 10 else None

    return Kind(expected="a fraction from 0 to 10 or a percentage such as 15%", read=read)


def _duration(*, least_s: float = 0.0) -> Kind:
    def read(value: object) -> float | None:
        if isinstance(value, str):
            duration_s = read_duration(value.strip())
        else:
            number = _decimal(value)
            duration_s = None if number is None else float(number)
        return duration_s if duration_s is not None and least_s <= duration_s <= _MAX_DURATION_S else None

    least = f", {least_s:g} s or longer" if least_s else ""
    return Kind(
        expected=f"seconds, or a time such as 90s, 5m, 1h30m, 01:30:00 or 1-12:00:00{least}", read=read
    )


def _choice(choices: Sequence[str]) -> Kind:
    def read(value: object) -> str | None:
        return value if isinstance(value, str) and value in choices else None

    return Kind(expected=_either(choices), read=read)


def _either(choices: Sequence[str]) -> str:
    *others, last = choices
    return f"{', '.join(others)} or {last}"


def _flag() -> Kind:
    def read(value: object) -> bool | None:
        if isinstance(value, bool):
            return value
        return {"true": True, "false": False}.get(value) if isinstance(value, str) else None

    return Kind(expected="true or false", read=read)


def _text(expected: str) -> Kind:
    def read(value: object) -> str | None:
        if not isinstance(value, str) or not value.strip() or len(value) > _LONGEST_TEXT or "\0" in value:
            return None
        return value

    return Kind(expected=expected, read=read)


def _counts() -> Kind:
    one = _whole(0, MAX_DEGREE)

    def read(value: object) -> tuple[int, ...] | None:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list) or not 0 < len(parts) <= MAX_DEGREE:
            return None
        counts = [one.read(part) for part in parts]
        return tuple(count for count in counts if isinstance(count, int)) if None not in counts else None

    return Kind(expected="whole numbers, one per stage, such as 11,12,12,9", read=read)


_DEGREE = _whole(1, MAX_DEGREE)
_FILE = "a file's path"

FIELDS: Mapping[str, Field] = MappingProxyType(
    {
        field.name: field
        for field in (
            Field(name="bundle", kind=_text(_FILE), help="Bundle of regressors (.kcast)."),
            Field(
                name="model",
                kind=_text("a model's name or a file's path"),
                help="Model: its name, or its file.",
            ),
            Field(
                name="sequence_length",
                kind=_whole(1, 2**31 - 1),
                help="Tokens per sample.  [default: the model's]",
            ),
            Field(name="pp", kind=_DEGREE, help="Pipeline stages.  [default: 1]"),
            Field(name="tp", kind=_DEGREE, help="Model (tensor) parallel degree.  [default: 1]"),
            Field(name="dp", kind=_DEGREE, help="Data parallel degree.  [default: 1]"),
            Field(name="micro_batch", kind=_DEGREE, help="Samples per micro-batch."),
            Field(name="micro_batches", kind=_DEGREE, help="Micro-batches per update (step)."),
            Field(
                name="global_batch",
                kind=_whole(1, MAX_DEGREE**2),
                help="Samples per update, instead of micro-batches.",
            ),
            Field(
                name="recompute",
                kind=_choice(get_args(Recompute)),
                help=f"Activation recomputation: {_either(get_args(Recompute))}.",
            ),
            Field(
                name="schedule",
                kind=_choice(get_args(Schedule)),
                help=f"Pipeline schedule: {_either(get_args(Schedule))}.",
            ),
            Field(name="virtual_stages", kind=_DEGREE, help="Chunks per device, with interleaved."),
            Field(name="zero", kind=_whole(0, 3), help="ZeRO stage, 0 to 3."),
            Field(name="sequence_parallel", kind=_flag(), help="Sequence parallelism: true or false."),
            Field(name="layer_counts", kind=_counts(), help="Encoders of each stage: 11,12,12,9."),
            Field(
                name="gpus_per_node",
                kind=_DEGREE,
                help="GPUs per node.  [default: the job's, else the bundle's]",
            ),
            Field(
                name="bucket_entries",
                kind=_whole(1, 2**63 - 1),
                help="Entries of the framework's bucket for gradient collectives.",
            ),
            Field(
                name="timeline",
                kind=_choice(get_args(TimelineKind)),
                help="simulate (exactly, the default) or closed-form (the paper's eq. 7).",
            ),
            Field(name="steps", kind=_whole(1, MAX_STEPS), help="Steps (updates) that the job runs."),
            Field(
                name="tokens", kind=_whole(1, MAX_TOKENS), help="Tokens that it trains on, instead of steps."
            ),
            Field(
                name="startup", kind=_duration(), help="From the job's start to its first step.  [default: 0]"
            ),
            Field(name="checkpoint_every", kind=_whole(1, MAX_STEPS), help="Steps between checkpoints."),
            Field(
                name="checkpoint_cost", kind=_duration(), help="How long one checkpoint stops the training."
            ),
            Field(name="restarts", kind=_whole(0, 1_000_000), help="Restarts to allow for inside the job."),
            Field(
                name="restart_cost",
                kind=_duration(),
                help="From a failure to the next step, or from a job's end to its continuation's first step.  "
                "[default: startup]",
            ),
            Field(name="margin", kind=_share(), help="Added to the interval's upper end.  [default: 10%]"),
            Field(name="price", kind=_number(0, 1e9), help="Price of one GPU for one hour."),
            Field(name="max_time", kind=_duration(least_s=1), help="Longest time that one job may take."),
            Field(
                name="models",
                kind=_text("a folder's path"),
                help="Folder whose model files everyone may name.",
                site_only=True,
            ),
        )
    }
)

PATHS = frozenset({"bundle", "models"})
"""Fields that are always paths, relative to the file that gives them; `model` is one when it looks like one."""
