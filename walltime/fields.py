"""Fields of a job's description: the fields of a request (runtime/request/fields.py), and the job's own.

The table behind `kernelcast.toml`, `#KERNELCAST` lines, the site file and the options of the command.
"""

from kernelcast.runtime.request.field_types import Field, FieldType, number, read_decimal, table, text, whole
from kernelcast.runtime.request.fields import DATA, REQUEST, STEPS
from kernelcast.walltime.durations import read_duration

DEFAULT_MARGIN = 0.1
# A century; nothing that a scheduler runs takes longer.
_MAX_DURATION_S = 100 * 366 * 86_400.0


def duration(least_s: float = 0.0) -> FieldType:
    """Times of `least_s` or longer: seconds, or text with units."""

    def read(value: object) -> float | None:
        if isinstance(value, str):
            duration_s = read_duration(value.strip())
        else:
            seconds = read_decimal(value)
            duration_s = None if seconds is None else float(seconds)
        return duration_s if duration_s is not None and least_s <= duration_s <= _MAX_DURATION_S else None

    least = f", {least_s:g} s or longer" if least_s else ""
    expected = f"seconds, or a time such as 90s, 5m, 1h30m, 01:30:00 or 1-12:00:00{least}"
    return FieldType(expected=expected, schema={}, metavar="TIME", types=(int, float, str), read=read)


def _read_share(value: object) -> float | None:
    is_percentage = isinstance(value, str) and value.endswith("%")
    share = read_decimal(value[:-1] if isinstance(value, str) and is_percentage else value)
    if share is None:
        return None
    share = share / 100 if is_percentage else share
    return float(share) if 0 <= share <= 10 else None


SHARE = FieldType(
    expected="a fraction from 0 to 10 or a percentage such as 15%",
    schema={},
    metavar="SHARE",
    types=(int, float, str),
    read=_read_share,
)
_CONTINUES = "Time from a failure, or from the end of a previous job, to the next step."

# fmt: off
FIELDS = table(
    Field("bundle", text("a file's path"), "Bundle of regressors (.kcast)."),
    Field("hardware", text("a name of `kernelcast hardware`"), "Device by name instead of a bundle."),
    Field("model", text("a model's name or a file's path"), "Model: its name, or its file."),
    *REQUEST.values(),
    Field("steps", STEPS, "Steps (updates) of the job, instead of tokens or samples."),
    *DATA.values(),
    Field("startup", duration(), "Time from the start of the job to its first step.", 0),
    Field("checkpoint_every", STEPS, "Steps between checkpoints.", unit="steps"),
    Field("checkpoint_cost", duration(), "Time that one checkpoint pauses training."),
    Field("restarts", whole(0, 1_000_000), "Number of restarts that the time limit allows for."),
    Field("restart_cost", duration(), _CONTINUES, otherwise="startup"),
    Field("margin", SHARE, "Margin on top of the interval's upper end.", otherwise=f"{DEFAULT_MARGIN:.0%}"),
    Field("price", number(0, 1e9, "a number from 0 to 1e+09"), "Price per GPU-hour."),
    Field("max_time", duration(1), "Maximum time of one job."),
    Field("models", text("a folder's path"), "Folder with model files that every user may name."),
)
# fmt: on

SITE_ONLY = frozenset({"models"})
"""Fields that stand in the site file only."""

PATHS = frozenset({"bundle", "models"})
"""Fields that are always paths, relative to the file that gives them; others are when they look so (settings.py)."""

JOB_FIELDS = {name: field for name, field in FIELDS.items() if name not in SITE_ONLY}
"""Fields of one job: options, scripts, job files and requests."""
