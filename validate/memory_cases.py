"""The cases of `validate memory`: measured memory, and the question that the step's published settings are."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from kernelcast.runtime import ModelConfig, Parallelism, UsageError, load_model
from kernelcast.runtime.dataclass import dataclass, field
from kernelcast.runtime.errors import DataError, shown_path
from kernelcast.runtime.frameworks.layout_files import read_layout_text
from kernelcast.runtime.hardware.devices import device_named
from kernelcast.runtime.request.layout import read_request
from kernelcast.validate.runs import RunsFile

LoggedStage = Literal["first", "last", "fullest"]

_GIB = 1 << 30
GOLDEN, MLPERF, TITAN, SIMUMAX = "Megatron-LM tests", "MLPerf", "torchtitan", "SimuMax"
MEASURED: Mapping[str, str] = {
    GOLDEN: "mem-max-allocated-bytes: torch's largest allocation, on the last rank",
    MLPERF: "max_memory in GiB: torch's largest allocation on the first rank, by the submission's own callback",
    TITAN: "memory in GiB: torch's largest *reserved* memory, the largest over ranks; fragments are added",
    SIMUMAX: "torch's largest allocation of every stage's ranks",
}
"""What each source's number is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedCase:
    """A measured step as a question. `measured_bytes` is None for a step whose memory was not logged."""

    source: str
    name: str
    device: str
    model: ModelConfig
    parallelism: Parallelism
    dtype: str
    measured_bytes: float | None
    logged_stage: LoggedStage = "fullest"
    workspace_bytes: int | None = None

    @property
    def kind(self) -> str:
        return "LoRA" if self.parallelism.lora_rank else "experts" if self.model.experts else "dense"

    @property
    def number_format(self) -> str:
        """The recipe, or the type that all is in."""
        recipe = self.parallelism.fp8_recipe
        return self.dtype if recipe == "none" else recipe

    @property
    def architecture(self) -> str:
        found = device_named(self.device)
        return found.architecture if found else ""

    @property
    def device_bytes(self) -> int | None:
        found = device_named(self.device)
        return found.memory_bytes if found else None


@dataclass(slots=True, kw_only=True)
class AskedCases:
    """Cases, reasons why others are unsupported, and settings without a meaning here, one entry per case."""

    cases: list[AskedCase] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def asked_cases(directory: Path) -> AskedCases:
    """Every case in the folders of `directory`, and SimuMax's, which ship; DataError where a file is unreadable."""
    found = AskedCases()
    _golden(_rows(directory / "memory" / "megatron-lm-golden.csv"), found)
    _mlperf(_rows(directory / "mlperf" / "truth.csv"), found)
    _titan(_rows(directory / "memory" / "torchtitan.csv"), found)
    found.cases += _simumax()
    return found


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{shown_path(path)}: cannot be read, expected measured memory (CSV)") from error


def _layout(model: ModelConfig, fields: Mapping[str, Any]) -> Parallelism:
    layout: Parallelism = read_request(fields)["parallelism"]
    layout.check(model)
    return layout


_LEFT_OUT: Mapping[str, str] = {
    "--perform-rl-step": "memory of inference too, expected training alone",
    "--defer-embedding-wgrad-compute": "no field says it, and it changes memory",
    # Only while modules are captured; a step needs the pool and the rest.
    "--cuda-graph-impl": "torch does not count what lies in a graph's pool as allocated",
}
"""Settings of steps whose logged number is not what a step needs, or that are unsupported."""
_ONE_NODE, _RELEASE = 8, "release"
_DETERMINISTIC = 8 * 4096 << 10
"""CUBLAS_WORKSPACE_CONFIG=:4096:8, as all tests set it that set it."""
_GOLDEN_DEVICES = {"a100": "a100-sxm", "h100": "h100-sxm", "gb200": "gb200"}


def _golden(rows: Sequence[dict[str, str]], found: AskedCases) -> None:
    stated = {row["case"]: int(row["gpus"]) for row in rows if row["gpus"]}
    for row in rows:
        arguments = json.loads(row["model_args"])
        # Tests without a number ran on one node; releases on several.
        usual = None if _RELEASE in row["case"] else _ONE_NODE
        devices = int(row["gpus"] or stated.get(row["case"], 0)) or usual
        text = "MODEL_ARGS:\n" + "\n".join(f"  {key}: {value}" for key, value in arguments.items())
        try:
            for key, why in _LEFT_OUT.items():
                if key in arguments:
                    raise UsageError(f"{key}: {why}")
            if devices is None:
                raise UsageError("the number of devices is not published")
            file = read_layout_text(text, "")
            model = file.model()
            fields, _, _ = file.request(model, {}, devices)
            layout = _layout(model, fields)
        except UsageError as error:
            found.left_out.append(f"{GOLDEN}: {str(error).removeprefix(': ')}")
            continue
        found.unread += file.unread_keys
        found.cases.append(
            AskedCase(
                source=GOLDEN,
                name=f"{row['case']}, {row['device']}",
                device=_GOLDEN_DEVICES[row["device"]],
                model=model,
                parallelism=layout,
                dtype="bfloat16" if {"--bf16", "--fp16"} & arguments.keys() else "float32",
                measured_bytes=float(row["max_allocated_bytes"]),
                logged_stage="last",
                workspace_bytes=_DETERMINISTIC if "CUBLAS_WORKSPACE_CONFIG" in row["env"] else None,
            )
        )


_MLPERF_MODELS = {
    "llama2_70b_lora": "llama-2-70b",
    "llama31_405b": "llama-3.1-405b",
    "llama31_8b": "llama-3.1-8b",
    "gpt3": "gpt3-175b",
}
_MLPERF_DEVICES = {"H100": "h100-sxm", "H200": "h200-sxm", "B200": "b200-sxm"}
_RECIPES = {"fp8-delayed": "tensorwise", "fp8-tensorwise": "tensorwise", "bf16": "none"}


def _mlperf(rows: Sequence[dict[str, str]], found: AskedCases) -> None:
    for row in rows:
        if not row["tp"]:
            found.left_out.append(f"{MLPERF}: the layout is not published")
            continue
        try:
            case = _mlperf_case(row)
        except UsageError as error:
            found.left_out.append(f"{MLPERF}: {error}")
            continue
        found.cases.append(case)


def _mlperf_case(row: Mapping[str, str]) -> AskedCase:
    number = {
        name: int(float(row[name])) for name in ("tp", "pp", "cp", "vp", "mbs", "dp", "micro_batches", "seq")
    }
    model = load_model(_MLPERF_MODELS[row["benchmark"]]).with_sequence_length(number["seq"])
    chunks = number["pp"] * number["vp"]
    fields: dict[str, Any] = {
        **{name: number[name] for name in ("tp", "pp", "cp", "dp", "micro_batches")},
        "micro_batch": number["mbs"],
        "sequence_parallel": row["sp"] == "1" and number["tp"] > 1,
        "fp8_recipe": _RECIPES.get(row["precision"], "tensorwise"),
        "recompute": row["recompute"] if row["recompute"] in ("full", "selective") else "none",
        "kept_by": "megatron",
        "zero": 1,
        "gradient_collective": "reduce_scatter",
        "loss": "in_place",
        "fp8_weights": row["fp8_param_gather"] == "1",
        "tensor_overlap": "products" if row["tp_overlap"] == "1" else "weight_gradients",
    }
    if number["vp"] > 1:
        fields |= {"schedule": "interleaved", "virtual_stages": number["vp"]}
    if chunks > 1 and model.layers % chunks and not (model.layers + 2) % chunks:
        # Embedding and loss count as a layer.
        each = (model.layers + 2) // chunks
        fields["layer_counts"] = (each - 1, *[each] * (chunks - 2), each - 1)
    if row["benchmark"] == "llama2_70b_lora":
        # Rules of the benchmark, and the settings that its implementations share; FP8_ACT is set where cp is 1.
        fields |= {
            "lora_rank": 16,
            "lora_linears": ("attention",),
            "lora_dropout": 0.1,
            "fp8_weights": True,
            "loss": "plain",
            "fp8_activation_store": number["cp"] == 1,
        }
    return AskedCase(
        source=f"{MLPERF} {row['benchmark']}",
        name=row["group"],
        device=_MLPERF_DEVICES.get(row["device"], row["device"].lower()),
        model=model,
        parallelism=_layout(model, fields),
        dtype="bfloat16",
        measured_bytes=float(row["max_memory"]) * _GIB if row["max_memory"] else None,
        logged_stage="first",
    )


def _titan(rows: Sequence[dict[str, str]], found: AskedCases) -> None:
    columns = {"tp": "tp", "pp": "pp", "cp": "cp", "dp": "fsdp", "micro_batch": "local_batch"}
    for row in rows:
        model = load_model(row["model"]).with_sequence_length(int(row["sequence"]))
        fields: dict[str, Any] = {
            **{field: int(row[column]) for field, column in columns.items()},
            "micro_batches": 1,
            "sequence_parallel": int(row["tp"]) > 1,
            "fp8_recipe": "none" if row["precision"] == "bf16" else "tensorwise",
            "recompute": row["activation_checkpointing"],
            "recompute_modules": ("per_op",),
            "kept_by": "torchtitan",
            "tensor_overlap": "products" if "async TP" in row["precision"] else "weight_gradients",
            # Its loss is compiled from 2025 on: logits and their gradient, both in the training's type.
            "loss": "fused" if row["compile"] == "yes" and "2025" in row["source"] else "plain",
            "vocabulary_multiple": 1,
            "reduce_dtype": "float32",
            "zero": 3,
        }
        found.cases.append(
            AskedCase(
                source=TITAN,
                name="{model} on {gpus}, {precision}, compile {compile}, {sequence} tokens, "
                "{activation_checkpointing}".format(**row),
                device="h200-sxm" if "H200" in row["device"] else "h100-sxm-96gb",
                model=model,
                parallelism=_layout(model, fields),
                dtype="bfloat16",
                measured_bytes=float(row["memory_gib"]) * _GIB,
            )
        )


def _simumax() -> Iterator[AskedCase]:
    for path in sorted(Path(__file__).parent.glob("simumax-*.toml")):
        for run in RunsFile.read(path).runs:
            if run.memory_gib is None:
                continue
            yield AskedCase(
                source=SIMUMAX,
                name=f"{path.stem} {run.label}",
                device="b200-sxm",
                model=run.model,
                parallelism=run.parallelism,
                dtype="bfloat16",
                measured_bytes=max(run.memory_gib) * _GIB,
            )
