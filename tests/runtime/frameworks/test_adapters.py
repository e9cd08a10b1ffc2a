"""LoRA and preference pairs as NeMo, LLM Foundry, TRL and LLaMA-Factory state them."""

from typing import Any

import pytest

from kernelcast.runtime import Parallelism, UsageError, load_model
from kernelcast.runtime.frameworks.layout_files import read_layout_text, write_layout
from kernelcast.runtime.frameworks.rows import Job

MODEL = load_model("llama-3-8b")
ALIGNED = """
trainer: {num_nodes: 2, devices: 8}
model:
  micro_batch_size: 1
  global_batch_size: 64
  dpo:
    ref_policy_kl_penalty: 0.1
  peft:
    peft_scheme: "lora"
    lora_tuning:
      target_modules: ['attention_qkv']
      adapter_dim: 16
      adapter_dropout: 0.05
"""


def test_preference_pairs_and_adapters_of_nemo_aligner() -> None:
    file = read_layout_text(ALIGNED, "dpo.yaml")
    fields, notes, _ = file.request(MODEL, {})
    assert (file.name, notes) == ("nemo", ())
    adapters = {"lora_rank": 16, "lora_dropout": 0.05, "lora_linears": ("q_proj", "k_proj", "v_proj")}
    assert fields.items() >= {"dp": 16, "global_batch": 64, "objective": "dpo", **adapters}.items()
    plain = (
        ALIGNED.replace('"lora"', "none")
        .replace("ref_policy_kl_penalty", "max_seq_length")
        .replace("0.1", "2048")
        + "  encoder_seq_length: 4096\n"
    )
    fields, notes, _ = read_layout_text(plain, "sft.yaml").request(MODEL, {})
    assert (fields["lora_rank"], fields["objective"], fields["sequence_length"], notes) == (
        0,
        "next_token",
        2048,
        (),
    )
    fields, notes, _ = read_layout_text(ALIGNED.replace("target_modules", "others"), "x").request(MODEL, {})
    note = "adapters are taken at attention, the default there (model.peft.lora_tuning.target_modules is not given)"
    assert (fields["lora_linears"], notes) == (("attention",), (note,))
    _, notes, _ = read_layout_text(ALIGNED.replace('"lora"', "ia3"), "x").request(MODEL, {})
    assert notes == ("model.peft.peft_scheme ia3 is not read",)
    with pytest.raises(UsageError, match=r"adapter_dim is '0\.5', expected a whole number"):
        read_layout_text(ALIGNED.replace("16", "0.5"), "x").request(MODEL, {})


LISTED = ALIGNED.replace(" ['attention_qkv']", "\n        - attention_qkv\n        - mlp_fc2")
OTHERS = (
    LISTED
    + """    adapter_tuning:
      adapter_dim: 64
      adapter_dropout: 0.3
    p_tuning: {virtual_tokens: 10}
"""
)
RECIPE = """config = finetune(tensor_model_parallel_size=2, micro_batch_size=1, global_batch_size=32, seq_length=4096)
config.peft = LoRA(target_modules=["linear_qkv"], dim=8, alpha=16, dropout=0.1)
"""
OVERRIDES = "torchrun --nproc-per-node=8 run.py model.tensor_model_parallel_size=2 train.micro_batch_size=1 peft.dim=8"


@pytest.mark.parametrize(
    ("text", "rank", "dropout", "linears"),
    [
        (LISTED, 16, 0.05, ("q_proj", "k_proj", "v_proj", "down_proj")),
        (OTHERS, 16, 0.05, ("q_proj", "k_proj", "v_proj", "down_proj")),
        (RECIPE, 8, 0.1, ("q_proj", "k_proj", "v_proj")),
        (OVERRIDES, 8, 0.0, ("attention", "mlp")),
        (
            f"{OVERRIDES} peft.target_modules=[linear_proj,linear_fc1]",
            8,
            0.0,
            ("o_proj", "gate_proj", "up_proj"),
        ),
    ],
)
def test_linears_with_adapters_of_nemo(
    text: str, rank: int, dropout: float, linears: tuple[str, ...]
) -> None:
    """A list of YAML, of a recipe or of overrides; tables of other schemes, which have the same names, are not read."""
    fields, notes, sources = read_layout_text(text, "x").request(MODEL, {}, 8)
    assert (fields["lora_rank"], fields["lora_dropout"], fields["lora_linears"]) == (rank, dropout, linears)
    assert notes == ()
    if text == RECIPE:
        lines = {one.field: one.line for one in sources if one.line}
        assert (lines["tp"], lines["lora_rank"], lines["lora_dropout"], lines["lora_linears"]) == (1, 2, 2, 2)


@pytest.mark.parametrize(
    "linears", [("attention",), ("q_proj", "k_proj", "v_proj", "down_proj"), ("mlp", "o_proj")]
)
def test_linears_with_adapters_are_written_for_nemo_as_they_are_read(linears: tuple[str, ...]) -> None:
    layout = Parallelism.unchecked(layer_counts=(32,), lora_rank=16, lora_linears=linears)
    written = write_layout("nemo", Job(model=MODEL, parallelism=layout, gpus_per_node=8, dtype="bfloat16"))
    assert not any("lora" in one for one in written.lost)
    fields, _, _ = read_layout_text(written.text, "x").request(MODEL, {})
    assert {*fields["lora_linears"]} == {*linears}
    layout = Parallelism.unchecked(layer_counts=(32,), lora_rank=16, lora_linears=("q_proj", "v_proj", "mlp"))
    written = write_layout("nemo", Job(model=MODEL, parallelism=layout, gpus_per_node=8, dtype="bfloat16"))
    assert "lora_linears q_proj,v_proj" in written.lost


TRL = "accelerate launch --num_processes 8 train.py --per_device_train_batch_size 1"


@pytest.mark.parametrize(
    ("flags", "rank", "linears"),
    [
        ("--use_peft --lora_r 8 --lora_target_modules q_proj k_proj", 8, ("q_proj", "k_proj")),
        ("--use_peft --lora_target_modules all-linear", 16, ("attention", "mlp")),
        ("--use_peft False --lora_r 16", 0, None),
        ("--lora_rank 16 --lora_target=q_proj,v_proj", 16, ("q_proj", "v_proj")),
        ("--finetuning_type lora --lora_target all", 8, ("attention", "mlp")),
        ("--finetuning_type full --lora_rank 8", 0, None),
        ("--learning_rate 1e-4", 0, None),
    ],
)
def test_target_modules_of_peft(flags: str, rank: int, linears: tuple[str, ...] | None) -> None:
    fields, notes, _ = read_layout_text(f"{TRL} {flags}", "x").request(MODEL, {})
    assert (fields["lora_rank"], fields.get("lora_linears"), notes) == (rank, linears, ())


@pytest.mark.parametrize(
    ("flags", "linears", "note"),
    [
        (
            "--use_peft --lora_r 16",
            ("q_proj", "v_proj"),
            "adapters are taken at q_proj,v_proj, the default there (--lora-target-modules is not given)",
        ),
        (
            "--lora_rank 16",
            ("attention", "mlp"),
            "adapters are taken at attention,mlp, the default there (--lora-target is not given)",
        ),
        (
            "--use_peft --lora_target_modules q_proj embed_tokens",
            ("q_proj",),
            "--lora-target-modules embed_tokens is not read: no adapters are taken there",
        ),
        (
            "--use_peft --lora_target_modules dense_h_to_4h",
            ("q_proj", "v_proj"),
            "adapters are taken at q_proj,v_proj, the default there (--lora-target-modules dense_h_to_4h is not read)",
        ),
        ("--lora_r 16", None, "--lora-r is given without --use-peft: all weights are trained"),
        ("--finetuning_type freeze", None, "--finetuning-type freeze is read as full"),
    ],
)
def test_what_is_not_read_of_adapters_has_a_note(
    flags: str, linears: tuple[str, ...] | None, note: str
) -> None:
    fields, notes, _ = read_layout_text(f"{TRL} {flags}", "x").request(MODEL, {})
    assert (fields.get("lora_linears"), notes) == (linears, (note,))
    given: dict[str, Any] = {"lora_linears": ("o_proj",)}
    fields, notes, _ = read_layout_text(f"{TRL} {flags}", "x").request(MODEL, given)
    assert (fields["lora_linears"], notes) == (("o_proj",), () if linears else (note,))


def test_a_rank_that_is_given_needs_no_flag_of_the_script() -> None:
    fields, notes, _ = read_layout_text(f"{TRL} --lora_r 16", "x").request(MODEL, {"lora_rank": 8})
    assert (fields["lora_rank"], notes) == (8, ())


FOUNDRY = "global_train_batch_size: 64\ndevice_train_microbatch_size: 1\nmodel:\n  name: hf_causal_lm\n  peft_config: "


@pytest.mark.parametrize(
    ("config", "rank", "dropout", "linears"),
    [
        ("{peft_type: LORA, r: 16, target_modules: [q_proj, o_proj]}", 16, 0.0, ("q_proj", "o_proj")),
        (
            "\n    r: 4\n    peft_type: LORA\n    lora_dropout: 0.05\n    target_modules:\n    - v_proj\n",
            4,
            0.05,
            ("v_proj",),
        ),
    ],
)
def test_adapters_of_llm_foundry(config: str, rank: int, dropout: float, linears: tuple[str, ...]) -> None:
    fields, notes, sources = read_layout_text(FOUNDRY + config, "x").request(MODEL, {}, 8)
    assert (fields["lora_rank"], fields["lora_dropout"], fields["lora_linears"]) == (rank, dropout, linears)
    assert notes == ()
    assert {one.line for one in sources if one.field == "lora_rank"} <= {5, 6, 7}
    fields, _, _ = read_layout_text(FOUNDRY + "null", "x").request(MODEL, {}, 8)
    assert fields["lora_rank"] == 0


def test_what_nemo_says_of_adapters_and_pairs() -> None:
    layout = Parallelism.unchecked(layer_counts=(32,), lora_rank=16, objective="dpo_precomputed")
    written = write_layout("nemo", Job(model=MODEL, parallelism=layout, gpus_per_node=8, dtype="bfloat16"))
    assert "  peft:\n    peft_scheme: lora\n    lora_tuning:\n      adapter_dim: 16\n" in written.text
    assert "target_modules: [attention, mlp]" in written.text
    assert "  dpo:\n    ref_policy_kl_penalty: 0.2" in written.text
    assert {
        "objective dpo_precomputed (dpo is used)",
    } <= {*written.lost}
