"""Batch scripts as they are: what their `#SBATCH` lines and variables say of a layout."""

import pytest

from kernelcast.runtime import UsageError, load_model
from kernelcast.runtime.frameworks.layout_files import read_layout_text
from kernelcast.runtime.frameworks.slurm import script_variables

MODEL = load_model("llama-3-8b")
HEAD = (
    "#!/bin/bash\n#SBATCH --nodes=4 --gres=gpu:a100:8  # all of them\n#SBATCH --ntasks-per-node=1\n\nTP=2\n"
)
FLAGS = "--tensor-model-parallel-size $TP --pipeline-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 128"


def degrees(text: str) -> tuple[int, int, int]:
    fields = read_layout_text(text, "train.sbatch").request(MODEL, {}).fields
    return fields["pp"], fields["tp"], fields["dp"]


@pytest.mark.parametrize(
    "launch",
    [
        "srun torchrun --nnodes $SLURM_NNODES --nproc-per-node $SLURM_GPUS_ON_NODE pretrain_gpt.py",
        "NODES=${SLURM_JOB_NUM_NODES:-1}\nsrun torchrun --nnodes $NODES --nproc-per-node 8 pretrain_gpt.py",
        "WORLD_SIZE=$((SLURM_NNODES * SLURM_GPUS_PER_NODE))\nsrun python pretrain_gpt.py",
        "srun python pretrain_gpt.py",
    ],
)
def test_devices_from_the_lines_of_slurm(launch: str) -> None:
    assert degrees(f"{HEAD}{launch} {FLAGS}\n") == (4, 2, 4)


def test_the_line_of_slurm_that_has_the_nodes() -> None:
    text = (
        HEAD.replace("#SBATCH", "#SBATCH --job-name=nodes-gpus\n#SBATCH", 1)
        + f"srun python pretrain_gpt.py {FLAGS}\n"
    )
    _, _, sources = read_layout_text(text, "x").request(MODEL, {})
    [line] = {one.line for one in sources if one.field == "dp"}
    assert text.splitlines()[line - 1] == HEAD.splitlines()[1]


def test_what_a_script_assigns_wins_over_its_head() -> None:
    assert degrees(f"{HEAD}WORLD_SIZE=16\nsrun python pretrain_gpt.py {FLAGS}\n") == (4, 2, 2)


def test_lines_after_the_first_command_are_not_of_slurm() -> None:
    late = "#!/bin/bash\nTP=2\n#SBATCH --nodes=4 --gres=gpu:8\n"
    assert script_variables(late) == {}
    with pytest.raises(UsageError, match="does not state dp"):
        degrees(f"{late}srun python pretrain_gpt.py {FLAGS}\n")


def test_variables() -> None:
    assert script_variables(HEAD) == {
        "SLURM_NNODES": "4",
        "SLURM_JOB_NUM_NODES": "4",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURM_GPUS_PER_NODE": "8",
        "SLURM_NTASKS_PER_NODE": "1",
        "WORLD_SIZE": "32",
    }
    # Slurm decides how many nodes of a range a job gets.
    assert "WORLD_SIZE" not in script_variables("#SBATCH -N 2-4\n#SBATCH --gpus-per-node 8\n")


def test_flags_in_a_quoted_variable_are_read_and_every_field_has_its_line() -> None:
    text = (
        f"{HEAD}# --tensor-model-parallel-size 8 was tried\n"
        'ARGS="--tensor-model-parallel-size $TP\n    --pipeline-model-parallel-size 4 --bf16"\n'
        "srun python pretrain_gpt.py $ARGS --micro-batch-size 1 \\\n  --global-batch-size 128 --lr 1e-4\n"
    )
    file = read_layout_text(text, "train.sbatch")
    assert file.unread == ("--lr (line 10)",)
    fields, _, sources = file.request(MODEL, {})
    lines = {one.field: one.line for one in sources}
    expected = {"tp": 7, "pp": 8, "reduce_dtype": 8, "micro_batch": 9, "global_batch": 10, "dp": 2}
    assert lines.items() >= expected.items()
    assert (fields["tp"], fields["pp"], fields["dp"]) == (2, 4, 4)
    with pytest.raises(
        UsageError, match=r"^train.sbatch: line 9: --micro-batch-size is '\$MBS', expected a whole"
    ):
        read_layout_text(text.replace("size 1 ", "size $MBS "), "train.sbatch").request(MODEL, {})


TITAN = (
    "srun torchrun --nnodes 2 --nproc_per_node 8 -m torchtitan.train --job.config_file llama3_8b.toml "
    "--parallelism.tensor_parallel_degree 2 --training.local_batch_size 4 --training.seq_len=4096 "
    "--activation_checkpoint.mode full --parallelism.enable_async_tensor_parallel"
)


def test_overrides_of_torchtitan() -> None:
    file = read_layout_text(f"#!/bin/bash\n{TITAN}\n", "train.sbatch")
    assert file.name == "torchtitan"
    assert file.unread == ("--job.config-file (line 2)",)
    assert file.sequence_length() == 4096
    fields = file.request(MODEL, {}).fields
    expected = {
        "tp": 2,
        "dp": 8,
        "zero": 3,
        "micro_batch": 4,
        "recompute": "full",
        "tensor_overlap": "products",
    }
    assert fields.items() >= expected.items()


NEMO = """
trainer: {num_nodes: 4, devices: 8, max_steps: 100}
model:
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2  # of two nodes
  virtual_pipeline_model_parallel_size: null
  micro_batch_size: 1
  global_batch_size: ${batch}
  encoder_seq_length: 4096
  activations_checkpoint_granularity: full
  activations_checkpoint_method: block
  activations_checkpoint_num_layers: 3
batch: 128
"""


@pytest.mark.parametrize(
    "text",
    [
        NEMO,
        "#!/bin/bash\n#SBATCH --nodes=4 --gpus-per-node=8\n\nsrun python megatron_gpt_pretraining.py "
        + " ".join(
            f"++model.{line.strip().split('  #')[0].replace(': ', '=')}" for line in NEMO.splitlines()[3:-1]
        ).replace("${batch}", "128"),
    ],
    ids=["yaml", "overrides"],
)
def test_settings_of_nemo(text: str) -> None:
    file = read_layout_text(text, "gpt.yaml")
    fields, notes, _ = file.request(MODEL, {})
    assert (file.name, notes) == ("nemo", ())
    expected = {"tp": 4, "pp": 2, "dp": 4, "micro_batch": 1, "global_batch": 128, "sequence_length": 4096}
    assert fields.items() >= {**expected, "recompute": "full", "recompute_layers": 3, "zero": 1}.items()


def test_a_wrong_sequence_length_has_its_line() -> None:
    file = read_layout_text(
        f"{HEAD}srun python pretrain_gpt.py {FLAGS} \\\n --seq-length 8k\n", "train.sbatch"
    )
    with pytest.raises(
        UsageError, match=r"^train.sbatch: line 7: --seq-length is '8k', expected a whole number"
    ):
        file.sequence_length()
    file = read_layout_text(f"srun python pretrain_gpt.py {FLAGS} \\\n --train-samples 1e\n", "train.sbatch")
    with pytest.raises(UsageError, match=r"^train.sbatch: line 2: --train-samples is '1e', expected"):
        file.trained()


@pytest.mark.parametrize(
    ("launch", "dp"),
    [
        ("torchrun --nproc-per-node 8 pretrain_gpt.py --micro-batch-size 1", 8),
        ("WORLD_SIZE=16\ntorchrun --nproc-per-node 8 pretrain_gpt.py --micro-batch-size 1", 16),
        (
            "N=2\ntorchrun --nnodes=$N \\\n --nproc_per_node 8 x.py "
            "a.tensor_model_parallel_size=1 a.micro_batch_size=1",
            16,
        ),
        ("torchrun --nnodes 2 --nproc-per-node 8 train.py x.yaml device_train_microbatch_size=1", 16),
    ],
)
def test_devices_of_torchrun(launch: str, dp: int) -> None:
    assert read_layout_text(launch, "x").request(MODEL, {})[0]["dp"] == dp


@pytest.mark.parametrize("nodes", ["$SLURM_NNODES", '"$NODES"', "1:4"])
@pytest.mark.parametrize(
    "program",
    [
        "pretrain_gpt.py --micro-batch-size 1",
        "x.py a.tensor_model_parallel_size=1 a.micro_batch_size=1",
        "train.py x.yaml device_train_microbatch_size=1",
        "train.py --per_device_train_batch_size 1",
    ],
)
def test_nodes_that_are_no_number_are_not_one_node(program: str, nodes: str) -> None:
    file = read_layout_text(f"torchrun --nnodes={nodes} --nproc-per-node=8 {program}", "x")
    with pytest.raises(
        UsageError, match="does not state dp, expected the devices of the job: give --gpus or --dp"
    ):
        file.request(MODEL, {})


def test_an_uneven_cut_of_nemo_is_refused() -> None:
    with pytest.raises(UsageError, match=r"pp 3, .*_parallel_size 1 does not divide 32 layers"):
        read_layout_text("a.pipeline_model_parallel_size=3 a.micro_batch_size=1", "x").request(MODEL, {}, 3)


FOUNDRY = """
max_seq_len: 4096
model: {name: mpt_causal_lm, loss_fn: torch_crossentropy, max_seq_len: ${max_seq_len}}
global_train_batch_size: 256
device_train_microbatch_size: 4
fsdp_config:
  sharding_strategy: HYBRID_SHARD
  activation_checkpointing: true
"""


def test_settings_of_llm_foundry() -> None:
    file = read_layout_text(FOUNDRY, "mpt.yaml")
    fields, notes, _ = file.request(MODEL, {}, 16)
    assert file.name == "llm-foundry"
    assert notes == ("HYBRID_SHARD is read as FULL_SHARD: --shard-group gives its groups",)
    expected = {
        "dp": 16,
        "zero": 3,
        "recompute": "full",
        "loss": "plain",
        "micro_batch": 4,
        "global_batch": 256,
    }
    assert fields.items() >= {**expected, "sequence_length": 4096, "reduce_dtype": "float32"}.items()


TRAINER = "train.py --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_seq_length 2048"
NAMED = {
    "ds.json": '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}',
    "fsdp.yaml": "num_machines: 2\nnum_processes: 16\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
    "  fsdp_activation_checkpointing: true\n",
}


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        (f"accelerate launch --config_file fsdp.yaml {TRAINER}", {"zero": 3, "dp": 16, "recompute": "full"}),
        (f"deepspeed --num_gpus 8 --num_nodes 2 {TRAINER} --deepspeed ds.json", {"zero": 2, "dp": 16}),
        (f"deepspeed --num_gpus 8 {TRAINER} --deepspeed --deepspeed_config ds.json", {"zero": 2, "dp": 8}),
        (
            f"torchrun --nproc-per-node 8 {TRAINER} --fsdp 'full_shard auto_wrap' --use_peft --lora_r 16",
            {"dp": 8, "lora_rank": 16},
        ),
        (
            f"accelerate launch --num_processes 4 {TRAINER} --use_peft --lora_r 8 --load_in_4bit "
            "--bnb_4bit_use_double_quant",
            {"lora_rank": 8, "frozen_weights": "nf4_double"},
        ),
        (
            f"accelerate launch --num_processes 4 {TRAINER} --gradient_checkpointing True",
            {"zero": 0, "recompute": "full", "objective": "next_token"},
        ),
        (
            f"accelerate launch --num_processes 4 {TRAINER.replace('train.py', 'dpo.py')}",
            {"objective": "dpo"},
        ),
        (
            f"accelerate launch --num_processes 4 trl/scripts/dpo_vlm.py {TRAINER} --precompute_ref_log_probs",
            {"objective": "dpo_precomputed"},
        ),
        (f"torchrun --nproc-per-node 8 {TRAINER} --stage dpo", {"objective": "dpo"}),
        (f"trl dpo --num_processes 4 {TRAINER}  # not precomputed", {"objective": "dpo"}),
        (
            f"# sft, not dpo.py\naccelerate launch --num_processes 4 {TRAINER} --precompute_ref_log_probs true",
            {"objective": "next_token"},
        ),
        (
            f"trl dpo --num_processes 4 {TRAINER} --precompute_ref_log_probs False --lora_r 4 --load_in_4bit false",
            {"objective": "dpo", "frozen_weights": "same"},
        ),
        (
            f"accelerate launch --use_fsdp --fsdp_reshard_after_forward false --num_processes 4 {TRAINER}",
            {"zero": 2},
        ),
    ],
)
def test_scripts_of_the_trainer(launch: str, expected: dict[str, int | str]) -> None:
    file = read_layout_text(launch, "train.sh", NAMED.__getitem__)
    fields = file.request(MODEL, {}).fields
    common = {"micro_batch": 2, "micro_batches": 4, "sequence_length": 2048}
    assert fields.items() >= {**common, **expected}.items()


def test_a_sharding_that_is_none_is_refused_with_its_line() -> None:
    file = read_layout_text(f"\naccelerate launch --num_processes 4 {TRAINER} --fsdp all", "train.sh")
    with pytest.raises(
        UsageError, match=r"train\.sh: line 2: --fsdp is 'all', expected full_shard, shard_grad_op"
    ):
        file.request(MODEL, {})


@pytest.mark.parametrize(
    ("more", "is_on"),
    [
        ("--training.compile", True),
        ("--compile.enable=true", True),
        ("--training.compile=False", False),
        ("", False),
    ],
)
def test_torchtitan_without_compilation_has_separate_kernels(more: str, is_on: bool) -> None:
    fields, notes, _ = read_layout_text(f"{TITAN} {more}", "train.sh").request(MODEL, {})
    assert fields["eager"] == ("none" if is_on else "all_but_norms")
    assert [note.partition(";")[0] for note in notes] == ([] if is_on else ["torch.compile is off"])
    fields, notes, _ = read_layout_text(f"{TITAN} {more}", "train.sh").request(MODEL, {"eager": "all"})
    assert (fields["eager"], notes) == ("all", ())
