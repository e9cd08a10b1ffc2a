"""Fields with their origins, and their precedence."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from kernelcast.runtime.dataclass import dataclass, field
from kernelcast.runtime.errors import UsageError, error_context, unknown_field
from kernelcast.runtime.request.field_types import Value
from kernelcast.runtime.request.fields import DATA
from kernelcast.walltime.fields import FIELDS, JOB_FIELDS, PATHS, SITE_ONLY

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
    for said, value in fields:
        name = _NOW.get(said, said)
        if name not in FIELDS:
            raise unknown_field(said, FIELDS if site else JOB_FIELDS).within(origin)
        if name in SITE_ONLY and not site:
            raise UsageError(f"{origin}: field {name} stands here, expected in the site file only")
        if name in found:
            both = f" ({said} and {name} are one field)" if FIELDS[name].old else ""
            raise UsageError(f"{origin}: {said} is given again, first in {found[name].origin}{both}")
        with error_context(origin):
            read = FIELDS[name].kind.parse(said, value)
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
    with one decides. Of a source whose tokens or samples give way, epochs, lengths and packing do too.

    Raises:
        UsageError: one source gives two of them.
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
