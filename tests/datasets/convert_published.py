"""Published tables of LLM Foundry and SimuMax as runs files."""

import csv
import json
import re
from collections.abc import Mapping
from typing import Any

from tests.datasets.runs_texts import digest, file_text

DEGREES = ("tp", "pp", "ep", "cp", "dp")
MIB_PER_GIB = 1024


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
        files[f"llm-foundry-{machine[:4].lower()}-{machine[-4:].lower()}"] = file_text(
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
                f"{digest(content)}",
                "licence": "Apache-2.0",
            },
            # Its models take flash-attention's cross-entropy unless torch's is selected; not in place.
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
    return file_text(
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
            "source": f"MooreThreads/SimuMax, commit 4dcaae51, a part of its measured steps, {digest(content)}",
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
