"""Megatron-LM's arguments of mixtures of experts and of latent attention."""

from dataclasses import replace
from typing import Any

import pytest

from kernelcast.runtime import ModelConfig, Parallelism, UsageError, load_model
from kernelcast.runtime.frameworks.layout_files import read_layout_text, write_layout
from kernelcast.runtime.frameworks.megatron_kinds import expert_pattern
from kernelcast.runtime.frameworks.rows import Job
from kernelcast.runtime.request.layout import read_layout

MODEL = load_model("llama-3-8b")


def fields(text: str, model: ModelConfig = MODEL, **given: Any) -> dict[str, Any]:
    devices = given.pop("devices", None)
    return read_layout_text(text, "train.sh").request(model, given, devices).fields


MIXTURE = replace(
    MODEL, name="mixture", experts=8, experts_per_token=2, expert_size=2048, dense_layers=2, shared_expert_size=1024
)  # fmt: skip
LATENT = replace(
    MIXTURE, kv_heads=32, head_size=192, rotary_size=64, value_head_size=128, query_rank=768, kv_rank=512,
    router="sigmoid", extra_predictions=1, qk_norm=True,
)  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", {"ep": 1, "expert_tp": 2}),
        ("--expert-model-parallel-size 4", {"ep": 4, "expert_tp": 2}),
        ("--expert-model-parallel-size 8 --expert-tensor-parallel-size 1", {"ep": 8, "expert_tp": 1}),
        (
            "--moe-expert-capacity-factor 1.25 --moe-pad-expert-input-to-capacity",
            {"expert_capacity": 1.25, "expert_padding": True},
        ),
    ],
)
def test_experts(flags: str, expected: dict[str, Any]) -> None:
    text = f"--tensor-model-parallel-size 2 --sequence-parallel --micro-batch-size 1 --global-batch-size 8 {flags}"
    assert fields(text, MIXTURE, devices=8).items() >= {"dp": 4, **expected}.items()
    assert "expert_tp" not in fields(text, MODEL, devices=8)  # experts of no model are not cut


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        (
            MIXTURE,
            "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 2048 "
            "--moe-shared-expert-intermediate-size 1024 --moe-layer-freq '([0]*2+[1]*30)'",
        ),
        (replace(MIXTURE, dense_layers=0), "--num-experts 8"),
        (replace(MIXTURE, dense_layers=0, expert_latent_size=512), "--moe-latent-size 512"),
        (
            replace(MIXTURE, dense_layers=1, expert_interval=3),
            "--moe-layer-freq '([0]*1+([0]*2+[1])*10+[0]*1)'",
        ),
        (
            LATENT,
            "--multi-latent-attention --q-lora-rank 768 --kv-lora-rank 512 --qk-head-dim 128 "
            "--qk-pos-emb-head-dim 64 --v-head-dim 128 --qk-layernorm",
        ),
        (LATENT, "--moe-router-score-function sigmoid --moe-router-enable-expert-bias --mtp-num-layers 1"),
        (replace(MODEL, rotary_size=64), "--kv-channels 128 --rotary-percent 0.5"),
    ],
)
def test_models_with_experts_and_latent_attention(model: ModelConfig, flags: str) -> None:
    layout = Parallelism(
        pp=2, tp=2, dp=2, cp=2, ep=4, expert_tp=1, micro_batch=1, micro_batches=8, sequence_parallel=True,
        context_exchange="all_gather", gradient_collective="reduce_scatter", zero=1, tensor_overlap="weight_gradients",
        reduce_dtype="float32", kept_by="megatron", optimizer_states="bfloat16", loss="in_place",
    )  # fmt: skip
    if not model.experts:
        layout = replace(layout, ep=1)
    job = Job(model=model, parallelism=layout, gpus_per_node=8, dtype="bfloat16")
    written = write_layout("megatron-lm", job)
    text = " ".join(written.text.replace("\\\n", " ").split())
    assert written.lost == ()
    assert flags.split(" --")[0] in text
    assert all(one in text for one in flags.replace(" --", "\n--").splitlines())
    assert ("--moe-layer-freq" in text) == ("--moe-layer-freq" in flags or model is LATENT)
    file = read_layout_text(written.text, "train.sh")
    assert file.unread == ()
    request = file.request(model, {})
    assert request.notes == ()
    again = read_layout(request.fields)
    assert again == replace(layout, layer_counts=again.layer_counts)


@pytest.mark.parametrize(
    ("value", "pattern"),
    [
        ("1", [1, 1, 1, 1, 1, 1]),
        ("3", [1, 0, 0, 1, 0, 0]),
        ("([0]*3+[1]*3)", [0, 0, 0, 1, 1, 1]),
        ("([1]+[0]*2)*2", [1, 0, 0, 1, 0, 0]),
        ("[0, 1,0,1,0,1]", [0, 1, 0, 1, 0, 1]),
    ],
)
def test_patterns_of_layers_with_experts(value: str, pattern: list[int]) -> None:
    assert expert_pattern("--moe-layer-freq", value, 6) == pattern


@pytest.mark.parametrize(
    "value",
    [
        "",
        "0",
        "x",
        "[2]",
        "[0]*-1",
        "[0]**9",
        "[1]*9999999",
        "([1]*9999)*9999",
        "(" * 9999,
        "[" * 900,
        "exit()",
    ],
)
def test_no_patterns(value: str) -> None:
    with pytest.raises(UsageError, match=r"^--moe-layer-freq is .*, expected a number or a list such as"):
        expert_pattern("--moe-layer-freq", value, 6)


def test_other_experts_are_said() -> None:
    model = "--num-experts 16 --moe-layer-freq '[1]*31+[0]' --multi-latent-attention --kv-lora-rank 9"
    notes = read_layout_text(f"--micro-batch-size 1 {model}", "train.sh").request(LATENT, {"dp": 1}).notes
    assert "--num-experts says experts 16, model mixture has 8, which is used" in notes
    assert "--moe-layer-freq: the model's own layers have experts" in notes
    assert "--multi-latent-attention says kv_rank 9, model mixture has 512, which is used" in notes
