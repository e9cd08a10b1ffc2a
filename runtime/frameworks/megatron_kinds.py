"""Megatron-LM's flags of experts, latent attention, context parallelism and recomputation (docs/frameworks.md)."""

import ast
from collections.abc import Sequence
from typing import get_args

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.frameworks.rows import Facts, Found, Part, Row, Settings, lost_modules
from kernelcast.runtime.request.field_types import FLAG, choice
from kernelcast.runtime.request.field_types import whole as whole_number
from kernelcast.runtime.request.fields import (
    LAYOUT,
    MAX_LAYERS,
    MODEL,
    ContextExchange,
    OffloadModule,
    RecomputeModule,
)
from kernelcast.runtime.request.models import built_in_name, load_model

_EXCHANGES: dict[str, ContextExchange] = {"p2p": "ring", "a2a": "all_to_all", "allgather": "all_gather"}
_LONGEST_PATTERN = 4 * MAX_LAYERS


class ContextExchangeType(Row):
    """How context parallelism brings queries and keys together; several flags would be one per layer."""

    key = "--cp-comm-type"
    keys = (key,)
    fields = ("context_exchange",)

    def write(self, facts: Facts) -> Part:
        if facts["context_exchange"] == "ring":
            return Part()
        names = {ours: name for name, ours in _EXCHANGES.items()}
        return Part({self.key: names[facts["context_exchange"]]})

    def read(self, settings: Settings, facts: Facts) -> Found:
        """The exchange of all layers, the first layer's if they differ."""
        given = settings.get(self.key, "p2p")
        name, *others = given if isinstance(given, tuple) and given else (given,)
        found = choice(tuple(_EXCHANGES)).parse(self.key, name)
        notes = (f"{self.key} {name} is read for all layers",) if set(others) - {name} else ()
        return Found({"context_exchange": _EXCHANGES[found]}, notes)


class ExpertLayers(Row):
    """Which layers have experts: a list of 1 and 0, or every N-th from the first on."""

    key = "--moe-layer-freq"
    keys = (key,)
    fields = ("dense_layers", "expert_interval")

    def write(self, facts: Facts) -> Part:
        dense, interval = (facts[name] for name in self.fields)
        if not facts["experts"] or (dense, interval) == (0, 1):
            return Part()
        turns, rest = divmod(facts["layers"] - dense, interval)
        one = f"[0]*{interval - 1}+[1]" if interval > 1 else "[1]"
        parts = [f"[0]*{dense}"] * bool(dense) + [f"({one})*{turns}" if interval > 1 else f"{one}*{turns}"]
        return Part({self.key: f"({'+'.join([*parts, *[f'[0]*{rest}'] * bool(rest)])})"})

    def read(self, settings: Settings, facts: Facts) -> Found:
        if self.key not in settings:
            return Found({})
        pattern = expert_pattern(self.key, settings[self.key], facts["layers"])
        dense = pattern.index(1) if 1 in pattern else len(pattern)
        after = pattern[dense + 1 :]
        interval = after.index(1) + 1 if 1 in after else 1
        # In the fields' words the first of several dense layers before each one with experts belong to it.
        dense -= min(dense, interval - 1)
        if pattern == [int(n >= dense and (n - dense + 1) % interval == 0) for n in range(len(pattern))]:
            return Found({"dense_layers": dense, "expert_interval": interval})
        return Found({}, (f"{self.key}: the model's own layers have experts",))


def expert_pattern(key: str, value: object, layers: int) -> list[int]:
    """1 for layers with experts, else 0, of a number or a sum of products of lists; UsageError for neither."""
    text = str(value)
    refusal = UsageError(field=key, found=value, expected="a number or a list such as ([0]*3+[1]*58)")
    if text.isdecimal() and 0 < len(text) < 6 and int(text):
        return [int(layer % int(text) == 0) for layer in range(layers)]
    if len(text) > _LONGEST_PATTERN:
        raise refusal
    try:
        found = _list(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise refusal from error
    return found


def _list(node: ast.expr) -> list[int]:
    """A list of 0 and 1, a sum of lists, or a product with a number."""
    match node:
        case ast.List(elts=elements):
            values = [one.value for one in elements if isinstance(one, ast.Constant) and one.value in (0, 1)]
            if len(values) == len(elements):
                return [int(bool(one)) for one in values]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _short([*_list(left), *_list(right)])
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(times))) if (
            0 <= times <= MAX_LAYERS
        ):
            one = _list(left)
            return _short(one * min(times, MAX_LAYERS // max(1, len(one)) + 1))
    raise ValueError


def _short(layers: list[int]) -> list[int]:
    if len(layers) > MAX_LAYERS:
        raise ValueError
    return layers


class Heads(Row):
    """Sizes of heads: one for all, or with latent attention one per part, and the ranks."""

    size = "--kv-channels"
    rotated = "--rotary-percent"
    latent = "--multi-latent-attention"
    query_rank = "--q-lora-rank"
    kv_rank = "--kv-lora-rank"
    plain = "--qk-head-dim"
    turned = "--qk-pos-emb-head-dim"
    value = "--v-head-dim"
    keys = (size, rotated, query_rank, kv_rank, plain, turned, value, latent)
    fields = ("head_size", "rotary_size", "query_rank", "kv_rank", "value_head_size")

    def write(self, facts: Facts) -> Part:
        """Queries and keys of latent attention have a part that is not rotated, and one that is."""
        head, rotary = facts["head_size"], facts["rotary_size"] or facts["head_size"]
        if not facts["kv_rank"]:
            return Part({self.size: head, **({self.rotated: f"{rotary / head:g}"} if rotary < head else {})})
        ranks = {self.query_rank: facts["query_rank"]} if facts["query_rank"] else {}
        return Part(
            {
                self.latent: True,
                **ranks,
                self.kv_rank: facts["kv_rank"],
                self.plain: head - rotary,
                self.turned: rotary,
                self.value: facts["value_head_size"] or head,
            },
            () if rotary < head else ("latent attention that rotates all of its heads",),
        )

    def read(self, settings: Settings, facts: Facts) -> Found:
        """The given sizes as fields of a model: with latent attention the others are not used."""
        kind = MODEL["head_size"].kind
        if not FLAG.parse(self.latent, settings.get(self.latent, False)):
            return Found(
                {"head_size": kind.parse(self.size, settings[self.size])} if self.size in settings else {}
            )
        numbers = {
            name: kind.parse(key, settings[key])
            for name, key in (
                ("query_rank", self.query_rank),
                ("kv_rank", self.kv_rank),
                ("rotary_size", self.turned),
                ("value_head_size", self.value),
            )
            if key in settings
        }
        if self.plain in settings and "rotary_size" in numbers:
            numbers["head_size"] = kind.parse(self.plain, settings[self.plain]) + numbers["rotary_size"]
        return Found(numbers)


def known_names(
    key: str, listed: Sequence[str], known: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The listed names that are known, in their order, and a note about the others of a setting."""
    found = tuple(name for name in known if name in listed)
    unknown = " ".join(name for name in listed if name not in found)
    return found, (f"{key} {unknown} is not modelled",) if unknown else ()


_MODULES = tuple(name for name in get_args(RecomputeModule) if name != "per_op")
_OFFLOADED = tuple(name for name in get_args(OffloadModule) if name != "all")


class Recompute(Row):
    """What is recomputed: modules of every layer, or whole layers, some ("block") or several at once ("uniform")."""

    granularity = "--recompute-granularity"
    activations = "--recompute-activations"
    modules = "--recompute-modules"  # empty: attention's core alone
    method = "--recompute-method"
    layers = "--recompute-num-layers"
    keys: tuple[str, ...] = (granularity, activations, modules, method, layers)
    fields = ("recompute", "recompute_modules", "recompute_layers", "recompute_together")

    def write(self, facts: Facts) -> Part:
        kind, modules, layers, together = (facts[name] for name in self.fields)
        if kind == "none":
            return Part({})
        lost = ["recompute_early_stop (all is run again)"] if facts["recompute_early_stop"] else []
        if kind == "selective":
            if not self.modules:
                return Part({self.granularity: kind}, (*lost, *lost_modules(modules)))
            if modules == ("per_op",):
                return Part({}, (*lost, "recompute_modules per_op (torchtitan's choice of ops)"))
            own = {} if modules == LAYOUT["recompute_modules"].default else {self.modules: modules}
            return Part({self.granularity: kind, **own}, tuple(lost))
        method = ("block", layers) if layers else ("uniform", together)
        return Part({self.granularity: kind, self.method: method[0], self.layers: method[1]}, tuple(lost))

    def read(self, settings: Settings, facts: Facts) -> Found:
        usual = "selective" if self.activations in settings else "none"
        asked = settings.get(self.granularity)
        kind = usual if asked is None else choice(("selective", "full")).parse(self.granularity, asked)
        if kind == "full":
            method = choice(("uniform", "block")).parse(self.method, settings.get(self.method, "uniform"))
            count = MODEL["layers"].kind.parse(self.layers, settings.get(self.layers, 1))
            field, other = ("recompute_layers", "recompute_together")[:: 1 if method == "block" else -1]
            return Found({"recompute": kind, field: count, other: LAYOUT[other].default})
        if kind == "none" or self.modules not in settings:
            return Found({"recompute": kind})
        known, notes = known_names(self.modules, settings[self.modules], _MODULES)
        return Found(
            {"recompute": kind, "recompute_modules": known} if known else {"recompute": "none"}, notes
        )


class ActivationOffload(Row):
    """Activations in the host's memory: of modules, or of some layers whole (--cpu-offloading, without a pipeline)."""

    switch, listed = "--fine-grained-activation-offloading", "--offload-modules"
    part = "--activation-offload-fraction"
    whole, layers = "--cpu-offloading", "--cpu-offloading-num-layers"
    keys = (switch, listed, part, whole, layers)
    fields = ("offload_activations", "offload_modules")

    def write(self, facts: Facts) -> Part:
        """Modules by name; all that layers keep as a number of whole layers."""
        part, modules = (facts[name] for name in self.fields)
        if not part:
            return Part()
        if "all" not in modules:
            some = {} if part == 1 else {self.part: part}
            return Part({self.switch: True, self.listed: modules, **some})
        count = part * facts["layers"]
        if facts["pp"] > 1 or count != round(count):
            return Part(lost=(f"offload_activations {part}",))
        return Part({self.whole: True, self.layers: round(count)})

    def read(self, settings: Settings, facts: Facts) -> Found:
        if self.layers in settings:
            count = whole_number(0, MAX_LAYERS).parse(self.layers, settings[self.layers])
            return Found({"offload_activations": min(1.0, count / facts["layers"])})
        if settings.get(self.switch, False) is False:
            return Found({})
        found = settings.get(self.listed, ())
        names = found if isinstance(found, tuple) else (found,)
        known, notes = known_names(self.listed, names, _OFFLOADED)
        part = LAYOUT["offload_activations"].kind.parse(self.part, settings.get(self.part, 1.0))
        return Found({"offload_activations": part, "offload_modules": known} if known else {}, notes)


_TOKENIZERS = {
    "bpe/vocab.json": 50_257,
    "nemotron_2_256k.model": 256_000,
    "multiMixV8.gpt4o_nc_sd.500000.128k.vocab.json": 131_072,
    "qwen3-8b-dist/tokenizer": 151_936,
    "GPT2BPETokenizer": 50_257,
    "Llama2Tokenizer": 32_000,
}
"""Entries of vocabularies, by files and tokenizers of Megatron-LM's tests; a file decides before its tokenizer."""


class Tokenizer(Row):
    """The vocabulary where --vocab-size does not say it."""

    keys = ("--vocab-file", "--tokenizer-model", "--tokenizer-type")
    fields = ("vocabulary_size",)

    def read(self, settings: Settings, facts: Facts) -> Found:
        """Nothing of an unknown one; a note names an unknown file of a known tokenizer, whose usual size is taken."""
        named, is_known = self.named(settings), "vocabulary_size" in facts
        if not is_known and (model := built_in_name(settings.get(self.keys[1]))) is not None:
            return Found({"vocabulary_size": load_model(model).vocabulary_size})
        found = next((one for one in _TOKENIZERS.items() if one[0] in named), None)
        if found is None or is_known:
            return Found({})
        files = [f"{key} {settings[key]}" for key in self.keys[:2] if key in settings]
        is_usual = files and found[0] == settings.get(self.keys[2])
        note = f"{files[0]} is not read: {found[1]:,} entries are taken, {found[0]}'s" if is_usual else ""
        return Found({"vocabulary_size": found[1]}, (note,) if note else ())

    @classmethod
    def named(cls, settings: Settings) -> str:
        """The tokenizer as the settings name it."""
        return " ".join(str(settings[key]) for key in cls.keys if key in settings)


_OTHER_MODELS = (
    "--encoder-num-layers",
    "--hybrid-layer-pattern",
    "--hybrid-override-pattern",
    "--is-hybrid-model",
    "--model-provider",
)
_POSITIONS, _ROWS = "--position-embedding-type", "--max-position-embeddings"


def usual_model(settings: Settings, facts: Facts) -> Facts:
    """What pretrain_gpt.py takes where the settings of rows say nothing, and positions. UsageError for flags of
    another model than a decoder-only transformer, or an unknown vocabulary.
    """
    for key in _OTHER_MODELS:
        if key in settings:
            raise UsageError(field=key, found=settings[key], expected="a decoder-only transformer")
    if "vocabulary_size" not in facts:
        tokenizer = f", and the tokenizer {named} is unknown" if (named := Tokenizer.named(settings)) else ""
        raise UsageError(f"--vocab-size is missing{tokenizer}: give it or --model")
    learned = settings.get(_POSITIONS, "learned_absolute") == "learned_absolute"
    learned = learned and "--use-rotary-position-embeddings" not in settings
    # SwiGLU's three matrices have the entries of two that are 4 d wide (arguments.py).
    gated = int(4 * facts.get("hidden_size", 0) * 2 / 3) // 64 * 64
    width = {"mlp_size": gated} if facts.get("activation") == "swiglu" and gated else {}
    share, head = float(settings.get(Heads.rotated, 1)), facts.get("head_size")
    head = head or facts.get("hidden_size", 0) // max(1, facts.get("attention_heads", 1))
    turned = {"rotary_size": int(share * head)} if share < 1 and "kv_rank" not in facts else {}
    rows = MODEL["learned_positions"].kind.parse(_ROWS, settings.get(_ROWS, 0)) if learned else 0
    return {
        "norm": "layer_norm",
        "activation": "gelu",
        "attention": "fused_softmax" if settings.get("--transformer-impl") == "local" else "flash",
        "rotary": not learned and settings.get(_POSITIONS, "rope") == "rope",
        "learned_positions": rows,
        **width,
        **turned,
    }
