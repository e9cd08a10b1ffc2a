"""NeMo and LLM Foundry: their YAML, overrides and recipes (docs/frameworks.md)."""

import re

from kernelcast.runtime.frameworks.cut import even_cut
from kernelcast.runtime.frameworks.megatron import Chunks, Launch
from kernelcast.runtime.frameworks.nested import parse_flat, render_yaml
from kernelcast.runtime.frameworks.rows import (
    Facts,
    Found,
    Framework,
    NoPadding,
    Part,
    RecomputedPartly,
    Row,
    Settings,
)
from kernelcast.runtime.request.fields import LAYOUT


class VirtualStages(Chunks):
    """Chunks of a stage, or a layout."""

    key, layout = "model.virtual_pipeline_model_parallel_size", "model.pipeline_model_parallel_layout"
    keys = (key, layout)

    def of_chunks(self, facts: Facts) -> Settings:
        """Their number."""
        return {self.key: facts["virtual_stages"]}

    def read(self, settings: Settings, facts: Facts) -> Found:
        """The chunks of a layout, else chunks of the same size."""
        pp, layers = facts["pp"], facts["layers"]
        if self.layout in settings:
            return self.read_layout(settings, pp)
        chunks = LAYOUT["virtual_stages"].kind.parse(self.key, settings.get(self.key, 1))
        counts = even_cut(layers, pp, chunks)
        return self.found(chunks, counts, f"pp {pp}, {self.key} {chunks} does not divide {layers} layers")


class Granularity(Row):
    """What is recomputed: attention's core, or the first layers of every chunk."""

    granularity = "model.activations_checkpoint_granularity"
    method = "model.activations_checkpoint_method"
    layers = "model.activations_checkpoint_num_layers"
    later = ("model.recompute_granularity", "model.recompute_method", "model.recompute_num_layers")
    keys = (granularity, method, layers, *later)
    fields = ("recompute", "recompute_layers", "recompute_together", "recompute_modules")

    def write(self, facts: Facts) -> Part:
        """By block where only some layers are recomputed, else uniformly."""
        kind, modules = facts["recompute"], facts["recompute_modules"]
        if kind == "none":
            return Part()
        if kind == "selective":
            usual = modules == LAYOUT["recompute_modules"].default
            lost = () if usual else (f"recompute_modules {','.join(modules)}",)
            return Part({self.granularity: "selective"}, lost)
        some = facts["recompute_layers"]
        method, layers = ("block", some) if some else ("uniform", facts["recompute_together"])
        return Part({self.granularity: "full", self.method: method, self.layers: layers})

    def read(self, settings: Settings, facts: Facts) -> Found:
        """Names of NeMo 2.0 and of Megatron-Bridge are read too."""
        kind, method, layers = (
            settings.get(one, settings.get(other))
            for one, other in zip((self.granularity, self.method, self.layers), self.later, strict=True)
        )
        kind = LAYOUT["recompute"].kind.parse(self.granularity, kind or "none")
        if kind != "full":
            return Found({"recompute": kind})
        count = LAYOUT["recompute_layers"].kind.parse(self.layers, layers or 1)
        return Found(
            {"recompute": kind, "recompute_layers" if method == "block" else "recompute_together": count}
        )


class Adapters(Row):
    """LoRA as `peft` states it. Which linears have adapters is a list there, which is not read: NeMo's default."""

    scheme, rank, dropout = (f"model.peft.{name}" for name in
                             ("peft_scheme", "lora_tuning.adapter_dim", "lora_tuning.adapter_dropout"))  # fmt: skip
    keys = (scheme, rank, dropout)
    fields = ("lora_rank", "lora_dropout", "lora_linears")

    def write(self, facts: Facts) -> Part:
        """All three with adapters, else none."""
        rank, linears = facts["lora_rank"], facts["lora_linears"]
        if not rank:
            return Part()
        lost = (
            () if linears == ("attention",) else (f"lora_linears {','.join(linears)} (target_modules there)",)
        )
        return Part(dict(zip(self.keys, ("lora", rank, facts["lora_dropout"]), strict=True)), lost)

    def read(self, settings: Settings, facts: Facts) -> Found:
        """No adapters, or LoRA; a note names any other scheme."""
        scheme = settings.get(self.scheme, "none")
        if scheme != "lora":
            return Found(
                {"lora_rank": 0}, () if scheme == "none" else (f"{self.scheme} {scheme} is not read",)
            )
        values = (settings.get(self.rank, 32), settings.get(self.dropout, 0.0))
        read = [LAYOUT[name].kind.parse(key, value)
                for name, key, value in zip(self.fields, self.keys[1:], values, strict=False)]  # fmt: skip
        note = "adapters are taken at attention's linears (target_modules is not read)"
        return Found(dict(zip(self.fields, (*read, ("attention",)), strict=True)), (note,))


class Aligned(Row):
    """What NeMo-Aligner trains: preference pairs where its DPO has a penalty. IPO and RPO run the same passes."""

    penalty = "model.dpo.ref_policy_kl_penalty"
    keys = (penalty,)
    fields = ("objective",)

    def write(self, facts: Facts) -> Part:
        """NeMo-Aligner's penalty, with DPO; it always runs the reference model."""
        objective = facts["objective"]
        lost = ("objective dpo_precomputed (dpo is used)",) if objective == "dpo_precomputed" else ()
        return Part({} if objective == "next_token" else {self.penalty: 0.2}, lost)

    def read(self, settings: Settings, facts: Facts) -> Found:
        """The objective."""
        return Found({"objective": "dpo" if self.penalty in settings else "next_token"})


def _framework(title: str, table: str, own: tuple[Row, ...], form: str, steps: str) -> Framework:
    found = re.compile(form)
    framework = Framework(
        title=title,
        table=table,
        own=own,
        parse=lambda text: parse_flat(_OLDER.sub("seq_length", text), framework.keys),
        render=render_yaml,
        is_form_of=lambda text: found.search(text) is not None,
        steps=steps,
    )
    return framework


_OLDER = re.compile(r"\bencoder_seq_length\b")
_SETTING = r"(?<![\w$-])(?:\w+\.)*(?:{names})[\"']?[ \t]*[:=]".format
NEMO = _framework(
    "NeMo",
    "nemo.toml",
    (Launch(("trainer.num_nodes", "trainer.devices")), VirtualStages(), Granularity(), Adapters(), Aligned()),
    _SETTING(names="(?:tensor|pipeline)_model_parallel_size|ref_policy_kl_penalty|peft_scheme"),
    "trainer.max_steps",
)
LLM_FOUNDRY = _framework(
    "LLM Foundry",
    "llm_foundry.toml",
    (Launch(is_written=False), NoPadding(), RecomputedPartly()),
    _SETTING(names="global_train_batch_size|device_train_microbatch_size"),
    "max_steps",
)
