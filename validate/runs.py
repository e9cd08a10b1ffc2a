"""Runs files: measured training steps in TOML (docs/validation.md, Runs files)."""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from kernelcast.runtime import Cluster, ModelConfig, Parallelism, UsageError, load_model
from kernelcast.runtime.errors import error_context, shown, shown_path
from kernelcast.runtime.estimate.estimate import Components
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.request.field_types import FieldType, number
from kernelcast.runtime.request.field_types import text as text_kind
from kernelcast.runtime.request.fields import DEFAULT_BUCKET_ENTRIES, LAYOUT, renamed
from kernelcast.runtime.request.models import built_in_name, built_in_names, unknown_model
from kernelcast.runtime.request.reading import read_request
from kernelcast.runtime.small_file import read_small_file
from kernelcast.runtime.spelling import unknown_field
from kernelcast.runtime.step.partition import layers_of_chunks
from kernelcast.runtime.toml_text import toml_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class RunModels:
    """The models of a runs file's `[models.NAME]` tables, and the folder of its relative paths."""

    tables: Mapping[str, ModelConfig]
    folder: Path

    @classmethod
    def of(cls, tables: object, *, folder: Path) -> Self:
        """The models of the value of `models` in a file.

        Raises:
            UsageError: no table of tables, a field is wrong, or a name belongs to a built-in model.
        """
        if not isinstance(tables, dict):
            raise UsageError(f"models is {shown(tables)}, expected tables [models.NAME]")
        models = {}
        for name, table in tables.items():
            where = f"models.{name}" if name.isidentifier() else f"models.{shown(name)}"
            if name in built_in_names():
                raise UsageError(f"{where}: a built-in model has this name, expected another")
            if not isinstance(table, dict):
                raise UsageError(f"{where} is {shown(table)}, expected a table of fields")
            models[name] = ModelConfig.from_document(table, where=where, name=name)
        return cls(tables=models, folder=folder)

    def named(self, run: Mapping[str, Any]) -> ModelConfig:
        """The model that a run's `model` names, with the run's `sequence_length` if it has one.

        Raises:
            DataError: the file that it names is missing, unreadable, or not TOML or JSON.
            UsageError: there is no such model, or a field is wrong.
        """
        name = run.get("model")
        if type(name) is not str or not name:
            found = shown(name) if "model" in run else "missing"
            raise UsageError(f"model is {found}, expected a model's name or file")
        model = self._named(name)
        if "sequence_length" not in run:
            return model
        return model.with_sequence_length(run["sequence_length"])

    def files(self, names: Iterable[object]) -> tuple[str, ...]:
        """Which of the models' names are files."""
        return tuple(
            dict.fromkeys(
                name
                for name in names
                if isinstance(name, str) and name not in self.tables and not built_in_name(name)
            )
        )

    def _named(self, name: str) -> ModelConfig:
        if name in self.tables:
            return self.tables[name]
        if built_in_name(name):
            return load_model(name)
        path = self.folder / name
        if path.suffix in (".toml", ".json") or _exists(path):
            return load_model(path)
        more = "the path of a .toml or .json file, from the file's folder, works too"
        raise unknown_model(name, [*self.tables, *built_in_names()], more)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long a name, a null byte
        return False


_NEEDED = ("pp", "tp", "dp", "micro_batch", "micro_batches")
"""What a run cannot leave to defaults."""
DEFAULT_FIELDS = ("model", "sequence_length", *LAYOUT, "gpus_per_node", "bucket_entries")
"""Fields of `[defaults]`: those that several runs can share."""
RUN_FIELDS = (
    "name",
    *DEFAULT_FIELDS,
    "measured_s",
    "mean_s",
    "measured_components",
    "memory_gib",
    "published_error",
    "published_components",
)
COMPONENT_NAMES = tuple(Components(**dict.fromkeys((f.name for f in fields(Components)), 0.0)).to_dict())
"""Names of Table IX."""

_TEXT = text_kind("a text on one line", one_line=True)
SECONDS = number(0, 1e9, "seconds, a number above 0", above=True)
GIB = number(0, 1e6, "GiB, a number above 0", above=True)
RELATIVE_ERROR = number(-1, 1e9, "a fraction above -1 (-0.05: 5 % too short)", above=True)


def only_known(table: Mapping[str, Any], names: Collection[str], *, path: str = "") -> dict[str, Any]:
    """The table by the names that its fields have now; it has no other fields than `names`.

    Raises:
        UsageError: it has, or a field is given by two names.
    """
    found = renamed(table, LAYOUT)
    for name in found:
        if name not in names:
            raise unknown_field(name, names, path=path)
    return found


def runs_and_defaults(
    document: Mapping[str, Any], names: Collection[str]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The tables `[[runs]]`, at least one, and `[defaults]`, which has no other fields than `names`.

    Raises:
        UsageError: one is missing or no such table, or a default is unknown.
    """
    runs, defaults = document.get("runs", []), document.get("defaults", {})
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) for run in runs):
        found = shown(runs) if "runs" in document else "missing"
        raise UsageError(f"runs is {found}, expected at least one table [[runs]]")
    if not isinstance(defaults, dict):
        raise UsageError(f"defaults is {shown(defaults)}, expected a table [defaults]")
    return runs, only_known(defaults, names, path="defaults.")


def text(table: Mapping[str, Any], name: str) -> str:
    """A text on one line, required.

    Raises:
        UsageError: it is missing, empty, or no such text.
    """
    _require(table, name, _TEXT.expected)
    _TEXT.check(name, table[name])
    return str(table[name])


def number_of(table: Mapping[str, Any], name: str, kind: FieldType) -> float:
    """A number, required.

    Raises:
        UsageError: it is missing or not accepted.
    """
    _require(table, name, kind.expected)
    kind.check(name, table[name])
    return float(table[name])


def memory_of(table: Mapping[str, Any], stages: int) -> tuple[float, ...] | None:
    """`memory_gib`: of the fullest device, or a list of the fullest device of every stage; None where it is missing.

    Raises:
        UsageError: no number that is accepted, or not one per stage.
    """
    found = table.get("memory_gib")
    if not isinstance(found, list):
        return None if found is None else (number_of(table, "memory_gib", GIB),)
    if len(found) != stages:
        raise UsageError(
            f"memory_gib is {shown(found)}, expected a number, or one per stage, {stages} in all"
        )
    return tuple(number_of({f"memory_gib[{i}]": one}, f"memory_gib[{i}]", GIB) for i, one in enumerate(found))


def components(table: Mapping[str, Any], name: str, kind: FieldType) -> Mapping[str, float] | None:
    """Numbers of components; None where the table is missing.

    Raises:
        UsageError: no table, an unknown component, or a number that is not accepted.
    """
    if name not in table:
        return None
    found = table[name]
    if not isinstance(found, dict):
        raise UsageError(f"{name} is {shown(found)}, expected a table of components")
    only_known(found, COMPONENT_NAMES, path=f"{name}.")
    try:
        return MappingProxyType({component: number_of(found, component, kind) for component in found})
    except UsageError as error:
        raise UsageError(f"{name}.{error}") from error


def request_of(table: Mapping[str, Any], model: ModelConfig) -> dict[str, Any]:
    """The arguments of `Estimator.predict` except the model, checked against it; a run gives its whole layout.

    Raises:
        UsageError: a field is missing or wrong, or `model` cannot be cut that way.
    """
    for name in _NEEDED:
        _require(table, name, LAYOUT[name].kind.expected)
    asked = read_request(table)
    asked["parallelism"].check(model)
    layers_of_chunks(model.layers, asked["parallelism"])
    return asked


def _require(table: Mapping[str, Any], name: str, expected: str) -> None:
    if name not in table:
        raise UsageError(f"{name} is missing, expected {expected}")


_MAX_FILE_BYTES = 1 << 20
_MOST_MEAN = 1.5
_OPTIONAL_TEXTS = ("device", "fabric", "stack", "licence")
_FILE_FIELDS = ("site", "hardware", "source", *_OPTIONAL_TEXTS, "defaults", "models", "runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One measured training step with the inputs of its prediction.

    `cluster` is None where the file does not give the devices per node; the bundle's count is used. Components have
    the names of the paper's Table IX (`Components.to_dict`). Measured components are in seconds; published errors
    belong to published predictions, predicted / measured - 1. `memory_gib` was allocated on the fullest device, or on
    the fullest of every stage. `measured_s` is the shortest repetition, `mean_s` their mean.
    """

    label: str
    model: ModelConfig
    parallelism: Parallelism
    cluster: Cluster | None
    measured_s: float
    bucket_entries: int = DEFAULT_BUCKET_ENTRIES
    published_error: float | None = None
    published_components: Mapping[str, float] | None = None
    measured_components: Mapping[str, float] | None = None
    memory_gib: tuple[float, ...] | None = None
    mean_s: float | None = None

    @property
    def asked(self) -> dict[str, Any]:
        """What `Estimator.predict` takes of it."""
        return values_of(self, "model", "parallelism", "cluster", "bucket_entries")

    @property
    def is_steady(self) -> bool:
        """Whether repetitions agree: their mean, where it is known, is at most 1.5 times what counts."""
        return self.mean_s is None or self.mean_s <= _MOST_MEAN * self.measured_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsFile:
    """A site's measured steps in the file's order, with their hardware and their source.

    `digest` is the SHA-256 of the file, hexadecimal. `hardware` is a text; `device` and `fabric` are names of what
    ships, `stack` is the software that ran the steps: texts, empty where the file does not say. `model_files` are
    models that its runs name by a file.
    """

    site: str
    hardware: str
    source: str
    digest: str
    runs: tuple[MeasuredRun, ...]
    device: str = ""
    fabric: str = ""
    stack: str = ""
    licence: str = ""
    model_files: tuple[str, ...] = ()

    @property
    def publisher(self) -> str:
        """Who measured: the source up to its first comma."""
        return self.source.split(",", 1)[0].strip()

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a runs file.

        Raises:
            DataError: the file, or a model's file that it names, is missing, unreadable or not TOML.
            UsageError: a field is unknown, missing or wrong, a model is unknown, or a layout does not fit its model;
                one line that names file, run and field.
        """
        where = f"runs file {shown_path(path)}"
        expected = "measured steps (TOML)"
        content = read_small_file(path, where=where, most_bytes=_MAX_FILE_BYTES, expected=expected)
        document = toml_fields(content, where=where, expected=expected)
        with error_context(where):
            return cls._from(document, path, hashlib.sha256(content).hexdigest())

    @classmethod
    def _from(cls, document: dict[str, Any], path: Path, digest: str) -> Self:
        only_known(document, _FILE_FIELDS)
        runs, defaults = runs_and_defaults(document, DEFAULT_FIELDS)
        models = RunModels.of(document.get("models", {}), folder=path.parent)
        return cls(
            site=text(document, "site"),
            hardware=text(document, "hardware"),
            source=text(document, "source"),
            digest=digest,
            runs=tuple(_run(number, run, defaults, models) for number, run in enumerate(runs, start=1)),
            model_files=models.files({**defaults, **run}.get("model") for run in runs),
            **{name: text(document, name) for name in _OPTIONAL_TEXTS if name in document},
        )


def _run(position: int, run: dict[str, Any], defaults: dict[str, Any], models: RunModels) -> MeasuredRun:
    where = f"run {position}"
    with error_context(where):
        values = {**defaults, **only_known(run, RUN_FIELDS)}
        name = text(run, "name") if "name" in run else ""
    with error_context(f"{where} ({name})" if name else where):
        model = models.named(values)
        asked = request_of(values, model)
        layout: Parallelism = asked["parallelism"]
        return MeasuredRun(
            label=name or f"{model.name} ({layout.pp}-{layout.tp}-{layout.dp})",
            model=model,
            parallelism=layout,
            cluster=asked["cluster"],
            measured_s=number_of(values, "measured_s", SECONDS),
            bucket_entries=asked["bucket_entries"],
            published_error=number_of(values, "published_error", RELATIVE_ERROR)
            if "published_error" in values
            else None,
            published_components=components(values, "published_components", RELATIVE_ERROR),
            measured_components=components(values, "measured_components", SECONDS),
            memory_gib=memory_of(values, layout.pp),
            mean_s=number_of(values, "mean_s", SECONDS) if "mean_s" in values else None,
        )
