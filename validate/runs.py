"""Runs files: measured training steps in TOML (docs/validation.md, Runs files)."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kernelcast.runtime import Cluster, ModelConfig, Parallelism
from kernelcast.runtime.errors import UsageError, error_context, shown, shown_path
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.request.fields import DEFAULT_BUCKET_ENTRIES
from kernelcast.runtime.small_file import read_small_file
from kernelcast.runtime.toml_text import toml_fields
from kernelcast.validate.runs_fields import (
    DEFAULT_FIELDS,
    RELATIVE_ERROR,
    RUN_FIELDS,
    SECONDS,
    components,
    memory_of,
    number_of,
    only_known,
    request_of,
    runs_and_defaults,
    text,
)
from kernelcast.validate.runs_models import RunModels

_MAX_FILE_BYTES = 1 << 20
_MOST_MEAN = 1.5
_LONG_TOKENS = 1 << 15
_OPTIONAL_TEXTS = ("device", "fabric", "stack", "licence")
_FILE_FIELDS = ("site", "hardware", "source", *_OPTIONAL_TEXTS, "left_out", "defaults", "models", "runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One measured training step with the inputs of its prediction.

    `cluster` is None where the file does not give the devices per node; the bundle's count is used. Components have
    the names of the paper's Table IX (`Components.to_dict`). Measured components are in seconds; published errors
    belong to published predictions, predicted / measured - 1. `memory_gib` was allocated on the fullest device, or on
    the fullest of every stage. `measured_s` is the shortest repetition, `mean_s` their mean. `flag` says why a step is
    predicted but not scored; empty for all others.
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
    flag: str = ""

    @property
    def kind(self) -> str:
        """Format of its products and kind of model, such as "mxfp8, experts"."""
        layout, model = self.parallelism, self.model
        size = "experts" if model.experts else "adapters" if layout.lora_rank else "dense"
        if layout.offload_activations:
            size += ", offload"
        if model.sequence_length >= _LONG_TOKENS:
            size += ", long"
        return f"{'16 bit' if layout.fp8_recipe == 'none' else layout.fp8_recipe}, {size}"

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
    models that its runs name by a file. `left_out` are published steps that cannot be asked, with the reason.
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
        left_out = document.get("left_out", [])
        if not isinstance(left_out, list) or not all(isinstance(one, str) for one in left_out):
            raise UsageError(f"left_out is {shown(left_out)}, expected a list of texts")
        models = RunModels.of(document.get("models", {}), folder=path.parent)
        return cls(
            site=text(document, "site"),
            hardware=text(document, "hardware"),
            source=text(document, "source"),
            digest=digest,
            runs=tuple(_run(number, run, defaults, models) for number, run in enumerate(runs, start=1)),
            left_out=tuple(left_out),
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
            flag=text(values, "flag") if "flag" in values else "",
        )
