"""Runs files: measured training steps in TOML (docs/validation.md, Runs files)."""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from kernelcast.runtime import Cluster, ModelConfig, Parallelism, UsageError, load_model
from kernelcast.runtime.answers.uncertainty import LONG_TOKENS
from kernelcast.runtime.errors import error_context, shown, shown_path, unknown_field
from kernelcast.runtime.estimate.estimate import Components
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.record import WITH_DEFAULT, Check, Record, read_fields
from kernelcast.runtime.request.fields import DEFAULT_BUCKET_ENTRIES, LAYOUT, renamed
from kernelcast.runtime.request.layout import read_request
from kernelcast.runtime.request.models import built_in_name, built_in_names, unknown_model
from kernelcast.runtime.small_file import read_small_file, toml_fields
from kernelcast.runtime.step.chunks import layers_of_chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class RunModels:
    """The models of a runs file's `[models.NAME]` tables, and the folder of its relative paths."""

    tables: Mapping[str, ModelConfig]
    folder: Path

    @classmethod
    def of(cls, tables: object, *, folder: Path) -> Self:
        """The models of the value of `models` in a file; UsageError for a wrong field, or a built-in model's name."""
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
        """The model that a run's `model` names, with its `sequence_length` if it has one; errors as `load_model`."""
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
    "name", *DEFAULT_FIELDS, "measured_s", "mean_s", "measured_components", "memory_gib", "published_error",
    "published_components", "flag",
)  # fmt: skip
COMPONENT_NAMES = tuple(Components(**dict.fromkeys((f.name for f in fields(Components)), 0.0)).to_dict())
"""Names of Table IX."""

_TEXTS = ("site", "hardware", "source", "device", "fabric", "stack", "licence")
_FILE_FIELDS = (*_TEXTS, "left_out", "defaults", "models", "runs")
_LARGEST = 1e9
_Text = Annotated[str, Check(lambda text: text.strip() and text.isprintable(), "a text on one line")]
_MaybeText = Annotated[str, Check(str.isprintable, "a text on one line")]
_Seconds = Check(lambda time_s: 0 < time_s <= _LARGEST, "seconds, a number above 0")
_Error = Check(lambda error: -1 < error <= _LARGEST, "a fraction above -1 (-0.05: 5 % too short)")
_Sizes = Check(lambda sizes: all(0 < one <= _LARGEST for one in sizes), "GiB, numbers above 0")


def _each(bound: Check) -> Check:
    return Check(lambda table: all(map(bound.accepts, table.values())), f"of each component {bound.expected}")


def only_known(table: Mapping[str, Any], names: Collection[str], *, path: str = "") -> dict[str, Any]:
    """The table by today's names of its fields; UsageError for one that is not in `names`, or has two names."""
    found = renamed(table, LAYOUT)
    for name in found:
        if name not in names:
            raise unknown_field(name, names, path=path)
    return found


def runs_and_defaults(
    document: Mapping[str, Any], names: Collection[str]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The tables `[[runs]]`, at least one, and `[defaults]`, with no other fields than `names`; else UsageError."""
    runs, defaults = document.get("runs", []), document.get("defaults", {})
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) for run in runs):
        found = shown(runs) if "runs" in document else "missing"
        raise UsageError(f"runs is {found}, expected at least one table [[runs]]")
    if not isinstance(defaults, dict):
        raise UsageError(f"defaults is {shown(defaults)}, expected a table [defaults]")
    return runs, only_known(defaults, names, path="defaults.")


def request_of(table: Mapping[str, Any], model: ModelConfig) -> dict[str, Any]:
    """The arguments of `Estimator.predict` except the model, which has to fit; UsageError without a whole layout."""
    for name in _NEEDED:
        if name not in table:
            raise UsageError(field=name, expected=LAYOUT[name].kind.expected)
    asked = read_request(table)
    asked["parallelism"].check(model)
    layers_of_chunks(model.layers, asked["parallelism"])
    return asked


_MAX_FILE_BYTES = 1 << 20
_MOST_MEAN = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(Record):
    """What was measured and published of a step, see `MeasuredRun`."""

    OPTIONAL: ClassVar[tuple[str, ...]] = WITH_DEFAULT
    measured_s: Annotated[float, _Seconds]
    published_error: Annotated[float | None, _Error] = None
    published_components: Annotated[Mapping[str, float] | None, _each(_Error)] = None
    measured_components: Annotated[Mapping[str, float] | None, _each(_Seconds)] = None
    memory_gib: Annotated[tuple[float, ...] | None, _Sizes] = None
    mean_s: Annotated[float | None, _Seconds] = None
    flag: _MaybeText = ""


def kind_of(model: ModelConfig, layout: Parallelism) -> str:
    """Format of a step's products and kind of model, such as "mxfp8, experts"."""
    size = "experts" if model.experts else "adapters" if layout.lora_rank else "dense"
    if layout.offload_activations:
        size += ", offload"
    if model.sequence_length >= LONG_TOKENS:
        size += ", long"
    return f"{'16 bit' if layout.fp8_recipe == 'none' else layout.fp8_recipe}, {size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun(Measured):
    """One measured training step with the inputs of its prediction.

    `cluster` is None where the file does not give the devices per node; the bundle's count is used. Components have
    the names of the paper's Table IX (`Components.to_dict`). Measured components are in seconds; published errors
    belong to published predictions, predicted / measured - 1. `memory_gib` was allocated on the fullest device, or on
    the fullest of every stage. `measured_s` is the shortest repetition, `mean_s` their mean. `flag`
    says why a step is predicted but not scored; empty for all others.
    """

    label: str
    model: ModelConfig
    parallelism: Parallelism
    cluster: Cluster | None
    bucket_entries: int = DEFAULT_BUCKET_ENTRIES

    @property
    def kind(self) -> str:
        return kind_of(self.model, self.parallelism)

    @property
    def asked(self) -> dict[str, Any]:
        return values_of(self, "model", "parallelism", "cluster", "bucket_entries")

    @property
    def is_steady(self) -> bool:
        """Whether repetitions agree: their mean, where it is known, is at most 1.5 times what counts."""
        return self.mean_s is None or self.mean_s <= _MOST_MEAN * self.measured_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsFile(Record):
    """A site's measured steps in the file's order, with their hardware and their source.

    `digest` is the SHA-256 of the file, hexadecimal. `hardware` is a text; `device` and `fabric` are names of what
    ships, `stack` is the software that ran the steps: texts, empty where the file does not say. `model_files` are
    models that its runs name by a file. `left_out` are published steps that cannot be predicted, with the reason.
    """

    site: _Text
    hardware: _Text
    source: _Text
    digest: str
    runs: tuple[MeasuredRun, ...]
    device: _MaybeText = ""
    fabric: _MaybeText = ""
    stack: _MaybeText = ""
    licence: _MaybeText = ""
    model_files: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

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
        measured = tuple(_run(number, run, defaults, models) for number, run in enumerate(runs, start=1))
        for name in _TEXTS[:3]:
            if name not in document:
                raise UsageError(field=name, expected="a text on one line")
        with error_context(kind=UsageError):
            return cls(
                digest=digest,
                runs=measured,
                model_files=models.files({**defaults, **run}.get("model") for run in runs),
                **read_fields(
                    cls, {name: document[name] for name in (*_TEXTS, "left_out") if name in document}
                ),
            )


def _run(position: int, run: dict[str, Any], defaults: dict[str, Any], models: RunModels) -> MeasuredRun:
    where = f"run {position}"
    with error_context(where):
        values = {**defaults, **only_known(run, RUN_FIELDS)}
        if "name" in run and not (
            isinstance(run["name"], str) and run["name"].strip() and run["name"].isprintable()
        ):
            raise UsageError(field="name", found=run["name"], expected="a text on one line")
    name = run.get("name", "")
    with error_context(f"{where} ({name})" if name else where):
        model = models.named(values)
        asked = request_of(values, model)
        layout: Parallelism = asked["parallelism"]
        with error_context(kind=UsageError):
            return MeasuredRun(
                label=name or f"{model.name} ({layout.pp}-{layout.tp}-{layout.dp})",
                model=model,
                parallelism=layout,
                cluster=asked["cluster"],
                bucket_entries=asked["bucket_entries"],
                **values_of(_measured(values, layout.pp), *(field.name for field in fields(Measured))),
            )


def _measured(values: Mapping[str, Any], stages: int) -> Measured:
    own = {field.name: values[field.name] for field in fields(Measured) if field.name in values}
    memory = own.get("memory_gib")
    if isinstance(memory, list) and len(memory) != stages:
        expected = f"a number, or one per stage, {stages} in all"
        raise UsageError(field="memory_gib", found=memory, expected=expected)
    if "memory_gib" in own and not isinstance(memory, list):
        own["memory_gib"] = [memory]
    for name in ("published_components", "measured_components"):
        if isinstance(own.get(name), dict):
            only_known(own[name], COMPONENT_NAMES, path=f"{name}.")
    return Measured.from_dict(own)
