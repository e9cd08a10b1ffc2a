"""What a job's description may say: the fields of a request (runtime/request/fields.py), and those of a job.

The table behind `kernelcast.toml`, `#KERNELCAST` lines, the site file and the options of the command.
"""

from dataclasses import dataclass
from typing import Any

from kernelcast.runtime.request.fields import REQUEST, Field, table
from kernelcast.runtime.request.kinds import Number, Text, Whole, read_decimal
from kernelcast.walltime.durations import read_duration

DEFAULT_MARGIN = 0.1
# A century; nothing that a scheduler runs takes longer.
_MAX_DURATION_S = 100 * 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class Duration:
    """A time of `least_s` or longer: seconds, or text with units."""

    least_s: float = 0.0
    metavar = "TIME"

    @property
    def expected(self) -> str:
        least = f", {self.least_s:g} s or longer" if self.least_s else ""
        return f"seconds, or a time such as 90s, 5m, 1h30m, 01:30:00 or 1-12:00:00{least}"

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": ["number", "string"]}

    def accepts(self, value: object) -> bool:
        return self.read(value) is not None

    def read(self, value: object) -> float | None:
        if isinstance(value, str):
            duration_s = read_duration(value.strip())
        else:
            number = read_decimal(value)
            duration_s = None if number is None else float(number)
        return (
            duration_s if duration_s is not None and self.least_s <= duration_s <= _MAX_DURATION_S else None
        )


class Share(Number):
    """A fraction, or a percentage as text."""

    def read(self, value: object) -> float | None:
        if not isinstance(value, str) or not value.endswith("%"):
            return Number.read(self, value)
        percent = read_decimal(value[:-1])
        return None if percent is None else Number.read(self, float(percent / 100))


_STEPS = Whole(1, 10**12)
_SHARE = Share(0, 10, "a fraction from 0 to 10 or a percentage such as 15%")
_CONTINUES = "From a failure to the next step, or from a job's end to its continuation's first step."

# fmt: off
FIELDS = table(
    Field("bundle", Text("a file's path"), "Bundle of regressors (.kcast)."),
    Field("model", Text("a model's name or a file's path"), "Model: its name, or its file."),
    *REQUEST.values(),
    Field("steps", _STEPS, "Steps (updates) that the job runs."),
    Field("tokens", Whole(1, 10**18), "Tokens that it trains on, instead of steps."),
    Field("startup", Duration(), "From the job's start to its first step.", 0),
    Field("checkpoint_every", _STEPS, "Steps between checkpoints.", unit="steps"),
    Field("checkpoint_cost", Duration(), "How long one checkpoint stops the training."),
    Field("restarts", Whole(0, 1_000_000), "Restarts to allow for inside the job."),
    Field("restart_cost", Duration(), _CONTINUES, otherwise="startup"),
    Field("margin", _SHARE, "Added to the interval's upper end.", otherwise=f"{DEFAULT_MARGIN:.0%}"),
    Field("price", Number(0, 1e9, "a number from 0 to 1e+09"), "Price of one GPU for one hour."),
    Field("max_time", Duration(1), "Longest time that one job may take."),
    Field("models", Text("a folder's path"), "Folder whose model files everyone may name."),
)
# fmt: on

SITE_ONLY = frozenset({"models"})
"""Fields that stand in the site file only."""

PATHS = frozenset({"bundle", "models"})
"""Fields that are always paths, relative to the file that gives them; `model` is one when it looks like one."""

JOB_FIELDS = {name: field for name, field in FIELDS.items() if name not in SITE_ONLY}
"""Fields of one job: options, scripts, job files and requests."""
