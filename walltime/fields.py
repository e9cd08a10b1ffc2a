"""What a job's description may say: the fields of a request (runtime/request/fields.py), and those of a job.

The table behind `kernelcast.toml`, `#KERNELCAST` lines, the site file and the options of the command.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kernelcast.runtime.request.fields import REQUEST, Field, Text, Whole, read_decimal, table
from kernelcast.walltime.durations import read_duration

DEFAULT_MARGIN = 0.1
_MAX_STEPS = 10**12
# A century; nothing that a scheduler runs takes longer.
_MAX_DURATION_S = 100 * 366 * 86_400.0


class _Read:
    """A kind whose values of TOML and JSON are read as their text is."""

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": ["number", "string"]}

    def accepts(self, value: object) -> bool:
        return self.read(value) is not None

    def read(self, value: object) -> float | None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Number(_Read):
    """A number from `low` to `high`."""

    low: float
    high: float

    @property
    def expected(self) -> str:
        """The range."""
        return f"a number from {self.low:g} to {self.high:g}"

    def read(self, value: object) -> float | None:
        """Also of text."""
        number = read_decimal(value)
        return float(number) if number is not None and self.low <= number <= self.high else None


class Share(_Read):
    """A fraction, or a percentage as text."""

    expected = "a fraction from 0 to 10 or a percentage such as 15%"

    def read(self, value: object) -> float | None:
        """The fraction."""
        percent = isinstance(value, str) and value.endswith("%")
        number = read_decimal(value[:-1] if isinstance(value, str) and percent else value)
        if number is None:
            return None
        share = number / 100 if percent else number
        return float(share) if 0 <= share <= 10 else None


@dataclass(frozen=True, slots=True)
class Duration(_Read):
    """A time of `least_s` or longer."""

    least_s: float = 0.0

    @property
    def expected(self) -> str:
        """The forms of a time."""
        least = f", {self.least_s:g} s or longer" if self.least_s else ""
        return f"seconds, or a time such as 90s, 5m, 1h30m, 01:30:00 or 1-12:00:00{least}"

    def read(self, value: object) -> float | None:
        """Seconds."""
        if isinstance(value, str):
            duration_s = read_duration(value.strip())
        else:
            number = read_decimal(value)
            duration_s = None if number is None else float(number)
        return (
            duration_s if duration_s is not None and self.least_s <= duration_s <= _MAX_DURATION_S else None
        )


FIELDS: Mapping[str, Field] = MappingProxyType(
    {
        **table(
            Field(name="bundle", kind=Text("a file's path"), help="Bundle of regressors (.kcast)."),
            Field(
                name="model",
                kind=Text("a model's name or a file's path"),
                help="Model: its name, or its file.",
            ),
        ),
        **REQUEST,
        **table(
            Field(name="steps", kind=Whole(1, _MAX_STEPS), help="Steps (updates) that the job runs."),
            Field(name="tokens", kind=Whole(1, 10**18), help="Tokens that it trains on, instead of steps."),
            Field(name="startup", kind=Duration(), help="From the job's start to its first step.", default=0),
            Field(name="checkpoint_every", kind=Whole(1, _MAX_STEPS), help="Steps between checkpoints."),
            Field(
                name="checkpoint_cost", kind=Duration(), help="How long one checkpoint stops the training."
            ),
            Field(name="restarts", kind=Whole(0, 1_000_000), help="Restarts to allow for inside the job."),
            Field(
                name="restart_cost",
                kind=Duration(),
                help="From a failure to the next step, or from a job's end to its continuation's first step.",
                otherwise="startup",
            ),
            Field(
                name="margin",
                kind=Share(),
                help="Added to the interval's upper end.",
                otherwise=f"{DEFAULT_MARGIN:.0%}",
            ),
            Field(name="price", kind=Number(0, 1e9), help="Price of one GPU for one hour."),
            Field(name="max_time", kind=Duration(1), help="Longest time that one job may take."),
            Field(
                name="models",
                kind=Text("a folder's path"),
                help="Folder whose model files everyone may name.",
            ),
        ),
    }
)

SITE_ONLY = frozenset({"models"})
"""Fields that stand in the site file only."""

PATHS = frozenset({"bundle", "models"})
"""Fields that are always paths, relative to the file that gives them; `model` is one when it looks like one."""

JOB_FIELDS = {name: field for name, field in FIELDS.items() if name not in SITE_ONLY}
"""Fields of one job: options, scripts, job files and requests."""
