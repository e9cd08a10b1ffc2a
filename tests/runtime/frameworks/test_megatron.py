"""Megatron-LM's flags, as scripts hold them."""

from dataclasses import replace
from typing import Any

import pytest

from kernelcast.runtime import DataError, ModelConfig, Parallelism, UsageError, load_model
from kernelcast.runtime.frameworks.layout_files import read_layout_text, write_layout
from kernelcast.runtime.frameworks.rows import Job
from kernelcast.runtime.request.fields import STACK

MODEL = load_model("llama-3-8b")
SCRIPT = r"""#!/bin/bash
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-4}
WORLD_SIZE=$((GPUS_PER_NODE * $NNODES))
export TP=2
PP="4"   # stages
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096
    --swiglu
)
# --zero-is-commented-out 3
PARALLEL="--tensor-model-parallel-size ${TP} --pipeline-model-parallel-size=$PP"
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes=$NNODES --master-addr "$ADDRESS" pretrain_gpt.py \
    ${MODEL_ARGS[@]} $PARALLEL \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size=$PP \
    --micro-batch-size 1 --global-batch-size 128 --seq-length 4096 --lr 3e-4 \
    --sequence-parallel --use-distributed-optimizer --recompute-activations 2>&1 | tee log
"""


def fields(text: str, model: ModelConfig = MODEL, **given: Any) -> dict[str, Any]:
    devices = given.pop("devices", None)
    return read_layout_text(text, "train.sh").request(model, given, devices).fields


def test_a_script() -> None:
    file = read_layout_text(SCRIPT, "train.sh")
    assert file.framework.title == "Megatron-LM"
    assert file.sequence_length() == 4096
    assert file.unread == ("--master-addr (line 13)", "--lr (line 16)")
    assert (
        fields(SCRIPT).items()
        >= {
            "tp": 2,
            "pp": 4,
            "dp": 4,
            "micro_batch": 1,
            "global_batch": 128,
            "gpus_per_node": 8,
            "sequence_parallel": True,
            "zero": 1,
            "recompute": "selective",
            "schedule": "1f1b",
        }.items()
    )
    # Megatron-LM spreads layers evenly, as kernelcast does by default.
    assert "layer_counts" not in fields(SCRIPT)
    assert fields(SCRIPT, layer_split="paper")["layer_counts"] == (8, 8, 8, 8)


def test_what_is_given_wins() -> None:
    assert fields(SCRIPT, tp=4).items() >= {"tp": 4, "dp": 2}.items()  # the devices stay
    assert fields(SCRIPT, dp=2).items() >= {"tp": 2, "pp": 4, "dp": 2, "global_batch": 128}.items()
    assert fields(SCRIPT, devices=64)["dp"] == 8
    assert fields(SCRIPT, pp=2, layer_split="paper")["layer_counts"] == (16, 16)
    assert fields(SCRIPT, schedule="zero_bubble", layer_split="paper")["layer_counts"] == (8, 8, 8, 8)
    assert "global_batch" not in fields(SCRIPT, micro_batches=3)
    assert fields(SCRIPT.replace("TP=2", "TP=two"), tp=2)["dp"] == 4


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--num-layers-per-virtual-pipeline-stage 4", {"schedule": "interleaved", "virtual_stages": 2}),
        ("--num-virtual-stages-per-pipeline-rank 4", {"virtual_stages": 4}),
        ("--decoder-first-pipeline-num-layers 6", None),
        (
            "--decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 6",
            {"layer_counts": (6, 10, 10, 6)},
        ),
        ("--pipeline-model-parallel-layout 'Et*3|(t|)*6,t*23L'", {"virtual_stages": 2}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", {"zero": 3}),
        ("--use-distributed-optimizer", {"zero": 1, "gradient_collective": "reduce_scatter"}),
        (
            "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 100000000",
            {"overlap_gradients": True, "overlap_parameters": True, "overlap_bucket": 100_000_000},
        ),
        (
            "--use-distributed-optimizer --num-distributed-optimizer-instances 2",
            {"gradient_collective": "reduce_scatter", "shard_group": 1},
        ),
        ("--tp-comm-overlap --tensor-model-parallel-size 2", {"tensor_overlap": "products"}),
        (
            "--tensor-model-parallel-size 2",
            {"tensor_overlap": "weight_gradients", "overlap_gradients": False},
        ),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 4",
            {"recompute": "full"},
        ),
        ("", {"zero": 0, "recompute": "none", "sequence_parallel": False, "kept_by": "megatron"}),
        ("--transformer-impl local", {"kept_by": "megatron_local"}),
        # Gradients of bf16 are summed in fp32 unless that is switched off.
        ("", {"reduce_dtype": "same"}),
        ("--bf16", {"reduce_dtype": "float32"}),
        ("--bf16 --grad-reduce-in-bf16", {"reduce_dtype": "same"}),
        ("--bf16 --main-grads-dtype bf16", {"reduce_dtype": "same"}),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", {"reduce_dtype": "float32"}),
        ("--cross-entropy-loss-fusion", {"loss": "native"}),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", {"loss": "in_place"}),
        (
            "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
            {"optimizer_states": "bfloat16"},
        ),
        ("--context-parallel-size 2", {"cp": 2, "dp": 1, "context_exchange": "ring"}),
        ("--context-parallel-size 2 --cp-comm-type a2a", {"context_exchange": "all_to_all"}),
    ],
)
def test_flags(flags: str, expected: dict[str, Any] | None) -> None:
    text = f"--pipeline-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 8 {flags}"
    if expected is None:
        with pytest.raises(UsageError, match=r"^train\.sh: line \d+: pp 4, .* 6 does not divide 32 layers"):
            fields(text, devices=8)
    else:
        assert fields(text, devices=8).items() >= expected.items()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("--tensor-model-parallel-size 2", "train.sh: does not state dp, expected the devices of the job"),
        (
            "--tensor-model-parallel-size $TP",
            "--tensor-model-parallel-size is '$TP', expected a whole number",
        ),
        (
            "WORLD_SIZE=8\n--tensor-model-parallel-size 3",
            "8 devices, expected a multiple of pp · tp · cp (3)",
        ),
        (
            "--tensor-model-parallel-size --bf16",
            "--tensor-model-parallel-size is true, expected a whole number",
        ),
        ("--recompute-granularity some", "--recompute-granularity is 'some', expected selective or full"),
        ("--pipeline-model-parallel-layout Ex", "expected chunks of E, t and L"),
        (
            "--pipeline-model-parallel-layout 'E(((t)*999999)*999999)*999999L'",
            "expected chunks of E, t and L",
        ),
    ],
)
def test_refusals(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        fields(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "hello", "\n" * 200_000, "--lr 1", "--seq-length 'unclosed"])
def test_texts_of_no_framework(text: str) -> None:
    with pytest.raises(DataError, match=r"^train\.sh: (holds no setting|not a shell script)"):
        read_layout_text(text, "train.sh")


def test_another_model_is_said() -> None:
    notes = read_layout_text(SCRIPT, "train.sh").request(load_model("gpt3-175b"), {"pp": 4}).notes
    assert "--num-layers says layers 32, model gpt3-175b has 96, which is used" in notes
    assert "--swiglu says activation swiglu, model gpt3-175b has gelu, which is used" in notes


def test_variables_that_stand_for_each_other_end() -> None:
    bomb = "A=$B$B\nB=$A$A\nC=$C\n" + "--seq-length $A " * 50
    assert read_layout_text(bomb, "train.sh").settings["--seq-length"]


@pytest.mark.parametrize(
    ("changes", "flags", "lost"),
    [
        ({}, "--untie-embeddings-and-output-weights --vocab-size 128256", ""),
        ({"biases": "qkv"}, "--disable-bias-linear --add-qkv-bias", ""),
        ({"biases": "mlp"}, "", "biases mlp"),
        ({"parallel_residual": True}, "", "parallel_residual True"),
        ({"layer_pattern": "*-"}, "", "layer_pattern *-"),
        ({"tied_embeddings": True}, "", ""),
        ({"learned_positions": 8192, "rotary": False}, "learned_absolute --max-position-embeddings 8192", ""),
        ({"attention": "unfused"}, "--attention-backend unfused", "attention unfused (its softmax is fused)"),
    ],
)
def test_the_model(changes: dict[str, Any], flags: str, lost: str) -> None:
    layout = Parallelism(pp=1, tp=2, dp=1, micro_batch=1, micro_batches=1)
    job = Job(model=replace(MODEL, **changes), parallelism=layout, gpus_per_node=8, dtype="float16")
    written = write_layout("megatron-lm", job)
    assert flags in " ".join(written.text.replace("\\\n", " ").split())
    assert ("--untie" in written.text) == (not job.model.tied_embeddings)
    assert "; ".join(written.lost) == lost


def test_what_only_torchtitan_recomputes_is_said() -> None:
    layout = Parallelism(
        pp=1, tp=2, dp=1, micro_batch=1, micro_batches=1, recompute="selective", recompute_modules=("per_op",)
    )
    written = write_layout(
        "megatron-lm", Job(model=MODEL, parallelism=layout, gpus_per_node=8, dtype="bfloat16")
    )
    assert "--recompute" not in written.text
    assert written.lost == ("recompute_modules per_op (torchtitan's choice of ops)",)


def test_equal_stages_need_no_layout_of_their_own() -> None:
    key = "--pipeline-model-parallel-layout"
    layout = Parallelism(pp=4, tp=1, dp=1, micro_batch=1, micro_batches=4)
    texts = {
        split: write_layout(
            "megatron-lm",
            Job(
                model=MODEL,
                parallelism=replace(layout, layer_split=split),
                gpus_per_node=8,
                dtype="bfloat16",
            ),
        ).text
        for split in ("even", "paper")
    }
    assert key not in texts["even"]
    assert f"{key} 'Et*8|t*9|t*9|t*6L'" in texts["paper"]


def test_what_runs_beside_computing_is_written() -> None:
    layout = Parallelism(
        pp=1,
        tp=2,
        dp=8,
        micro_batch=1,
        micro_batches=1,
        zero=1,
        shard_group=4,
        gradient_collective="reduce_scatter",
        overlap_gradients=True,
        overlap_parameters=True,
        overlap_bucket=10**8,
        tensor_overlap="products",
        sequence_parallel=True,
        reduce_dtype="float32",
        kept_by="megatron",
    )
    job = Job(model=MODEL, parallelism=layout, gpus_per_node=8, dtype="bfloat16")
    text = write_layout("megatron-lm", job).text
    for flags in (
        "--use-distributed-optimizer",
        "--num-distributed-optimizer-instances 2",
        "--overlap-grad-reduce",
        "--overlap-param-gather",
        "--ddp-bucket-size 100000000",
        "--tp-comm-overlap",
    ):
        assert f"  {flags} \\\n" in text
    found = fields(text)
    assert found.items() >= {name: getattr(layout, name) for name in STACK if name in found}.items()
    assert found["shard_group"] == 4


def test_states_in_the_hosts_memory() -> None:
    script = SCRIPT.rstrip().rstrip("\\")
    assert "offload_optimizer" not in fields(script)
    assert fields(script + " --optimizer-cpu-offload")["offload_optimizer"] == 1
    half = script + " --optimizer-cpu-offload --optimizer-offload-fraction 0.5"
    assert fields(half)["offload_optimizer"] == 0.5


def test_activations_in_the_hosts_memory() -> None:
    script = SCRIPT.rstrip().rstrip("\\")
    assert "offload_activations" not in fields(script)
    some = script + " --fine-grained-activation-offloading --offload-modules moe_act core_attn"
    wanted = {"offload_activations": 1.0, "offload_modules": ("core_attn", "moe_act")}
    assert fields(some).items() >= wanted.items()
    half = fields(some + " --activation-offload-fraction 0.5")
    assert half.items() >= (wanted | {"offload_activations": 0.5}).items()
    layers = fields(script + " --cpu-offloading --cpu-offloading-num-layers 1000")
    assert layers["offload_activations"] == 1
    assert "offload_modules" not in layers


@pytest.mark.parametrize(
    ("more", "flags", "lost"),
    [
        ({"offload_activations": 0.5}, "--cpu-offloading-num-layers", ()),
        ({"offload_activations": 0.33}, "", ("offload_activations 0.33",)),
        ({"offload_activations": 0.5, "pp": 2}, "", ("offload_activations 0.5",)),
        (
            {"offload_activations": 0.5, "offload_modules": ("core_attn",)},
            "--activation-offload-fraction 0.5",
            (),
        ),
        ({}, "", ()),
    ],
)
def test_offloaded_activations_are_written(more: dict[str, Any], flags: str, lost: tuple[str, ...]) -> None:
    layout = Parallelism(**{"pp": 1, "tp": 2, "dp": 1, "micro_batch": 1, "micro_batches": 2, **more})
    written = write_layout(
        "megatron-lm", Job(model=MODEL, parallelism=layout, gpus_per_node=8, dtype="bfloat16")
    )
    assert [one for one in written.lost if "offload" in one] == list(lost)
    assert ("offload" in written.text) is bool(flags)
    assert flags in written.text


def test_layers_recomputed_together() -> None:
    script = SCRIPT.rstrip().rstrip("\\") + " --recompute-granularity full --recompute-num-layers 4"
    assert (
        fields(script + " --recompute-method uniform").items()
        >= {
            "recompute": "full",
            "recompute_together": 4,
            "recompute_layers": 0,
        }.items()
    )
    assert (
        fields(script + " --recompute-method block").items()
        >= {
            "recompute_layers": 4,
            "recompute_together": 1,
        }.items()
    )


def test_ends_that_count_as_layers() -> None:
    ends = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    text = (
        f"--num-layers 14 --pipeline-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 8 {ends}"
    )
    fields, _, _ = read_layout_text(text, "x").request(load_model("llama-2-7b"), {"layers": 14}, 4)
    assert fields["layer_counts"] == (3, 4, 4, 3)
