"""Layouts as texts of a framework: every row of its table writes its settings, and reads what it decides."""

import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import DataError, UsageError, error_context
from kernelcast.runtime.frameworks import NAMES
from kernelcast.runtime.frameworks.accelerate import ACCELERATE, FILES, MODEL_NAME, flags_of_file
from kernelcast.runtime.frameworks.deepspeed import DEEPSPEED
from kernelcast.runtime.frameworks.megatron import MEGATRON
from kernelcast.runtime.frameworks.rows import Facts, Found, Framework, Job, Row, Settings
from kernelcast.runtime.frameworks.torchtitan import MODEL_OF_TORCHTITAN, TORCHTITAN
from kernelcast.runtime.frameworks.yaml_trained import LLM_FOUNDRY, NEMO
from kernelcast.runtime.request.fields import DEGREES, LAYOUT, MODEL, REPLICATING, REQUEST, STEPS
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.request.models import built_in_name
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS
from kernelcast.runtime.step.chunks import partition

_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_OF_SLURM = re.compile(r"^#SBATCH\b.*\s(?:--(?:nodes|gpus|gres|ntasks)|-[NGn](?=[\s\d=]))", re.MULTILINE)


def line_of(key: str, text: str) -> int | None:
    """The line of a setting, from 1, of a flag given twice the last; None where it stands nowhere, as a default."""
    code = _COMMENT.sub(lambda match: " " * len(match[0]), text)
    dashed = re.escape(key.lstrip("-")).replace(r"\-", "[-_]")
    flags = re.compile(rf"(?<![\w.-])(?:--)?{dashed}(?![\w.-])(?=[\s=:\"'\\])")
    places = [match.start() for match in flags.finditer(code)]
    if places:
        return _line(text, places[-1])
    if key == "WORLD_SIZE":
        found = _OF_SLURM.search(text)
        return None if found is None else _line(text, found.start())
    place = 0
    for part in key.split("."):
        name = re.compile(rf"(?<![\w-]){re.escape(part)}(?![\w-])").search(code, place)
        if name is None:
            # A recipe and overrides have the last part alone, some under its older name, `LoRA(dim=8)` its end.
            last = re.escape(key.rpartition(".")[2].removeprefix("adapter_"))
            others = [*re.finditer(rf"(?<![\w-])(?:encoder_|adapter_)?{last}(?=[\"']?[ \t]*[=:])", code)]
            return _line(text, others[-1].start()) if others else None
        place = name.end()
    return _line(text, place - 1) if "." in key else None


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


FRAMEWORKS: Mapping[str, Framework] = dict(
    zip(NAMES, (MEGATRON, TORCHTITAN, DEEPSPEED, LLM_FOUNDRY, NEMO), strict=True)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Arguments of a framework as text, and what they cannot or not exactly express, in words."""

    title: str
    text: str
    lost: tuple[str, ...]

    @property
    def warning(self) -> str:
        """One line, "" where nothing is lost."""
        return f"not in the arguments of {self.title}: {'; '.join(self.lost)}" if self.lost else ""


def write_layout(name: str, job: Job) -> Written:
    """Arguments of framework `name` for a job; UsageError where the model cannot be cut in this way."""
    framework, facts = FRAMEWORKS[name], job.facts()
    parts = [row.write(facts) for row in framework.rows]
    settings: Settings = {key: value for part in parts for key, value in part.settings.items()}
    lost = tuple(text for part in parts for text in part.lost)
    return Written(title=framework.title, text=framework.render(settings), lost=lost)


_USUAL_SPLIT = LAYOUT["layer_split"].default
_READ = frozenset(REQUEST) | {"devices", "copies"}


class Source(NamedTuple):
    """Where a field of a request comes from: a setting of a file, and its line (from 1, None where unknown)."""

    field: str
    value: Any
    setting: str
    line: int | None


class Request(NamedTuple):
    """Fields that a file and the caller decide together, what was not read exactly, and the settings they come from."""

    fields: dict[str, Any]
    notes: tuple[str, ...]
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFile:
    """Settings of a framework from a file, which errors and notes name as `where`."""

    where: str
    framework: Framework
    settings: Settings
    text: str = ""

    @property
    def name(self) -> str | None:
        """The framework's name; None of a script that does not say what trains."""
        return next((name for name, one in FRAMEWORKS.items() if one is self.framework), None)

    @property
    def model_name(self) -> str | None:
        """The model that Hugging Face's scripts name, or torchtitan's name and flavor, if it is a known one."""
        if self.framework is TORCHTITAN:
            family, flavor = (str(self.settings.get(key, "")) for key in MODEL_OF_TORCHTITAN)
            return built_in_name(f"{family}-{flavor}") or built_in_name(f"{family}.1-{flavor}")
        name = self.settings.get(MODEL_NAME)
        return name if isinstance(name, str) else None

    @property
    def model_key(self) -> str:
        """The setting that names the model."""
        return MODEL_OF_TORCHTITAN[0] if self.framework is TORCHTITAN else MODEL_NAME

    @property
    def unread_keys(self) -> tuple[str, ...]:
        """Keys without effect on the layout."""
        known = self.framework.keys | {MODEL_NAME, *FILES}
        if self.model_name is not None:
            known |= {*MODEL_OF_TORCHTITAN}
        return tuple(key for key in self.settings if key not in known)

    @property
    def unread(self) -> tuple[str, ...]:
        """The same with their lines, as messages name them."""
        lines = ((key, line_of(key, self.text)) for key in self.unread_keys)
        return tuple(key if line is None else f"{key} (line {line})" for key, line in lines)

    def trained(self) -> tuple[str, int, str] | None:
        """Steps or samples of the whole run: field, value and setting, None for neither; UsageError for a wrong one."""
        for field, key in (("steps", self.framework.steps), ("samples", self.framework.samples)):
            if key in self.settings:
                with error_context(self.where, *self._place(key)):
                    return field, STEPS.parse(key, self.settings[key]), key
        return None

    def sequence_length(self) -> int | None:
        """Tokens of a sequence, None where the file does not say it; UsageError where it is no such number."""
        with error_context(self.where):
            for row in self.framework.rows:
                there = tuple(key for key in row.keys if key in self.settings)
                if row.fields == ("sequence_length",) and (found := self._read(row, there, {}).facts):
                    return int(found["sequence_length"])
        return None

    def _read(self, row: Row, there: tuple[str, ...], facts: Facts) -> Found:
        """What a row reads; an error names the first line of its settings that are `there`."""
        with error_context(*self._place(*there)):
            return row.read(self.settings, facts)

    def _place(self, *keys: str) -> list[str]:
        """The first line of some settings, as errors name it."""
        return [f"line {line}" for key in keys if (line := line_of(key, self.text)) is not None][:1]

    def model(self) -> ModelConfig:
        """The model that the settings describe; UsageError where they do not, or one is wrong or missing."""
        if self.framework.model is None:
            raise UsageError(
                f"{self.where}: {self.framework.title} settings do not describe a model: give --model"
            )
        with error_context(self.where):
            facts: Facts = {"layers": 0, "experts": 0, "tp": 1}
            for row in self.framework.rows:
                if row.fields and set(row.fields) <= {*MODEL, "sequence_length"}:
                    facts = {**facts, **row.read(self.settings, facts).facts}
            known = {**self.framework.model(self.settings, facts), **facts}
            fields = {name: value for name, value in known.items() if name in MODEL}
            return ModelConfig.from_document(fields, where="its model", name="model")

    def request(self, model: ModelConfig, given: Mapping[str, Any], devices: int | None = None) -> Request:
        """Fields of a prediction of `model`: the file's, overridden by `given`; devices stay under another tp or pp,
        the global batch under another dp or micro-batch. `devices` are the job's. UsageError where settings are wrong
        or contradict each other.
        """
        asked = dict(given) if devices is None else {**given, "devices": devices}
        with error_context(self.where):
            facts, notes, keys = self._facts(model, asked)
            fields = _without_usual_cut(model, with_devices(facts, asked), asked)
        # The source of a field that follows from several settings (dp) is the setting with the devices.
        keys = {"dp": keys.get("devices", ()), **keys}
        sources = (
            Source(name, fields[name], key, line_of(key, self.text))
            for name, of_field in keys.items()
            if name in fields
            for key in of_field
        )
        return Request(fields, notes, tuple(sources))

    def _facts(
        self, model: ModelConfig, asked: Mapping[str, Any]
    ) -> tuple[Facts, tuple[str, ...], dict[str, tuple[str, ...]]]:
        """Facts, notes, and the settings in the file that each fact comes from."""
        facts: Facts = {"layers": model.layers, "experts": model.experts, **asked}
        notes: list[str] = []
        keys: dict[str, tuple[str, ...]] = {}
        for row in self.framework.rows:
            if not row.fields or set(row.fields) <= asked.keys():
                continue
            is_of_model = not set(row.fields) & _READ
            there = tuple(key for key in row.keys if key in self.settings)
            if is_of_model and not there:
                continue
            found = self._read(row, there, facts)
            keys |= {
                name: tuple(key for key in row.keys_of(name) if key in there)
                for name in found.facts
                if name not in facts
            }
            notes += found.notes
            if is_of_model:
                notes += _differences(row.keys[-1], found.facts, model)
            facts = {**found.facts, **facts}
        return (
            {name: value for name, value in facts.items() if name in _READ or name in asked},
            tuple(notes),
            keys,
        )


def read_layout_text(text: str, where: str, open_file: Callable[[str], str] | None = None) -> LayoutFile:
    """The settings in a text: flags of Megatron-LM, TOML of torchtitan, JSON of DeepSpeed, YAML of NeMo and the like;
    `open_file` gives a file that a script names. DataError where it is not of its form, or says nothing about a layout.
    """
    readers = (ACCELERATE, *reversed([*FRAMEWORKS.values()]))
    framework = next(one for one in readers if one.is_form_of(text))
    with error_context(where):
        settings = framework.parse(text)
        if framework is ACCELERATE and open_file is not None:
            # `--deepspeed` alone names no file: --deepspeed_config does.
            for path in (settings[key] for key in FILES if settings.get(key) not in (None, True, False)):
                settings = {**flags_of_file(open_file(str(path))), **settings}
    if not settings.keys() & framework.keys:
        titles = " or ".join(one.title for one in FRAMEWORKS.values())
        raise DataError(f"{where}: holds no setting of a layout, expected settings of {titles}")
    return LayoutFile(where=where, framework=framework, settings=settings, text=text)


def with_devices(facts: Mapping[str, Any], asked: Mapping[str, Any]) -> Facts:
    """The degree dp from the devices, ZeRO's group from its copies, and one of global batch and micro-batches.
    UsageError where the other degrees do not divide `devices`, or a given dp makes another number.
    """
    facts = dict(facts)
    others = prod(facts.get(name, 1) for name in DEGREES if name != "dp")
    devices = facts.pop("devices", None)
    is_free = "dp" not in asked
    if is_free and ("dp" not in facts or "devices" in asked):
        if devices is None:
            raise UsageError("does not state dp, expected the devices of the job: give --gpus or --dp")
        facts["dp"], rest = divmod(devices, others)
        if rest:
            named = " · ".join(name for name in DEGREES if name != "dp")
            raise UsageError(f"{devices} devices, expected a multiple of {named} ({others})")
    elif "devices" in asked and devices != others * facts["dp"]:
        raise UsageError(f"{devices} devices, expected {' · '.join(DEGREES)} ({others * facts['dp']})")
    copies = facts.pop("copies", 1)
    if copies > 1 and "shard_group" not in facts:
        own = {name: facts[name] for name in REPLICATING if facts.get(name, 1) > 1 or name == "dp"}
        facts["shard_group"], rest = divmod(prod(own.values()), copies)
        if rest:
            found = f"{' · '.join(own)} is {prod(own.values())}"
            raise UsageError(f"{found}, expected a multiple of the {copies} replicas of sharded ranks")
    batches = {"micro_batches", "global_batch"}
    if batches <= facts.keys() and not batches <= asked.keys():
        del facts["global_batch" if "micro_batches" in asked else "micro_batches"]
    return facts


def _without_usual_cut(model: ModelConfig, fields: Facts, asked: Mapping[str, Any]) -> Facts:
    """Without what would contradict the schedule, and without a cut that is the one that follows from pp anyway."""
    fields = dict(fields)
    usual = SCHEDULE_KINDS[fields.get("schedule", "interleaved")].virtual_stages
    if usual and "virtual_stages" not in asked:
        fields["virtual_stages"] = usual
    counts = fields.get("layer_counts")
    if counts is None or "layer_counts" in asked:
        return fields
    stages = fields["pp"], fields.get("virtual_stages", 1)
    try:
        is_usual = partition(model.layers, *stages, asked.get("layer_split", _USUAL_SPLIT)) == counts
    except UsageError:
        is_usual = False
    if is_usual or len(counts) != prod(stages):
        del fields["layer_counts"]
    return fields


def _differences(key: str, found: Facts, model: ModelConfig) -> list[str]:
    return [
        f"{key} says {name} {value}, model {model.name} has {getattr(model, name)}, which is used"
        for name, value in found.items()
        if name in MODEL and value != getattr(model, name)
    ]
