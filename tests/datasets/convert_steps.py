"""Write runs files of validate/ from others' published tables of measured steps: done once, and tested since.

    python tests/datasets/convert_steps.py llm-foundry llm-foundry-a100.csv   # validate/llm-foundry-a100-{40,80}gb.toml
    python tests/datasets/convert_steps.py simumax b200_steps_part.json       # validate/simumax-b200*.toml
    python tests/datasets/convert_steps.py today today.csv                    # validate/megatron-bridge-*, torchtitan-*
    python tests/datasets/convert_steps.py mlperf truth.csv                   # validate/mlperf-*.toml

The same table gives the same bytes; every file names its source, its licence and the SHA-256 of the table.
"""

import csv
import json
import re
import sys
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from textwrap import wrap
from typing import Any

from kernelcast.runtime.catalogue.hardware import all_hardware
from kernelcast.runtime.request.fields import LAYOUT
from kernelcast.runtime.request.models import built_in_name

VALIDATE = Path(__file__).resolve().parent.parent.parent / "validate"
DEGREES = ("tp", "pp", "ep", "cp", "dp")
MIB_PER_GIB = 1024


def main(arguments: list[str]) -> None:
    """See the module's docstring."""
    match arguments:
        case [source, table] if source in CONVERT:
            for name, text in CONVERT[source](Path(table).read_bytes()).items():
                path = VALIDATE / f"{name}.toml"
                path.write_text(text, encoding="utf-8")
                print(path.relative_to(VALIDATE.parent))
        case _:
            sys.exit(__doc__)


def llm_foundry(content: bytes) -> dict[str, str]:
    """Texts by file name, one for each machine, of llm-foundry's FSDP steps of MPT models (CSV)."""
    rows = list(csv.DictReader(content.decode().splitlines()))
    machines = {
        "a100-sxm-40gb": ("A100-SXM4-40GB", "PURE mixed precision: gathers and reduces bf16", {}),
        "a100-sxm": (
            "A100-SXM4-80GB",
            "DEFAULT mixed precision: gathers bf16, reduces fp32",
            {"reduce_dtype": "float32"},
        ),
    }
    files = {}
    for device, (machine, precision, reduced) in machines.items():
        chosen = [row for row in rows if row["machine"] == machine]
        models = {_mpt_name(row): _mpt(row) for row in chosen}
        runs = [
            {
                "model": _mpt_name(row),
                "dp": int(row["gpus"]),
                "micro_batch": int(row["micro_batch"]),
                "micro_batches": int(row["micro_batches"]),
                "recompute": row["recompute"],
                "measured_s": float(row["step_s"]),
            }
            for row in chosen
        ]
        files[f"llm-foundry-{machine[:4].lower()}-{machine[-4:].lower()}"] = _file(
            comment=(
                f"{len(chosen)} training steps of MPT models that MosaicML published with LLM Foundry. measured_s is "
                "tokens of a batch / tokens per second. Position tables have as many rows as the "
                "sequence tokens, which gives the published numbers of parameters exactly."
            ),
            head={
                "site": f"LLM Foundry {machine[-4:]}",
                "hardware": f"8 × {machine} per node, 1,600 Gbit/s RoCE between nodes",
                "device": device,
                "fabric": "a100-1600g",
                "stack": f"LLM Foundry, PyTorch FSDP (FULL_SHARD), {precision}, Triton FlashAttention-1, AdamW",
                "source": "mosaicml/llm-foundry, scripts/train/benchmarking, a part of its tables, "
                f"{_digest(content)}",
                "licence": "Apache-2.0",
            },
            # Its models take flash-attention's cross-entropy unless torch's is asked for; not in place.
            defaults={
                "gpus_per_node": 8,
                "pp": 1,
                "tp": 1,
                "zero": 3,
                **reduced,
                "vocabulary_multiple": 1,
                "loss": "fused",
            },
            models=models,
            runs=runs,
        )
    return files


def _mpt_name(row: Mapping[str, str]) -> str:
    return f"{row['model']}-{row['sequence_length']}"


def _mpt(row: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": row["model"],
        "hidden_size": int(row["hidden_size"]),
        "sequence_length": int(row["sequence_length"]),
        "attention_heads": int(row["attention_heads"]),
        "layers": int(row["layers"]),
        "vocabulary_size": int(row["vocabulary"]),
        "learned_positions": int(row["sequence_length"]),
        "rotary": False,
        "biases": "all",
        "tied_embeddings": True,
    }


def simumax(content: bytes) -> dict[str, str]:
    """Texts by file name, one for each kind of model, of SimuMax's measured B200 steps (JSON).

    Virtual stages and overlapped transfers are left out.
    """
    kinds: dict[str, list[dict[str, Any]]] = {}
    left_out = []
    for row in json.loads(content)["rows"]:
        if row["status"] == "ok" and row["vp_size"] == 1 and not row["pp_comm_async"]:
            kinds.setdefault(_simumax_file(row), []).append(row)
        else:
            left_out.append(row["case"])
    without = f" Left out: {', '.join(left_out)}." if left_out else ""
    return {name: _simumax_text(name, own, content, without) for name, own in kinds.items()}


def _simumax_file(row: Mapping[str, Any]) -> str:
    if "experts" in MODELS[row["model"]]:
        return "simumax-b200-experts"
    return "simumax-b200-context" if "cp" in _degrees(row) else "simumax-b200"


def _degrees(row: Mapping[str, Any]) -> dict[str, int]:
    # As in `llama3_70b_l12_tp1_pp2_dp4_mbc4_cef`, in any order.
    return {name: int(value) for name, value in re.findall(r"_(tp|pp|ep|cp|dp)(\d+)", row["case"])}


def _simumax_text(name: str, rows: list[dict[str, Any]], content: bytes, without: str) -> str:
    models: dict[str, dict[str, Any]] = {}
    runs = []
    for row in rows:
        degrees = _degrees(row)
        layers, pp, tp = row["layer_num"], degrees["pp"], degrees["tp"]
        cp = degrees.get("cp", 1)
        model = f"{row['model']}-{layers}-layers"
        models[model] = MODELS[row["model"]] | {"layers": layers}
        length = re.search(r"_seq(\d+)", row["case"])
        runs.append(
            {
                "model": model,
                **({"sequence_length": int(length[1])} if length else {}),
                "pp": pp,
                "tp": tp,
                "dp": degrees["dp"],
                **{extra: degrees[extra] for extra in ("cp", "ep") if extra in degrees},
                **({"context_exchange": "all_to_all"} if cp > 1 else {}),
                "layer_counts": [layers // pp] * pp,
                "sequence_parallel": tp > 1,
                "micro_batches": row["mbc"],
                "measured_s": row["real_ms"] / 1000,
                "memory_gib": _fullest_gib(row, pp, pp * tp * cp * degrees["dp"]),
                "published_error": row["rel_err_pct"] / 100,
            }
        )
    return _file(
        comment=(
            f"{len(runs)} training steps on one B200 node that SimuMax published; published_error is its simulator's. "
            f"memory_gib is allocated on the fullest device of every stage.{SIMUMAX_COMMENTS[name]}{without}"
        ),
        head={
            "site": SITES[name],
            "hardware": "8 × B200 SXM, NVSwitch",
            "device": "b200-sxm",
            "fabric": "b200-simumax",
            "stack": "Megatron-LM core, TransformerEngine 2.11, bf16, gradients accumulated and reduced in fp32, "
            "fused cross-entropy, nothing overlapped",
            "source": f"MooreThreads/SimuMax, commit 4dcaae51, a part of its measured steps, {_digest(content)}",
            "licence": "Apache-2.0, © 2023-2024 Moore Threads Technology Co., Ltd",
        },
        # TransformerEngine's fused cross-entropy writes the gradient over the logits.
        defaults={
            "gpus_per_node": 8,
            "micro_batch": 1,
            "zero": 1,
            "reduce_dtype": "float32",
            "gradient_collective": "reduce_scatter",  # the distributed optimizer
            "loss": "in_place",
            "kept_by": "megatron",
            "exposed_share": 1,  # nothing overlaps
        },
        models=models,
        runs=runs,
    )


TODAY_MODELS = {
    "LLAMA3_8B": "llama-3-8b",
    "LLAMA3_70B": "llama-3-70b",
    "GPT OSS 120B": "gpt-oss-120b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "Qwen3_30B_a3B (tokendrop)": "qwen3-30b-a3b",
    "Nemotron_3_Nano": "nemotron-3-nano",
}
TODAY_MACHINES = {
    "DGX-H100": ("h100-sxm", "h100-3200g", 8),
    "H100 96 GB HBM2e at 500 W": ("h100-sxm", "h100-3200g", 8),
    "H200": ("h200-sxm", "h200-3200g", 8),
    "DGX-B200": ("b200-sxm", "b200-3200g", 8),
    "DGX-B300": ("b300-sxm", "b300-6400g", 8),
    "DGX-GB200": ("gb200", "gb200-nvl72", 64),
    "DGX-GB300": ("gb300", "gb300-nvl72", 64),
}
AT_FAULT = {
    (
        release,
        "Qwen3_30B_a3B",
        "DGX-H100",
    ): "ran at 0.56 of the speed of the next release with the same layout"
    for release in ("25.11", "26.02")
}


def today(content: bytes) -> dict[str, str]:
    """Texts by file name, one for each machine, of published steps of 2024 to 2026 (CSV)."""
    machines: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in csv.DictReader(content.decode().splitlines()):
        machines.setdefault((row["source"], row["system"]), []).append(row)
    return _texts(
        {_today_file(*machine): _today(*machine, rows, content) for machine, rows in machines.items()}
    )


BESIDE = {"b300": "b200", "gb300": "gb200", "mi355x": "mi325x"}
"""Whose file names the steps of a device that the table lacks."""


def _texts(files: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Texts of files; what cannot be asked, by device, format or model, is named with the reason."""
    left_out: dict[str, list[str]] = {}
    for name, parts in files.items():
        asked = []
        family, device = name.rsplit("-", 1)
        has_device = parts["head"]["device"] in all_hardware()
        place = name if has_device else f"{family}-{BESIDE.get(device, device)}"
        found = left_out.setdefault(place, [])
        found += parts["head"].pop("left_out", [])
        for run in parts["runs"]:
            recipe = run.get("fp8_recipe", "none")
            why = (
                f"device {parts['head']['device']} is not in the table"
                if not has_device
                else f"format {recipe} has no measured operators"
                if recipe not in LAYOUT["fp8_recipe"].kind.values
                else f"model {run['model']} is not described"
                if not built_in_name(run["model"])
                else ""
            )
            if why:
                found.append(f"{run['name']}: {why}")
            else:
                asked.append(run)
        parts["runs"] = asked
    return {
        name: _file(
            **parts | {"head": parts["head"] | ({"left_out": left_out[name]} if left_out.get(name) else {})}
        )
        for name, parts in files.items()
        if parts["runs"]
    }


def _today_file(source: str, system: str) -> str:
    framework = source.split("/")[1].lower()
    return f"{framework}-{system.removeprefix('DGX-').split()[0].lower()}"


def _today(source: str, system: str, rows: list[dict[str, str]], content: bytes) -> dict[str, Any]:
    device, fabric, per_node = TODAY_MACHINES[system]
    is_bridge = "Megatron" in source
    return {
        "comment": (
            f"{len(rows)} training steps that {source.split('/')[0]} published. measured_s is global batch × "
            "sequence / (tokens per second per GPU × GPUs). name: model, format, GPUs, release, task and what the "
            "recipe says that no field of a run does."
        ),
        "head": {
            "site": f"{source.split('/')[1]} {system.removeprefix('DGX-').split()[0]}",
            "hardware": system,
            "device": device,
            "fabric": fabric,
            "stack": "Megatron-Bridge, Megatron-LM core, TransformerEngine"
            if is_bridge
            else "torchtitan, FSDP2",
            "source": f"{source}, {TODAY_TABLES[source]}, {_digest(content)}",
            "licence": "Apache-2.0" if is_bridge else "BSD-3-Clause",
        },
        "defaults": {
            "gpus_per_node": per_node,
            **(TODAY_BRIDGE if is_bridge else TODAY_TITAN),
            **({"power_limit_w": 500} if "500 W" in system and "power_limit_w" in LAYOUT else {}),
        },
        "models": {},
        "runs": [_today_run(row) for row in rows],
    }


def _dispatch(row: Mapping[str, str]) -> dict[str, Any]:
    """What recipes leave open of mixtures of experts: dispatchers, and how much is in CUDA graphs.

    DeepEP between nodes of Hopper; from 26.06 on HybridEP and whole passes in graphs in racks and on B300, as the same
    layouts take 0.56 to 0.67 of the time from then on (but GPT-OSS not in 26.06.01, nor on B300).
    """
    found = {}
    is_oss, system = row["model"].startswith("GPT OSS"), row["system"].removeprefix("DGX-")
    if "CUDA graphs" in row["recipe_beyond_fields"]:
        found["cuda_graphs"] = "partial"
    if row["model"] == "Qwen3_30B_a3B" and system == "H100":
        found["expert_dispatcher"] = "deepep"
    fused = "CUDA graphs" in row["recipe_beyond_fields"] or (
        is_oss and system.startswith("GB") and row["release"] != "26.06.01"
    )
    if fused and row["release"] >= "26.06" and system != "H100":
        found |= {"expert_dispatcher": "hybridep", "cuda_graphs": "full"}
    return found


TODAY_TABLES = {
    "NVIDIA-NeMo/Megatron-Bridge": "commit 067987df, docs/performance-summary.md and -archive.md, recipes in "
    "src/megatron/bridge/perf_recipes",
    "pytorch/torchtitan": "commit b5bcd76c, benchmarks/",
}
TODAY_BRIDGE = {"kept_by": "megatron", "loss": "in_place"}
# Host time of an operator of a TransformerEngine module (docs/method.md, The host).
HOST = {"host_launch_us": 200}
# PyTorch's attention is FlashAttention-2 on Hopper; torch.compile fuses the loss.
TODAY_TITAN = {"attention_kernel": "flash-2"}


def _today_run(row: Mapping[str, str]) -> dict[str, Any]:
    recipe = json.loads(row["recipe_fields"])
    recipe.pop("gpus_per_node", None)
    if "per-operator" in row["recipe_beyond_fields"]:
        del recipe["recompute_layers"], recipe["recompute_early_stop"]
        recipe |= {"recompute": "selective", "recompute_modules": ["per_op"]}
    if "moe_act recomputed" in row["recipe_beyond_fields"]:
        recipe |= {"recompute": "selective"}
        recipe["recompute_modules"] = [*recipe.get("recompute_modules", []), "moe_act"]
    degrees = {name: int(row[name] or 1) for name in ("pp", "tp", "cp", "ep")}
    dp = int(row["gpus"]) // (degrees["pp"] * degrees["tp"] * degrees["cp"])
    beyond = re.sub(r" \(asked as.*?\)", "", row["recipe_beyond_fields"].removeprefix(f"{row['release']} "))
    name = (row["model"], row["precision"], f"{row['gpus']} GPUs", row["release"], row["task"])
    recipe |= _dispatch(row)
    fault = AT_FAULT.get((row["release"], row["model"], row["system"]))
    return {
        "name": ", ".join((*name, beyond)).removesuffix(", "),
        "model": TODAY_MODELS.get(row["model"], row["model"]),
        "sequence_length": int(row["sequence"]),
        **{degree: size for degree, size in degrees.items() if size > 1 or degree in ("pp", "tp")},
        "dp": dp,
        "micro_batch": int(row["micro_batch"]),
        "micro_batches": int(row["global_batch"]) // (int(row["micro_batch"]) * dp),
        **({"virtual_stages": int(row["vp"])} if row["vp"] else {}),
        **recipe,
        "measured_s": float(row["step_s"]),
        **({"flag": fault} if fault else {}),
    }


MLPERF_MODELS = {
    "llama2_70b_lora": "llama-2-70b",
    "llama31_8b": "llama-3.1-8b",
    "llama31_405b": "llama-3.1-405b",
    "gpt3": "gpt3-175b",
}
MLPERF_MACHINES = {
    "H100": ("h100-sxm", "h100-3200g", 8),
    "H200": ("h200-sxm", "h200-3200g", 8),
    "B200": ("b200-sxm", "b200-3200g", 8),
    "B300": ("b300-sxm", "b300-6400g", 8),
    "GB200": ("gb200", "gb200-nvl72", 72),
    "GB300": ("gb300", "gb300-nvl72", 72),
    "MI300X": ("mi300x", "mi300x-3200g", 8),
    "MI325X": ("mi325x", "mi300x-3200g", 8),
    "MI355X": ("mi355x", "mi300x-3200g", 8),
    "L40S": ("l40s", "pcie4-400g", 4),
}
MLPERF_BESIDE = {"H200 NVL": "H200", "MI350X": "MI355X"}
"""Devices that the table lacks, and those whose files name them."""


def mlperf(content: bytes) -> dict[str, str]:
    """Texts by file name, one for each device, of MLPerf Training's median steps (CSV)."""
    devices: dict[str, list[dict[str, str]]] = {}
    for row in csv.DictReader(content.decode().splitlines()):
        devices.setdefault(MLPERF_BESIDE.get(row["device"], row["device"]), []).append(row)
    return _texts(
        {f"mlperf-{device.lower()}": _mlperf(device, rows, content) for device, rows in devices.items()}
    )


def _mlperf(device: str, rows: list[dict[str, str]], content: bytes) -> dict[str, Any]:
    name, fabric, per_node = MLPERF_MACHINES[device]
    known = [row for row in rows if row["precision"] in MLPERF_FORMATS and row["device"] == device]
    left_out = [f"{row['group']}: {_why_left_out(row, device)}" for row in rows if row not in known]
    return {
        "comment": (
            f"{len(known)} groups of runs of MLPerf Training 4.0 to 5.1. measured_s is the median of their steps "
            "without the first five and evaluations."
        ),
        "head": {
            "site": f"MLPerf {device}",
            "hardware": device,
            "device": name,
            "fabric": fabric,
            "stack": "NeMo, Megatron-LM core, TransformerEngine, or the submitter's",
            "source": "MLCommons, training_results_v4.0, v5.0 and v5.1, a part of the submitters, "
            + _digest(content),
            "licence": "Apache-2.0",
            **({"left_out": left_out} if left_out else {}),
        },
        "defaults": {
            "kept_by": "megatron",
            "loss": "in_place",
            "gradient_collective": "reduce_scatter",
            **HOST,
        },
        "models": {},
        "runs": [_mlperf_run(row, per_node) for row in known],
    }


def _why_left_out(row: Mapping[str, str], device: str) -> str:
    if row["device"] != device:
        return f"{row['device']} is not in the device table"
    return "format not published" if row["tp"] else "layout not published"


def _mlperf_run(row: Mapping[str, str], per_node: int) -> dict[str, Any]:
    sizes = {name: int(row[name]) for name in ("pp", "tp", "cp")}
    per_node = min(int(row["accelerators"]), per_node)
    return {
        "name": f"{row['group']}, {row['precision']}",
        "model": MLPERF_MODELS[row["benchmark"]],
        "sequence_length": int(row["seq"]),
        **{degree: size for degree, size in sizes.items() if size > 1 or degree != "cp"},
        "dp": int(row["dp"]),
        "gpus_per_node": per_node if int(row["accelerators"]) % per_node == 0 else 64,
        "micro_batch": int(row["mbs"]),
        "micro_batches": int(row["micro_batches"]),
        **({"virtual_stages": int(row["vp"]), "schedule": "interleaved"} if int(row["vp"]) > 1 else {}),
        "sequence_parallel": row["sp"] == "1" and sizes["tp"] > 1,
        **(
            {"context_exchange": "all_to_all"}
            if sizes["cp"] > 1 and KV_HEADS % (sizes["cp"] * sizes["tp"]) == 0
            else {}
        ),
        **MLPERF_FORMATS[row["precision"]],
        **({"cuda_graphs": MLPERF_GRAPHS[row["cuda_graph"]]} if row["cuda_graph"] else {}),
        **({"tensor_overlap": "products"} if row["tp_overlap"] == "1" and sizes["tp"] > 1 else {}),
        **(
            {"lora_rank": 16, "lora_linears": ["attention"]}
            if "lora" in row["benchmark"]
            else MLPERF_OVERLAPS
        ),
        **({"recompute": row["recompute"]} if row["recompute"] != "none" else {}),
        "measured_s": float(row["measured_s"]),
    }


MLPERF_FORMATS = {
    "fp8-delayed": {
        "fp8_recipe": "delayed" if "delayed" in LAYOUT["fp8_recipe"].kind.values else "tensorwise"
    },
    "fp8-tensorwise": {"fp8_recipe": "tensorwise"},
    "nvfp4": {"fp8_recipe": "nvfp4"},
}
MLPERF_GRAPHS = {"layer": "partial", "full": "full"}
KV_HEADS = 8
"""Of all models but GPT-3, which none cuts along the sequence."""
MLPERF_OVERLAPS = {"overlap_gradients": True, "overlap_parameters": True}


SITES = {
    "simumax-b200": "SimuMax B200",
    "simumax-b200-experts": "SimuMax B200, experts",
    "simumax-b200-context": "SimuMax B200, context",
}
SIMUMAX_COMMENTS = {
    "simumax-b200": "",
    "simumax-b200-experts": " Latent attention; experts take as many tokens from each sender as they have room for, "
    "and empty rows are padded: every expert has 154 rows of each sender.",
    "simumax-b200-context": " Heads are exchanged for tokens.",
}

MODELS = {
    "llama3-70b": {
        "hidden_size": 8192,
        "sequence_length": 4096,
        "attention_heads": 64,
        "kv_heads": 8,
        "vocabulary_size": 128256,
        "mlp_size": 28672,
        "norm": "rms_norm",
        "activation": "swiglu",
    },
    "deepseekv2": {
        "hidden_size": 5120,
        "sequence_length": 4096,
        "attention_heads": 128,
        "vocabulary_size": 102400,
        "head_size": 192,
        "value_head_size": 128,
        "rotary_size": 64,
        "query_rank": 1536,
        "kv_rank": 512,
        "mlp_size": 12288,
        "experts": 160,
        "experts_per_token": 6,
        "expert_size": 1536,
        "shared_expert_size": 3072,
        "dense_layers": 1,
        "norm": "rms_norm",
        "activation": "swiglu",
        "biases": "none",
    },
}


def _fullest_gib(row: Mapping[str, Any], stages: int, devices: int) -> list[float]:
    """Memory of the fullest rank of every stage; Megatron numbers ranks stage by stage."""
    fullest = [0.0] * stages
    for rank, size in row["peak_memory_by_rank_mb"].items():
        stage = int(rank) * stages // devices
        fullest[stage] = max(fullest[stage], round(size["max_allocated_mb"] / MIB_PER_GIB, 3))
    return fullest


def _digest(content: bytes) -> str:
    return f"SHA-256 {sha256(content).hexdigest()}"


def _file(
    *,
    comment: str,
    head: Mapping[str, Any],
    defaults: Mapping[str, Any],
    models: Mapping[str, Mapping[str, Any]],
    runs: Iterable[Mapping[str, Any]],
) -> str:
    lines = [*_comment(comment), "# Made by tests/datasets/convert_steps.py.", *_fields(head)]
    lines += ["", "[defaults]", *_fields(defaults)]
    for name, fields in models.items():
        lines += ["", f"[models.{name}]", *_fields(fields)]
    for run in runs:
        lines += ["", "[[runs]]", *_fields(run)]
    return "\n".join(lines) + "\n"


def _fields(values: Mapping[str, Any]) -> list[str]:
    # JSON's texts, numbers, booleans and lists are TOML's too.
    return [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]


def _comment(text: str) -> list[str]:
    return wrap(text, 110, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


CONVERT = {"llm-foundry": llm_foundry, "simumax": simumax, "today": today, "mlperf": mlperf}

if __name__ == "__main__":
    main(sys.argv[1:])
