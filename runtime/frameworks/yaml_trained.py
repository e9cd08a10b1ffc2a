"""NeMo and LLM Foundry: their YAML, overrides and recipes (docs/frameworks.md)."""

import re
from collections.abc import Mapping

from kernelcast.runtime.frameworks.cut import even_cut
from kernelcast.runtime.frameworks.megatron import Chunks, Launch
from kernelcast.runtime.frameworks.megatron_kinds import Recompute
from kernelcast.runtime.frameworks.nested import parse_flat, render_yaml
from kernelcast.runtime.frameworks.rows import (
    Facts,
    Found,
    Framework,
    Part,
    Row,
    Settings,
    target_modules,
)
from kernelcast.runtime.frameworks.shell import launcher_flags
from kernelcast.runtime.request.fields import LAYOUT


class VirtualStages(Chunks):
    """Chunks of a stage, or a layout."""

    key, layout = "model.virtual_pipeline_model_parallel_size", "model.pipeline_model_parallel_layout"
    keys = (key, layout)

    def of_chunks(self, facts: Facts) -> Settings:
        return {self.key: facts["virtual_stages"]}

    def read(self, settings: Settings, facts: Facts) -> Found:
        pp, layers = facts["pp"], facts["layers"]
        if self.layout in settings:
            return self.read_layout(settings, pp)
        chunks = LAYOUT["virtual_stages"].kind.parse(self.key, settings.get(self.key, 1))
        counts = even_cut(layers, pp, chunks)
        return self.found(chunks, counts, f"pp {pp}, {self.key} {chunks} does not divide {layers} layers")


class Granularity(Recompute):
    """NeMo's names of it; those `later` ones of NeMo 2.0 and Megatron-Bridge are read too. It has none for modules."""

    granularity, method, layers = own = tuple(
        f"model.activations_checkpoint_{name}" for name in ("granularity", "method", "num_layers")
    )
    later = ("model.recompute_granularity", "model.recompute_method", "model.recompute_num_layers")
    activations = modules = ""
    keys = (*own, *later)

    def read(self, settings: Settings, facts: Facts) -> Found:
        known = {
            own: settings[name] for own, name in zip(self.own, self.later, strict=True) if name in settings
        }
        return super().read({**known, **settings}, facts)


class Adapters(Row):
    """LoRA as `peft` states it; `adapters_by_name` brings a recipe's words to these."""

    scheme = "model.peft.peft_scheme"
    rank, dropout, modules = (
        f"model.peft.lora_tuning.{name}" for name in ("adapter_dim", "adapter_dropout", "target_modules")
    )
    keys: tuple[str, ...] = (scheme, rank, dropout, modules)
    fields = ("lora_rank", "lora_dropout", "lora_linears")
    usual: tuple[int, str] = (32, "attention")

    def keys_of(self, name: str) -> tuple[str, ...]:
        """The scheme decides with the rank whether there are adapters."""
        return self.keys[:2] if name == "lora_rank" else (self.keys[1 + self.fields.index(name)],)

    groups: Mapping[str, frozenset[str]] = {
        "attention": frozenset(("attention",)),
        "mlp": frozenset(("mlp",)),
        "attention_qkv": frozenset(("q_proj", "k_proj", "v_proj")),
        "attention_dense": frozenset(("o_proj",)),
        "mlp_fc1": frozenset(("gate_proj", "up_proj")),
        "mlp_fc2": frozenset(("down_proj",)),
    }

    def write(self, facts: Facts) -> Part:
        rank, left = facts["lora_rank"], {*facts["lora_linears"]}
        if not rank:
            return Part()
        names = [name for name, own in self.groups.items() if own <= left]
        lost = sorted(left.difference(*(self.groups[name] for name in names)))
        values = ("lora", rank, facts["lora_dropout"], f"[{', '.join(names)}]")
        return Part(
            dict(zip(self.keys, values, strict=True)), (f"lora_linears {','.join(lost)}",) if lost else ()
        )

    def read(self, settings: Settings, facts: Facts) -> Found:
        """No adapters, or LoRA; a note names any other scheme."""
        scheme = str(settings.get(self.scheme, "none"))
        if scheme.lower() != "lora":
            return Found(
                {"lora_rank": 0}, () if scheme == "none" else (f"{self.scheme} {scheme} is not read",)
            )
        rank, linears = self.usual
        found = {
            "lora_rank": LAYOUT["lora_rank"].kind.parse(self.rank, settings.get(self.rank, rank)),
            "lora_dropout": LAYOUT["lora_dropout"].kind.parse(self.dropout, settings.get(self.dropout, 0.0)),
        }
        if "lora_linears" in facts:
            return Found(found)
        found["lora_linears"], notes = target_modules(self.modules, settings.get(self.modules), linears)
        return Found(found, notes)


class PeftConfig(Adapters):
    """LoRA of a Hugging Face model as LLM Foundry's `peft_config` states it, with PEFT's defaults."""

    scheme, rank, dropout, modules = keys = tuple(
        f"model.peft_config.{name}" for name in ("peft_type", "r", "lora_dropout", "target_modules")
    )
    usual = (8, "q_proj,v_proj")

    def write(self, facts: Facts) -> Part:
        """The linears' names are the model's."""
        return Part(lost=(f"lora_rank {facts['lora_rank']}",) if facts["lora_rank"] else ())


# The tables of other schemes, and their overrides, have names of LoRA's: adapter_dim.
_OTHER_TUNING = re.compile(
    r"^([ \t]*)(?:adapter|ia3|p|selective)_tuning:[ \t]*(?:#.*)?\n(?:\1[ \t]+.*\n?|[ \t]*\n)*"
    r"|(?<![\w.])(?:\w+\.)*(?:adapter|ia3|p|selective)_tuning\.\S*",
    re.M,
)
_MODULES = re.compile(
    r"(\btarget_modules[\"']?[ \t]*[:=])[ \t]*(?:\[([^\[\]]*)\]|((?:\n[ \t]*-[ \t]*[\w\"'.-]+)+))"
)
_LORA = re.compile(r"\bLoRA\(([^()]*)\)")
_OVERRIDE = re.compile(r"(?<![\w.])(?:\w+\.)*peft\.(?=(?:dim|dropout|target_modules)[ \t]*=)")
_OWN = re.compile(r"\b(dim|dropout)(?=[ \t]*=)")


def adapters_by_name(text: str) -> str:
    """`text` with LoRA in the words of NeMo's YAML: its list of linears as one text, without tables of other schemes.

    `LoRA(dim=8)` of a recipe and `peft.dim=8` of Megatron-Bridge have adapters at all linears by default.
    """

    def one_text(match: re.Match[str]) -> str:
        listed = ",".join(re.findall(r"[\w.-]*\w", match[2] or match[3] or ""))
        return f'{match[1]} "{listed}"'

    usual = '\npeft_scheme=lora target_modules="attention,mlp"\n'
    text = _MODULES.sub(one_text, _OTHER_TUNING.sub("", text))
    text = _LORA.sub(lambda match: usual + _OWN.sub(r"adapter_\1", match[1]), text)
    if _OVERRIDE.search(text):
        text = usual + _OWN.sub(r"adapter_\1", _OVERRIDE.sub("", text))
    return text


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
        return Found({"objective": "dpo" if self.penalty in settings else "next_token"})


def _framework(title: str, table: str, own: tuple[Row, ...], form: str, steps: str) -> Framework:
    found = re.compile(form)
    framework = Framework(
        title=title,
        table=table,
        own=own,
        parse=lambda text: {
            **launcher_flags(text),
            **parse_flat(adapters_by_name(_OLDER.sub("seq_length", text)), framework.keys),
        },
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
    (Launch(is_written=False), PeftConfig()),
    _SETTING(names="global_train_batch_size|device_train_microbatch_size"),
    "max_steps",
)
