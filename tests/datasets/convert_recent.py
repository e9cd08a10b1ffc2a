"""Steps of 2024 to 2026 of Megatron-Bridge, torchtitan and MLPerf Training as runs files."""

import csv
import json
import re
from collections.abc import Mapping
from typing import Any

from kernelcast.runtime.request.fields import LAYOUT
from tests.datasets.runs_texts import digest, texts

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
    "H100 96 GB HBM2e at 500 W": ("h100-sxm-96gb", "h100-3200g", 8),
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
    return texts(
        {_today_file(*machine): _today(*machine, rows, content) for machine, rows in machines.items()}
    )


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
            "source": f"{source}, {TODAY_TABLES[source]}, {digest(content)}",
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


def _experts(row: Mapping[str, str]) -> dict[str, Any]:
    """What the table leaves open of mixtures of experts: dispatchers, CUDA graphs, and what recipes add to them.

    DeepEP between nodes of Hopper; from 26.06 on HybridEP and whole passes in graphs in racks and on B300, as the same
    layouts take 0.56 to 0.67 of the time from then on (but GPT-OSS not in 26.06.01, nor on B300). Recipes of such
    graphs overlap the exchange with experts and have 8-bit attention, which has no sinks.
    """
    found: dict[str, Any] = {}
    is_oss, system = row["model"].startswith("GPT OSS"), row["system"].removeprefix("DGX-")
    if "CUDA graphs" in row["recipe_beyond_fields"] or row["model"] == "Nemotron_3_Nano":
        found["cuda_graphs"] = "partial"
    if row["model"] == "Qwen3_30B_a3B" and system == "H100":
        found["expert_dispatcher"] = "deepep"
    fused = "CUDA graphs" in row["recipe_beyond_fields"] or (
        is_oss and system.startswith("GB") and row["release"] != "26.06.01"
    )
    if fused and row["release"] >= "26.06" and system != "H100":
        found |= {"expert_dispatcher": "hybridep", "cuda_graphs": "full", "expert_overlap": True}
        found |= {} if is_oss else {"fp8_attention": True}
    return found


def _recomputed(row: Mapping[str, str], recipe: Mapping[str, Any]) -> list[str]:
    """Modules that recipes run again (`recompute_modules` in src/megatron/bridge/perf_recipes).

    Where the table differs: GPT-OSS runs nothing again on GB300, nor in graphs of whole passes; Nemotron does on H100.
    """
    if row["model"] == "Nemotron_3_Nano":
        return ["moe", "layernorm", "core_attn"] if row["system"] == "DGX-H100" else []
    if row["model"] == "GPT OSS 120B" and (
        row["system"] == "DGX-GB300" or recipe.get("cuda_graphs") == "full"
    ):
        return []
    named = recipe.get("recompute_modules", [])
    return [*named, "moe_act"] if "moe_act recomputed" in row["recipe_beyond_fields"] else named


TODAY_TABLES = {
    "NVIDIA-NeMo/Megatron-Bridge": "commit 067987df, docs/performance-summary.md and -archive.md, recipes in "
    "src/megatron/bridge/perf_recipes",
    "pytorch/torchtitan": "commit b5bcd76c, benchmarks/",
}
TODAY_BRIDGE = {"kept_by": "megatron", "loss": "in_place"}
# Host time of an operator of a TransformerEngine module (docs/method.md, The host).
HOST = {"host_launch_us": 200}
# PyTorch's attention is FlashAttention-2 on Hopper; gradients are reduced in fp32 (mixed_precision_reduce); of
# overlapped collectives the part that LLM Foundry's FSDP steps exposed (stack fsdp-composer).
TODAY_TITAN = {
    "attention_kernel": "flash-2",
    "reduce_dtype": "float32",
    "exposed_share": 0.6,
    "kept_by": "torchtitan",
}


def _today_run(row: Mapping[str, str]) -> dict[str, Any]:
    recipe = json.loads(row["recipe_fields"])
    recipe.pop("gpus_per_node", None)
    if "per-operator" in row["recipe_beyond_fields"]:
        del recipe["recompute_layers"], recipe["recompute_early_stop"]
        recipe |= {"recompute": "selective", "recompute_modules": ["per_op"]}
    if "eager kernels" in row["recipe_beyond_fields"]:
        recipe["eager"] = "all"
    recipe |= _experts(row)
    if "fp8 parameter gather" in row["recipe_beyond_fields"] and "Megatron" in row["source"]:
        recipe["fp8_weights"] = True
    beyond = re.sub(r" \(asked as.*?\)", "", row["recipe_beyond_fields"].removeprefix(f"{row['release']} "))
    if modules := _recomputed(row, recipe):
        recipe |= {"recompute": "selective", "recompute_modules": modules}
    elif "moe_act recomputed" in beyond:
        recipe = {name: value for name, value in recipe.items() if not name.startswith("recompute")}
        beyond = beyond.replace("moe_act recomputed", "")
    degrees = {name: int(row[name] or 1) for name in ("pp", "tp", "cp", "ep")}
    dp = int(row["gpus"]) // (degrees["pp"] * degrees["tp"] * degrees["cp"])
    name = (row["model"], row["precision"], f"{row['gpus']} GPUs", row["release"], row["task"])
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
    "H200 NVL": ("h200-nvl", "h200-nvl-800g", 4),
    "B200": ("b200-sxm", "b200-3200g", 8),
    "B300": ("b300-sxm", "b300-6400g", 8),
    "GB200": ("gb200", "gb200-nvl72", 72),
    "GB300": ("gb300", "gb300-nvl72", 72),
    "MI300X": ("mi300x", "mi300x-3200g", 8),
    "MI325X": ("mi325x", "mi300x-3200g", 8),
    "MI350X": ("mi350x", "mi355x-3200g", 8),
    "MI355X": ("mi355x", "mi300x-3200g", 8),
    "L40S": ("l40s", "pcie4-400g", 4),
}


def mlperf(content: bytes) -> dict[str, str]:
    """Texts by file name, one for each device, of MLPerf Training's median steps (CSV)."""
    devices: dict[str, list[dict[str, str]]] = {}
    for row in csv.DictReader(content.decode().splitlines()):
        devices.setdefault(row["device"], []).append(row)
    return texts(
        {
            f"mlperf-{device.lower().replace(' ', '-')}": _mlperf(device, rows, content)
            for device, rows in devices.items()
        }
    )


def _mlperf(device: str, rows: list[dict[str, str]], content: bytes) -> dict[str, Any]:
    name, fabric, per_node = MLPERF_MACHINES[device]
    known = [row for row in rows if row["precision"] in MLPERF_FORMATS]
    left_out = [
        f"{row['group']}: {'format' if row['tp'] else 'layout'} not published"
        for row in rows
        if row not in known
    ]
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
            + digest(content),
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
            if sizes["cp"] > 1 and KV_HEADS % (sizes["cp"] * sizes["tp"]) == 0 and "lora" in row["benchmark"]
            else {}
        ),
        **MLPERF_FORMATS[row["precision"]],
        **({"cuda_graphs": MLPERF_GRAPHS[row["cuda_graph"]]} if row["cuda_graph"] else {}),
        **({"tensor_overlap": OVERLAPS[row["tp_overlap"]]} if sizes["tp"] > 1 else {}),
        **(
            {
                "lora_rank": 16,
                "lora_dropout": 0.1,
                "lora_linears": ["attention"],
                "fp8_weights": True,
                "fp8_activation_store": sizes["cp"] == 1,
            }
            if "lora" in row["benchmark"]
            else MLPERF_OVERLAPS | ({"fp8_weights": True} if row["fp8_param_gather"] == "1" else {})
        ),
        **({"attention_kernel": "cudnn"} if row["device"] in HOPPER and row["fp8_attention"] == "0" else {}),
        **({"fp8_attention": True} if row["device"] in BLACKWELL and row["fp8_attention"] == "1" else {}),
        **({"recompute": row["recompute"]} if row["recompute"] != "none" else {}),
        "measured_s": float(row["measured_s"]),
    }


HOPPER = ("H100", "H200", "H200 NVL")
"""TransformerEngine's 16-bit attention is cuDNN's there; no table has it in 8 bit on Hopper."""
BLACKWELL = ("B200", "GB200", "B300", "GB300")
MLPERF_FORMATS = {
    "fp8-delayed": {
        "fp8_recipe": "delayed" if "delayed" in LAYOUT["fp8_recipe"].kind.values else "tensorwise"
    },
    "fp8-tensorwise": {"fp8_recipe": "tensorwise"},
    "nvfp4": {"fp8_recipe": "nvfp4_plain"},  # NVTE_NVFP4_DISABLE_RHT=1 in Lambda's of 5.1, taken for all
}
OVERLAPS = {"0": "weight_gradients", "1": "products"}
"""Megatron-LM's linears sum the input's gradient under the weight's without userbuffers too."""
MLPERF_GRAPHS = {"layer": "partial", "full": "full"}
KV_HEADS = 8
"""Of all models but GPT-3, which none cuts along the sequence. LoRA's cp 8 exchanges heads for tokens. The code of
pre-training names no exchange, and has layouts with more devices than these heads: Megatron-core's default, rings."""
MLPERF_OVERLAPS = {"overlap_gradients": True, "overlap_parameters": True}
