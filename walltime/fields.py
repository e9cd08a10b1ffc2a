"""Fields of a job's description: the fields of a request (runtime/request/fields.py), and the job's own.

The table behind `kernelcast.toml`, `#KERNELCAST` lines, the site file and the options of the command; values have an
origin, and a precedence by it.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType

from kernelcast.runtime.dataclass import dataclass, field, replace
from kernelcast.runtime.errors import UsageError, error_context, unknown_field
from kernelcast.runtime.request.field_types import (
    Field,
    FieldType,
    Value,
    number,
    read_decimal,
    table,
    text,
    whole,
)
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


SHARE = replace(
    number(0, 10, "a fraction from 0 to 10 or a percentage such as 15%", units={"%": Decimal("0.01")}),
    schema={},
    metavar="SHARE",
    types=(int, float, str),
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
"""Fields that are always paths, relative to the file that gives them; others are when they look so (`is_path`)."""

JOB_FIELDS = {name: field for name, field in FIELDS.items() if name not in SITE_ONLY}
"""Fields of one job: options, scripts, job files and requests."""


# Groups of fields: one determines the others.
_EITHER = (("bundle", "hardware"), ("steps", "tokens", "samples"), ("micro_batches", "global_batch"))
_SUFFIXES = {"model": (".toml", ".json"), "fabric": (".toml", ".kcast"), "stack": (".toml",)}
_NOW = {old: field.name for field in FIELDS.values() for old in field.old}


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A field's value and its origin as text (`train.sbatch line 3`, `--tokens`); paths are absolute."""

    value: Value
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Known values of a job by field name, of the types that `FIELDS` reads."""

    given: Mapping[str, Given] = field(default_factory=lambda: MappingProxyType({}))

    def __contains__(self, name: str) -> bool:
        return name in self.given

    def value(self, name: str) -> Value | None:
        found = self.given.get(name)
        return None if found is None else found.value

    def whole(self, name: str) -> int | None:
        """The value of a field that holds whole numbers, or None."""
        value = self.value(name)
        return value if isinstance(value, int) else None

    def number(self, name: str, default: float) -> float:
        """The value of a field that holds a number or a duration."""
        value = self.value(name)
        return float(value) if isinstance(value, int | float) else default

    def text(self, name: str) -> str | None:
        value = self.value(name)
        return value if isinstance(value, str) else None

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Errors about a field begin with its origin: `--tp: tp is 3, …`."""
        try:
            yield
        except UsageError as error:
            if found := self.given.get(error.field):
                error.within(found.origin)
            raise


def give(
    fields: Iterable[tuple[str, object]],
    *,
    origin: str,
    folder: Path,
    site: bool = False,
    home: bool = False,
    earlier: Mapping[str, Given] | None = None,
) -> dict[str, Given]:
    """Read the fields of one source, by their present names; relative paths are relative to `folder`.

    With `home`, paths may begin with ~; not in scripts, which a scheduler may read with its own rights.
    `earlier` are the fields before these of the same source, and are part of the answer.

    Raises:
        UsageError: a field is unknown, stands in the wrong place, is given again (perhaps by an old name), or its
            value is not accepted; names the place, the field, what was found and what is allowed.
    """
    found = dict(earlier or {})
    for given, value in fields:
        name = _NOW.get(given, given)
        if name not in FIELDS:
            raise unknown_field(given, FIELDS if site else JOB_FIELDS).within(origin)
        if name in SITE_ONLY and not site:
            raise UsageError(f"{origin}: field {name} is set here, expected only in the site file")
        if name in found:
            both = f" ({given} is an old name of {name})" if FIELDS[name].old else ""
            raise UsageError(f"{origin}: {given} is given again, first in {found[name].origin}{both}")
        with error_context(origin):
            read = FIELDS[name].kind.parse(given, value)
        if isinstance(read, str) and (name in PATHS or (name in _SUFFIXES and is_path(read, name))):
            read = str(folder / (_with_home(read) if home else read))
        found[name] = Given(value=read, origin=origin)
    return found


def is_path(value: str, field: str = "model") -> bool:
    """Whether the value of the field `model`, `fabric` or `stack` is a file's path rather than a name."""
    return "/" in value or value.endswith(_SUFFIXES[field])


def merge(*sources: Mapping[str, Given]) -> Settings:
    """One value per field: the first source that gives it wins.

    `steps`, `tokens` and `samples` exclude each other, and so do `micro_batches` and `global_batch`: the first source
    with one decides; UsageError where it gives two. Of a source whose tokens or samples give way, epochs, lengths and
    packing do too.
    """
    merged: dict[str, Given] = {}
    for source in sources:
        settled = set(merged)
        for group in _EITHER:
            if len(here := [name for name in group if name in source]) > 1:
                one, other, *_ = here
                places = dict.fromkeys((source[one].origin, source[other].origin))
                raise UsageError(
                    f"{', '.join(places)}: {one} and {other} are both given, expected one of them"
                )
            if merged.keys() & set(group):
                settled |= set(group)
        if (settled - merged.keys()) & source.keys() & {"tokens", "samples"}:
            settled |= DATA.keys()
        merged |= {name: given for name, given in source.items() if name not in settled}
    return Settings(given=MappingProxyType(merged))


def _with_home(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no such user
        return Path(path)
