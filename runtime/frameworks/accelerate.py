"""Scripts that start Hugging Face's Trainer by accelerate, deepspeed or torchrun, with the files that they name.

Keys of an accelerate YAML or a DeepSpeed JSON are read as the flags that they stand for; flags of the script go first.
"""

import re
from collections.abc import Mapping
from typing import Any

from kernelcast.runtime.errors import UsageError, shown
from kernelcast.runtime.frameworks.nested import parse_flat, parse_json
from kernelcast.runtime.frameworks.rows import (
    Facts,
    Found,
    Framework,
    Row,
    Settings,
    target_modules,
)
from kernelcast.runtime.frameworks.shell import WORLD_SIZE, parse_shell, render_shell
from kernelcast.runtime.request.field_types import FLAG, whole
from kernelcast.runtime.request.fields import LAYOUT, SEARCH

MODEL_NAME = "--model-name-or-path"
FILES = ("--config-file", "--deepspeed", "--deepspeed-config")
"""Flags that name a file with further settings."""
_IS_SCRIPT = re.compile(
    r"--per[-_]device[-_]train[-_]batch[-_]size|\baccelerate[ \t]+launch\b|^[^#\n]*\bdeepspeed[ \t]", re.M
)
_DPO = "a script of DPO"
"""The settings' name for a script or a command of DPO: TRL's, or LLaMA-Factory's stage."""
_IS_DPO = re.compile(r"^[^#\n]*(?:\bdpo[\w-]*\.py\b|\btrl[ \t]+dpo\b|--stage[ =]dpo\b)", re.M)
_DEGREE = SEARCH["gpus"].kind
# Keys of DeepSpeed's JSON by flag; "auto" is left to the Trainer.
_OF_DEEPSPEED = {
    "--zero-stage": "zero_optimization.stage",
    "--per-device-train-batch-size": "train_micro_batch_size_per_gpu",
    "--gradient-accumulation-steps": "gradient_accumulation_steps",
    "--offload-optimizer-device": "zero_optimization.offload_optimizer.device",
}


class Processes(Row):
    """Devices of the job: accelerate's processes in all, deepspeed's and torchrun's per node, else Slurm's."""

    keys = (
        "--num-processes",
        "--num-machines",
        "--num-gpus",
        "--num-nodes",
        "--nproc-per-node",
        "--nnodes",
        WORLD_SIZE,
    )
    fields = ("devices", "gpus_per_node")

    def read(self, settings: Settings, facts: Facts) -> Found:
        """Nothing where they are no numbers, such as an unknown variable."""
        total, machines, gpus, nodes, processes, groups, world = (
            found if isinstance(found := _DEGREE.read(settings.get(key)), int) else None for key in self.keys
        )
        # Nodes that are given but are no number are not one node.
        usual = None if {"--num-machines", "--num-nodes", "--nnodes"} & settings.keys() else 1
        per_node, count = gpus or processes, nodes or groups or machines or usual
        if per_node is not None and count is not None:
            return Found({"devices": per_node * count, "gpus_per_node": per_node})
        devices = total or world
        if devices is None:
            return Found({})
        return Found({"devices": devices} | ({"gpus_per_node": devices // machines} if machines else {}))


class Sharding(Row):
    """ZeRO's stage by DeepSpeed or FSDP; none is data parallelism with whole replicas."""

    stage, fsdp, strategy = "--zero-stage", "--fsdp", "--fsdp-sharding-strategy"
    reshard, version, used = "--fsdp-reshard-after-forward", "--fsdp-version", "--use-fsdp"
    keys = (stage, strategy, fsdp, reshard, version, used)
    fields = ("zero",)
    strategies: Mapping[str, int] = {
        "full_shard": 3, "1": 3, "shard_grad_op": 2, "2": 2, "no_shard": 0, "3": 0, "hybrid_shard": 3, "4": 3,
    }  # fmt: skip

    def read(self, settings: Settings, facts: Facts) -> Found:
        """DeepSpeed's stage goes first; FSDP 2 shards parameters unless it keeps them gathered."""
        if self.stage in settings:
            return Found({"zero": whole(0, 3).parse(self.stage, settings[self.stage])})
        key = next((one for one in (self.strategy, self.fsdp) if one in settings), None)
        if key is not None and settings[key] is not True:
            words = str(settings[key]).lower().split()
            found = next((self.strategies[word] for word in words if word in self.strategies), None)
            if found is None:
                raise UsageError(
                    f"{key} is {shown(settings[key])}, expected full_shard, shard_grad_op or no_shard"
                )
            return Found({"zero": found})
        if not any(one in settings for one in (key, self.reshard, self.version, self.used)):
            return Found({"zero": 0})
        whole_between = FLAG.parse(self.reshard, settings.get(self.reshard, True))
        return Found({"zero": 3 if whole_between else 2})


class Adapters(Row):
    """LoRA by TRL's flags, or LLaMA-Factory's (`--finetuning-type`, `--lora-rank`, `--lora-target`)."""

    rank, used, kind = ("--lora-r", "--lora-rank"), "--use-peft", "--finetuning-type"
    modules = ("--lora-target-modules", "--lora-target")
    keys = (*rank, used, kind, *modules)
    fields = ("lora_rank", "lora_linears")

    def keys_of(self, name: str) -> tuple[str, ...]:
        """Target modules, or rank and use."""
        return self.modules if name == "lora_linears" else (*self.rank, self.used, self.kind)

    def read(self, settings: Settings, facts: Facts) -> Found:
        """A rank, 0 without adapters; without target modules the defaults of PEFT and LLaMA-Factory."""
        of_factory = self.kind in settings or self.rank[1] in settings
        tuned = settings.get(self.kind, "lora")
        is_used = tuned == "lora" if of_factory else FLAG.parse(self.used, settings.get(self.used, False))
        if not is_used:
            notes: tuple[str, ...] = (
                () if tuned in ("lora", "full") else (f"{self.kind} {tuned} is read as full",)
            )
            if self.rank[0] in settings and not (of_factory or self.used in settings or "lora_rank" in facts):
                notes = (f"{self.rank[0]} is given without {self.used}: all weights are trained",)
            return Found({"lora_rank": 0}, notes)
        key = self.rank[of_factory]
        found = {
            "lora_rank": LAYOUT["lora_rank"].kind.parse(key, settings.get(key, _USUAL_RANKS[of_factory]))
        }
        if not found["lora_rank"] or "lora_linears" in facts:
            return Found(found)
        flag = next((one for one in self.modules if one in settings), self.modules[of_factory])
        usual = "attention,mlp" if of_factory else "q_proj,v_proj"
        found["lora_linears"], notes = target_modules(flag, settings.get(flag), usual)
        return Found(found, notes)


_USUAL_RANKS = (16, 8)
"""TRL's and LLaMA-Factory's."""


def _parse(text: str) -> Settings:
    """Flags, with the two words of Python that argparse is given."""
    found = {
        key: _WORDS.get(value, value) if isinstance(value, str) else value
        for key, value in parse_shell(text, lists=Adapters.modules).items()
    }
    return found | ({_DPO: True} if _IS_DPO.search(text) else {})


_WORDS = {"True": True, "False": False, "true": True, "false": False}


def flags_of_file(text: str) -> dict[str, Any]:
    """The settings of an accelerate YAML or a DeepSpeed JSON as flags; DataError for broken JSON."""
    if text.lstrip().startswith("{"):
        values = parse_json(text)
        found = {flag: values[key] for flag, key in _OF_DEEPSPEED.items() if key in values}
        return {flag: value for flag, value in found.items() if value != "auto"}
    named = {name.rpartition(".")[2]: value for name, value in parse_flat(text, ()).items()}
    return {"--" + name.replace("_", "-"): value for name, value in named.items()}


ACCELERATE = Framework(
    title="Hugging Face's Trainer",
    table="accelerate.toml",
    own=(Processes(), Sharding(), Adapters()),
    parse=_parse,
    render=render_shell,
    is_form_of=lambda text: not text.lstrip().startswith("{") and _IS_SCRIPT.search(text) is not None,
    steps="--max-steps",
)
