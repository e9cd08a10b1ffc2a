"""Cases for the golden files: designed layouts, adapted to every model, and random ones.

Runs once. What it makes is written out in full (`cases.json.xz`), so that nothing else depends on it.
"""

from itertools import cycle
from math import gcd, prod
from random import Random
from typing import Any
from zlib import crc32

from kernelcast.runtime import KernelcastError, ModelConfig, load_model
from kernelcast.runtime.request.models import built_in_names
from tests.golden import answers
from tests.golden.files import DEVICES, Case, read, write

RANDOM_LAYOUTS = 6
_MOST_TOKENS_OF_EXPERTS = 2_000
_RESOLVED = ("layer_counts", "expert_tokens", "as given")
_OF_EXPERTS = ("ep", "expert_tp", "expert_imbalance", "expert_tokens", "expert_capacity", "expert_padding")

RANDOM: dict[str, list[Any]] = {
    "pp": [1, 1, 2, 3, 4, 8],
    "tp": [1, 1, 2, 4, 8],
    "dp": [1, 2, 4, 8, 16],
    "cp": [1, 1, 1, 2, 4],
    "ep": [1, 2, 4, 8, 16],
    "expert_tp": [1, 1, 2],
    "micro_batch": [1, 1, 2, 3],
    "micro_batches": [4, 8, 12, 24],
    "schedule": ["1f1b", "gpipe", "interleaved", "zero_bubble", "zb_v", "dualpipe", "dualpipe_v"],
    "virtual_stages": [1, 2, 3],
    "sequence_parallel": [True, False],
    "recompute": ["none", "selective", "full"],
    "zero": [0, 1, 2, 3],
    "layer_split": ["even", "even", "paper", "balanced"],
    "reduce_dtype": ["same", "float32"],
    "loss": ["plain", "fused", "in_place"],
    "recompute_modules": [
        ["core_attn"],
        ["mlp"],
        ["layernorm"],
        ["core_attn", "layernorm"],
        ["mlp", "layernorm"],
        ["core_attn", "mlp", "layernorm"],
    ],
    "recompute_layers": [0, 0, 1, 2, 5],
    "recompute_together": [1, 1, 2, 4],
    "recompute_early_stop": [False, True],
    "dropout": [0.0, 0.0, 0.1],
    "vocabulary_multiple": [128, 1, 64],
    "optimizer": ["adam_fused", "adam_foreach", "adam_loop", "sgd", "lion"],
    "optimizer_states": ["float32", "bfloat16", "8bit"],
    "host_launch_us": [0.0, 0.0, 3.0, 10.0],
    "attention_kernel": ["as-measured"] * 4 + ["flash-1", "flash-2", "flash-3", "cudnn"],
    "kept_by": ["torch", "megatron"],
    "exposed_share": [0.25, 0.0, 0.1, 1.0],
    "gradient_collective": ["all_reduce", "reduce_scatter"],
    "shard_group": [0, 0, 2, 4],
    "overlap_gradients": [False, True],
    "overlap_parameters": [False, True],
    "overlap_bucket": [0, 0, 10_000_000],
    "tensor_overlap": ["none", "weight_gradients", "products"],
    "context_exchange": ["ring", "all_to_all", "all_gather"],
    "expert_imbalance": [1.0, 1.4],
    "expert_capacity": [0.0, 0.0, 1.2],
    "expert_padding": [False, True],
    "fp8_recipe": ["none", "none", "none", "tensorwise", "blockwise"],
    "fp8_linears": [["attention", "mlp", "experts"], ["mlp"], ["attention"], ["mlp", "experts"]],
    "fp8_dispatch": [False, True],
    "expert_overlap": [False, True],
    "offload_optimizer": [0.0, 0.0, 0.0, 0.4],
    "offload_activations": [0.0, 0.0, 0.0, 0.6],
    "host_link_gb_per_s": [0.0, 50.0],
    "lora_rank": [0, 0, 0, 16],
    "lora_linears": [["attention", "mlp"], ["attention"], ["mlp"]],
    "timeline": ["simulate", "simulate", "simulate", "closed-form"],
    "bucket_entries": [1_260_000_000, 40_000_000],
}


def write_cases() -> None:
    """Write cases.json.xz."""
    artificial = {fields["name"]: fields for fields in read("models.json")}
    models: dict[str, dict[str, Any] | None] = {**dict.fromkeys(built_in_names()), **artificial}
    loaded = {
        name: load_model(name) if fields is None else ModelConfig(**fields) for name, fields in models.items()
    }
    answers.model_named = loaded.__getitem__  # type: ignore[assignment]
    designed = read("layouts.json")
    cases = {
        name: [
            *((layout, adapted(fields, model)) for layout, fields in designed.items()),
            *random_layouts(model),
        ]
        for name, model in loaded.items()
    }
    quick = quick_of(designed, loaded, cases)
    size = write("cases.json.xz", {"models": models, "cases": cases, "quick": quick})
    print(
        f"{sum(map(len, cases.values()))} cases of {len(models)} models, "
        f"{sum(map(len, quick.values()))} quick ones, {size} bytes"
    )


def adapted(given: dict[str, Any], model: ModelConfig) -> dict[str, Any]:
    """`given` where the model can have it; what is cut less is replicated more."""
    fields = dict(given)
    if fields.pop("as given", False):
        return fields
    if "sequence_length" in fields:
        fields["sequence_length"] = min(fields["sequence_length"], model.sequence_length)
    length = fields.get("sequence_length", model.sequence_length)
    if model.attention != "flash":
        fields.pop("attention_kernel", None)
        _less(fields, "cp", 1)
    if model.experts and fields.get("tp", 1) > 1:
        fields["sequence_parallel"] = True
    if model.target_modules.isdisjoint(fields.get("lora_linears", ("attention",))):
        fields["lora_linears"] = ["attention"]
    cut = [model.attention_heads, model.kv_heads, model.mlp_size, length]
    if model.shared_expert_size:
        cut.append(model.shared_expert_size)
    _less(fields, "tp", gcd(*cut))
    tp = fields.get("tp", 1)
    _less(fields, "cp", length // (2 * tp))
    if fields.get("context_exchange") == "all_to_all":
        _less(fields, "cp", model.kv_heads // tp)
    chunks = fields.get("pp", 1) * fields.get("virtual_stages", 1)
    if fields.get("layer_counts"):
        fields["layer_counts"] = _layer_counts(fields["layer_counts"], model.layers, chunks)
    _adapt_experts(fields, model)
    return {name: value for name, value in fields.items() if value != 1 or not name.endswith("p")}


def _less(fields: dict[str, Any], name: str, multiple: int) -> None:
    """Make a degree a divisor of `multiple`; the rest of it replicates."""
    was = fields.get(name, 1)
    now = gcd(was, multiple)
    if now < was:
        fields[name], fields["dp"] = now, fields.get("dp", 1) * was // now


def _layer_counts(which: str, layers: int, chunks: int) -> list[int]:
    """Equal chunks but for one, which has the rest."""
    each = -(-layers // chunks)
    counts = [layers - each * (chunks - 1), *[each] * (chunks - 1)]
    if counts[0] < 0:
        counts = [1] * (chunks - 1) + [layers - chunks + 1]
    return counts if which == "fewer first" else counts[::-1]


def _adapt_experts(fields: dict[str, Any], model: ModelConfig) -> None:
    if not model.experts:
        for name in _OF_EXPERTS:
            fields.pop(name, None)
        return
    devices = prod(fields.get(name, 1) for name in ("tp", "dp", "cp"))
    if "expert_tp" in fields:
        fields["expert_tp"] = gcd(fields["expert_tp"], model.expert_width, devices)
    if "ep" in fields:
        fields["ep"] = gcd(fields["ep"], model.experts, devices // fields.get("expert_tp", 1))
    if which := fields.get("expert_tokens"):
        layers = model.expert_layers if which == "of every layer" else 1
        if layers * model.experts > _MOST_TOKENS_OF_EXPERTS:
            layers = 1
        fields["expert_tokens"] = [
            100 + (37 * number * number) % 191 for number in range(layers * model.experts)
        ]


def random_layouts(model: ModelConfig) -> list[tuple[str, dict[str, Any]]]:
    """Some that are answered; the same ones each time."""
    random, found = Random(crc32(model.name.encode())), []
    for _ in range(60 * RANDOM_LAYOUTS):
        fields = {
            name: random.choice(values)
            for name, values in RANDOM.items()
            if name in ("pp", "tp", "dp", "micro_batch", "micro_batches") or random.random() < 0.4
        }
        _make_sound(fields)
        fields = adapted(fields, model)
        case = Case(model.name, f"random {len(found) + 1}", fields, 0)
        if _is_answered("h100-sxm", case):
            found.append((case.layout, fields))
        if len(found) == RANDOM_LAYOUTS:
            break
    return found


def _make_sound(fields: dict[str, Any]) -> None:
    """Drop what is refused with any model, so that few tries are in vain."""
    if fields.get("schedule") != "interleaved":
        fields.pop("virtual_stages", None)
    if fields["pp"] == 1:
        fields.pop("schedule", None)
    if fields.get("fp8_recipe", "none") == "none":
        fields.pop("fp8_dispatch", None)
    if not fields.get("expert_capacity"):
        fields.pop("expert_padding", None)
    if fields.get("offload_optimizer"):
        fields["host_memory_gb_per_s"] = 80.0


def quick_of(
    designed: dict[str, dict[str, Any]],
    models: dict[str, ModelConfig],
    cases: dict[str, list[tuple[str, dict[str, Any]]]],
) -> dict[str, list[str]]:
    """Every designed layout with a model that can have all of it, then every model that is not among these."""
    quick: dict[str, list[str]] = {device: [] for device in DEVICES}
    devices, used = cycle(DEVICES), dict.fromkeys(models, 0)
    for layout, fields in designed.items():
        tried = [next(devices) for _ in range(len(DEVICES) + 1)]
        names = _models_for(fields, models, sorted(models, key=used.__getitem__))
        name, device = next(
            (
                (name, device)
                for device in tried[: len(DEVICES)]
                for name in names
                if _is_answered(device, Case(name, layout, adapted(fields, models[name]), 0))
            ),
            ("mixtral-8x7b", tried[0]),
        )
        quick[device].append(f"{name}: {layout}")
        used[name] += 1
    for name in (one for one, times in used.items() if not times):
        quick[next(devices)].append(f"{name}: {cases[name][-1][0]}")
    return quick


def _models_for(fields: dict[str, Any], models: dict[str, ModelConfig], names: list[str]) -> list[str]:
    """Models that can have all of a layout as it is."""
    wants_experts = any("expert" in name or name == "ep" for name in fields)
    return [
        name
        for name in names
        if models[name].experts or not wants_experts
        if all(
            adapted(fields, models[name]).get(key) == value
            for key, value in fields.items()
            if key not in _RESOLVED
        )
    ]


def _is_answered(device: str, case: Case) -> bool:
    try:
        answers.estimate_of(device, case)
    except KernelcastError:
        return False
    return True
