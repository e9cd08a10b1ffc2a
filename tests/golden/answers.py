"""Asks the runtime, and reduces its answers to the numbers that the golden files hold.

Only this file knows the names of fields in requests and answers. Where a name is changed on purpose, an entry in
`RENAMED` keeps the golden files as they are.
"""

from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from typing import Any

from kernelcast.runtime import (
    Cluster,
    Estimator,
    KernelcastError,
    ModelConfig,
    Parallelism,
    load_model,
    search_layouts,
)
from kernelcast.runtime.memory.stages import architecture_of, stage_memory
from tests.golden.files import Case, golden_models

OPTIONS = ("timeline", "bucket_entries", "interval", "gpu_memory_bytes", "reserved_memory_bytes", "fabric")
STAGE_TIMES = ("forward_s", "backward_s", "all_reduce_s", "optimizer_s", "all_gather_s")
STAGE_BYTES = tuple(
    f"{name}_bytes"
    for name in ("weights", "gradients", "optimizer", "activations", "logits", "working", "host")
)
RENAMED: Mapping[str, str] = {
    "overlapped_forward": "beside_forward",
    "overlapped_backward": "beside_backward",
    **dict.fromkeys(
        ("tied_embeddings", "gradient_scaling", "gradient_clipping", "gradient_zeroing", "weight_cast"),
        "optimizer",
    ),
}
"""Names of components, operators, roles, directions and answered fields: the present one → the golden files' one."""

Call = tuple[str, str, str, str, tuple[int, ...], int]
"""Component, operator, role, direction, vector, and how often it is called."""


@cache
def estimator(device: str, stack: str | None = None) -> Estimator:
    """One for all cases: it remembers regressors."""
    return Estimator.load(device, stack=stack)


@cache
def model_named(name: str) -> ModelConfig:
    """A shipped model, or an artificial one."""
    fields = golden_models()[name]
    return load_model(name) if fields is None else ModelConfig(**fields)


def estimate_of(device: str, case: Case, **more: Any) -> dict[str, Any]:
    """What `Estimator.predict` answers to a case, as plain values.

    Raises:
        KernelcastError: the case is refused.
    """
    fields = {**case.fields, **more}
    options = {name: fields.pop(name) for name in OPTIONS if name in fields}
    nodes, length = fields.pop("gpus_per_node", None), fields.pop("sequence_length", None)
    asked = estimator(device, fields.pop("stack", None))
    model = model_named(case.model)
    layout = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in ({"pp": 1, "tp": 1, "dp": 1} | fields).items()
    }
    return asked.predict(
        model=model if length is None else model.with_sequence_length(length),
        parallelism=Parallelism(**layout),
        cluster=None if nodes is None else Cluster(gpus_per_node=nodes),
        **({"interval": False} | options),
    ).to_dict()


def memory_of(device: str, case: Case) -> dict[str, list[int]]:
    """Bytes of every stage of a case that is not refused."""
    if case.fields.get("layer_split") == "balanced":  # by predicted times
        answered: dict[str, list[int]] = answer_to(device, case)[0]["memory"]
        return answered
    fields = {name: value for name, value in case.fields.items() if name not in (*OPTIONS, "gpus_per_node")}
    asked, length = estimator(device, fields.pop("stack", None)), fields.pop("sequence_length", None)
    model = model_named(case.model)
    layout = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in ({"pp": 1, "tp": 1, "dp": 1} | fields).items()
    }
    compute = asked.bundle.manifest.compute
    stages = stage_memory(
        model if length is None else model.with_sequence_length(length),
        Parallelism(**layout),
        dtype=asked.bundle.manifest.dtype,
        architecture=architecture_of(compute),
    )
    return {name: [getattr(stage, name) for stage in stages] for name in STAGE_BYTES}


def answer_to(device: str, case: Case) -> tuple[dict[str, Any], list[list[Any]]]:
    """The numbers of a case, and its calls; where it is refused, the class of the refusal."""
    try:
        found = estimate_of(device, case)
    except KernelcastError as error:
        return {"refused": type(error).__name__}, []
    calls = calls_of(found["operators"])
    return {**sizes_of(found, calls), **times_of(found)}, merged(calls)


def times_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """What depends on the device."""
    stages = found["stages"]
    totals: dict[str, list[float]] = {}
    for row in found["operators"]:
        of = totals.setdefault(_old(row["component"]), [0.0] * len(stages))
        of[row["stage"]] += row["total_s"]
    warnings = {f"{one['cause']}.share": one["share"] or 0.0 for one in found["warning_groups"]}
    return {
        "step_time_s": found["step_time_s"],
        **({} if found["interval_s"] is None else {"interval_s": found["interval_s"]}),
        "bubble_share": found["bubble_share"],
        "hfu": found["hfu"] or 0.0,
        "known": found["known"],
        **({} if found["energy"] is None else {"step_j": found["energy"]["step_j"]}),
        "components": {_old(name): value for name, value in found["components"].items()},
        "stages": {
            name: [
                sum(stage["update_ops_s"].values()) if name == "optimizer_s" else stage[name]
                for stage in stages
            ]
            for name in STAGE_TIMES
        },
        "calls_total_s": totals,
        "warnings": warnings,
    }


def sizes_of(found: Mapping[str, Any], calls: list[dict[Call, int]]) -> dict[str, Any]:
    """What does not depend on the device, unless layers are spread by time."""
    memory = found["memory"]["stages"]
    return {
        "layer_counts": found["layer_counts"],
        "parameters": [stage["parameters"] for stage in found["stages"]],
        "model_flops": found["model_flops"],
        "memory": {name: [stage[name] for stage in memory] for name in STAGE_BYTES},
        "calls": [_digest(of_stage) for of_stage in calls],
    }


def calls_of(rows: list[dict[str, Any]]) -> list[dict[Call, int]]:
    """How often every call is made, per stage: equal ones counted together, in whatever order they come."""
    stages: dict[int, dict[Any, Any]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        names = tuple(_old(row[name]) for name in ("component", "operator", "role", "direction"))
        stages[row["stage"]][(*names, tuple(map(_whole, row["vector"])))] += row["count"]
    return [stages[stage] for stage in range(max(stages) + 1)]


def merged(stages: list[dict[Call, int]]) -> list[list[Any]]:
    """Rows of all stages: component, operator, role, direction, vector, count, and the stages that have it."""
    where: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for stage, calls in enumerate(stages):
        for call, count in calls.items():
            where[(*call, count)].append(stage)
    return [[*row[:4], list(row[4]), row[5], where[row]] for row in sorted(where)]


def searched(device: str, question: Mapping[str, Any]) -> dict[str, Any]:
    """Best layouts and counts of a search; where it is refused, the class of the refusal."""
    fields = {name: value for name, value in question.items() if name not in ("name", "model")}
    try:
        found = search_layouts(estimator(device), question["model"], **{"top": 20, **fields}).to_dict()
    except KernelcastError as error:
        return {"refused": type(error).__name__}
    smallest = found["smallest"]
    return {
        **{name: found[name] for name in ("layouts", "out_of_memory", "unanswered", "evaluated")},
        "refused layouts": {name: one["count"] for name, one in sorted(found["invalid"].items())},
        "top": [_ranked(one) for one in found["top"]],
        "front": [_ranked(one) for one in found["front"]],
        "smallest_bytes": None if smallest is None else smallest["memory_bytes"],
    }


def _ranked(one: Mapping[str, Any]) -> dict[str, Any]:
    # Fields that all layouts of a question have in common are in the question.
    shown = ("pp", "tp", "dp", "cp", "ep", "expert_tp", "micro_batch", "micro_batches", "schedule")
    more = ("virtual_stages", "sequence_parallel", "recompute", "zero", "layer_counts")
    layout = " ".join(f"{name}={one['parallelism'][name]}" for name in (*shown, *more))
    return {
        "layout": layout,
        "step_time_s": one["step_time_s"],
        "interval_s": one["interval_s"],
        "memory_bytes": one["memory_bytes"],
        "tokens_per_s_per_gpu": one["tokens_per_s_per_gpu"],
    }


def _digest(calls: Mapping[Call, int]) -> str:
    rows = sorted((*call, _whole(count)) for call, count in calls.items())
    return sha256(repr(rows).encode()).hexdigest()[:10]


def _whole(number: float) -> int | float:
    """Free of floating-point noise."""
    short = float(f"{number:.8e}")
    return int(number) if short == int(number) else short


def _old(name: Any) -> str:
    return RENAMED.get(str(name), str(name))
