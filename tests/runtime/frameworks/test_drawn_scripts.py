"""What drawn scripts and options of Slurm say of a layout: `drawn_scripts.txt`, which WRITE_DRAWN_SCRIPTS=1 writes."""

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

from kernelcast.runtime import KernelcastError, load_model
from kernelcast.runtime.frameworks.layout_files import read_layout_text
from kernelcast.runtime.frameworks.slurm import (
    OPTIONS,
    sbatch_options,
    script_variables,
    slurm_allocation,
    slurm_environment,
)
from kernelcast.runtime.request.fields import LAYOUT

TEXT = Path(__file__).with_name("drawn_scripts.txt")
MODEL = load_model("llama-3-8b")
USUAL = {name: field.default for name, field in LAYOUT.items()}
LAUNCHERS = (
    "accelerate launch",
    "torchrun",
    "deepspeed",
    "srun torchrun",
    "python -m torch.distributed.run",
    "python",
)
PROGRAMS = ("train.py", "dpo.py", "trl/scripts/sft.py", "src/train.py --stage dpo", "run_clm.py")
FLAGS: dict[str, list[str]] = {
    "num_processes": ["8", "x", "0"], "num_machines": ["1", "2", "$N"], "num_gpus": ["4"], "num_nodes": ["2"],
    "nproc_per_node": ["4", "$SLURM_GPUS_ON_NODE", "gpu"], "nnodes": ["2", "${SLURM_NNODES:-3}", "1:4"],
    "config_file": ["fsdp.yaml", "ds.yaml"], "deepspeed": ["ds.json", "broken.json"], "zero_stage": ["2", "3", "5"],
    "fsdp": ["full_shard auto_wrap", "shard_grad_op", "all", ""], "fsdp_version": ["2"],
    "fsdp_sharding_strategy": ["1", "HYBRID_SHARD", "no_shard"], "use_fsdp": [""],
    "fsdp_reshard_after_forward": ["false", "true", "7"],
    "per_device_train_batch_size": ["2", "0", "1"], "gradient_accumulation_steps": ["4", "auto"],
    "gradient_checkpointing": ["True", "False", ""], "use_peft": ["", "False", "maybe"], "lora_r": ["8", "0", "-1"],
    "lora_rank": ["16"], "finetuning_type": ["lora", "full", "freeze"], "lora_target": ["all", "q_proj,v_proj", "x"],
    "lora_target_modules": ["q_proj k_proj", "all-linear"], "load_in_4bit": [""], "bf16": ["", "True"],
    "max_steps": ["100", "-1"],
    "precompute_ref_log_probs": ["", "true"], "model_name_or_path": ["meta-llama/Llama-3.1-8B", "nothing"],
    "max_seq_length": ["2048"], "optim": ["adamw_torch", "adafactor", "paged_adamw_8bit"], "learning_rate": ["1e-5"],
    "num_train_epochs": ["3"], "offload_optimizer_device": ["cpu"], "torch_compile": ["True"], "liger_kernel": [""],
}  # fmt: skip
FSDP = """distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_activation_checkpointing: true
num_machines: 2
num_processes: 16
"""
DEEPSPEED = """distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 2
  gradient_accumulation_steps: 8
num_processes: 4
"""
OFFLOADED = '{"stage": 3, "offload_optimizer": {"device": "cpu"}}'
ZERO = f'{{"zero_optimization": {OFFLOADED}, "gradient_accumulation_steps": "auto"}}'
FILES = {"fsdp.yaml": FSDP, "ds.yaml": DEEPSPEED, "ds.json": ZERO, "broken.json": '{"zero_optimization": '}
SLURM: dict[str, list[str]] = {
    "nodes": ["4", "2-4", "3-3", "1-0", "0", "x"], "gpus": ["8", "a100:4", "a100:2,v100:2", "x"], "ntasks": ["1", "16"],
    "gpus-per-node": ["8", "a100", "h100:4", "-1"], "gres": ["gpu:4", "gres:gpu:a100:2,lustre:1", "lustre:1", "gpu"],
    "gpus-per-task": ["1", "2"], "ntasks-per-node": ["8", "1"], "job-name": ["nodes-gpus"], "time": ["1-00:00"],
}  # fmt: skip
SHORT = {"nodes": "-N", "ntasks": "-n", "gpus": "-G"}


def head(random: Random) -> list[str]:
    lines = []
    for name in random.sample(sorted(SLURM), random.randint(0, 4)):
        value = random.choice(SLURM[name])
        forms = [f"--{name}={value}", f"--{name} {value}"]
        if name in SHORT:
            forms += [f"{SHORT[name]} {value}", f"{SHORT[name]}{value}"]
        lines.append(f"#SBATCH {random.choice(forms)}" + random.choice(["", "  # all of them"]))
    return ["#!/bin/bash", *lines]


def of_scripts() -> Iterator[str]:
    random = Random(41)
    for place in range(130):
        names = random.sample(sorted(FLAGS), random.randint(2, 8))
        names += ["per_device_train_batch_size"] if place % 8 else []  # what makes it one of the Trainer's
        words = []
        for name in names:
            flag, between = name.replace("_", random.choice("_-")), random.choice(" =")
            words.append(f"--{flag}{between}{random.choice(FLAGS[name])}".rstrip(" ="))
        launch = f"{random.choice(LAUNCHERS)} {random.choice(PROGRAMS)} {' '.join(words)}"
        text = (
            "\n".join([*head(random), *random.choice([[], ["N=2"], ["WORLD_SIZE=16", "export N=4"]]), launch])
            + "\n"
        )
        yield f"*** {place} {text.splitlines()[1:]}"
        try:
            file = read_layout_text(text, "job.sh", FILES.__getitem__)
        except (KernelcastError, KeyError) as error:
            yield f"  {type(error).__name__}: {error}"
            continue
        yield f"  {file.framework.title} {file.name} {file.model_name} {file.unread}"
        for read in (file.trained, file.sequence_length):
            try:
                yield f"  {read.__name__} {read()}"
            except KernelcastError as error:
                yield f"  {read.__name__} {error}"
        for given in ({}, {"dp": 4, "micro_batch": 1}):
            try:
                found = file.request(MODEL, given, 16 if place % 2 else None)
                said = {name: value for name, value in found.fields.items() if value != USUAL.get(name)}
                yield f"  {said} {found.notes} {[(one.field, one.line) for one in found.sources]}"
            except KernelcastError as error:
                yield f"  {error}"


def of_slurm() -> Iterator[str]:
    random = Random(42)
    for _ in range(110):
        lines = head(random)
        options = {name: value for line in lines[1:] for name, value in sbatch_options(line).items()}
        yield f"{lines[1:]}: {options} {slurm_allocation(options)} {script_variables(chr(10).join(lines))}"
    names = [
        f"SLURM_{one}"
        for one in (
            "NNODES",
            "JOB_NUM_NODES",
            "NTASKS",
            "GPUS",
            "GPUS_PER_NODE",
            "GPUS_ON_NODE",
            "GPUS_PER_TASK",
        )
    ]
    for _ in range(30):
        environment = {name: random.choice(["2", "4", ""]) for name in random.sample(names, 4)}
        environment |= {"SLURM_JOB_ID": "7"} if random.random() < 0.9 else {}
        found = slurm_environment(environment)
        yield f"{environment}: {found} {slurm_allocation(found)}"
    yield str(OPTIONS)


def test_drawn_scripts() -> None:
    printed = "\n".join((*of_scripts(), *of_slurm())) + "\n"
    if "WRITE_DRAWN_SCRIPTS" in os.environ:
        TEXT.write_text(printed, encoding="utf-8")
    assert printed == TEXT.read_text(encoding="utf-8")
