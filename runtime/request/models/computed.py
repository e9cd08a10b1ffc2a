"""Fields of a `ModelConfig` that a family's configuration does not hold as they are, but gives what they follow from.

Every function here makes a reader: of a configuration and the model's fields that are known by then, the value.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernelcast.runtime.errors import UsageError, either, shown
from kernelcast.runtime.request.models.config_file import Config

Reader = Callable[[Config, Mapping[str, Any]], Any]

_GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_tanh")
_ACTIVATIONS = ("hidden_activation", "hidden_act", "activation_function", "activation", "mlp_hidden_act")
_LETTERS = {
    "mamba": "M",
    "linear_attention": "G",
    "attention": "*",
    "full_attention": "*",
    "mlp": "-",
    "moe": "E",
}
_LOCAL, _GLOBAL = ("sliding_attention", "chunked_attention"), "full_attention"


def gated(default: str = "silu") -> Reader:
    """The activation of a gated MLP."""

    def read(config: Config, _: Mapping[str, Any]) -> str:
        found = config.one_of(_ACTIVATIONS, ("silu", "swish", *_GELU), default)
        return "geglu" if found in _GELU else "swiglu"

    return read


def plain(default: str = "gelu") -> Reader:
    """The activation of an MLP without a gate; ReLU moves what GeLU moves."""

    def read(config: Config, _: Mapping[str, Any]) -> str:
        found = config.one_of(_ACTIVATIONS, (*_GELU, "relu", "relu2"), default)
        return "squared_relu" if found == "relu2" else "gelu"

    return read


def biases(
    attention: str, mlp: str = "", *, default: bool = False, attention_means: str = "attention"
) -> Reader:
    """Which linears have a bias, by the names of two flags; the attention's may be "qkv" alone."""

    def read(config: Config, _: Mapping[str, Any]) -> str:
        of_attention = config.flag(attention, default=default)
        of_mlp = bool(mlp) and config.flag(mlp, default=default)
        if of_attention and of_mlp:
            return "all"
        return attention_means if of_attention else "mlp" if of_mlp else "none"

    return read


def all_biases_or(attention: str) -> Reader:
    """All linears have a bias, but the attention's by a flag that is on by default."""
    return lambda config, _: "all" if config.flag(attention, default=True) else "mlp"


def no_biases_if(flag: str) -> Reader:
    """None where a flag is on, as it is by default, else all."""
    return lambda config, _: "none" if config.flag(flag, default=True) else "all"


def rotated(*names: str) -> Reader:
    """Entries of a head that are rotated, from the part of it; 0 for all."""

    def read(config: Config, given: Mapping[str, Any]) -> int:
        part = min(one.share(*names) for one in (config, *config.tables("rope_scaling", "rope_parameters")))
        size = given["head_size"] or given["hidden_size"] // given["attention_heads"]
        return 0 if part == 1 else max(1, int(part * size))

    return read


def product(*names: str) -> Reader:
    """Of sizes, 0 where one is absent."""

    def read(config: Config, _: Mapping[str, Any]) -> int:
        found = 1
        for name in names:
            found *= config.size(name, default=0)
        return found

    return read


def total(*names: str) -> Reader:
    """The sum of sizes."""
    return lambda config, _: sum(config.size(name) for name in names)


def more(name: str, by: int) -> Reader:
    """A size, and some more."""
    return lambda config, _: config.size(name) + by


def times(name: str, factor: str | int, default: int) -> Reader:
    """A size of another field's, times a factor that the configuration gives under a name or that is fixed."""

    def read(config: Config, given: Mapping[str, Any]) -> int:
        by = config.size(factor, default=default) if isinstance(factor, str) else factor
        return int(given[name]) * by

    return read


def unless(name: str) -> Reader:
    """Whether a flag is off."""
    return lambda config, _: not config.flag(name, default=False)


def window(default: int = 0, *, names: Sequence[str] = ("sliding_window",), interval: int = 0) -> Reader:
    """Window of the layers with sliding-window attention, in tokens; 0 without any."""

    def read(config: Config, given: Mapping[str, Any]) -> int:
        if not config.flag("use_sliding_window", default=True):
            return 0
        size = config.size(*names, default=default)
        return size if size and any(_is_local(config, given["layers"], interval)) else 0

    return read


def global_interval(interval: int = 0) -> Reader:
    """Every n-th layer looks back to the first token; 0: none does; `interval` is the family's, for want of another."""

    def read(config: Config, given: Mapping[str, Any]) -> int:
        if not config.flag("use_sliding_window", default=True):
            return 0
        layers = given["layers"]
        local = _is_local(config, layers, interval)
        found = [index for index, is_local in enumerate(local) if not is_local]
        return 0 if len(found) == layers else _every(found, layers, "look back to the first token")

    return read


def unrotated_interval(interval: int) -> Reader:
    """Every n-th layer has no positions; 0: all have them; `interval` is the family's."""

    def read(config: Config, given: Mapping[str, Any]) -> int:
        layers, rotated_layers = given["layers"], config.items("no_rope_layers")
        if rotated_layers is None:
            return config.size("no_rope_layer_interval", default=interval)
        found = [index for index, is_rotated in enumerate(rotated_layers) if not is_rotated]
        return _every(found, layers, "have no positions")

    return read


def _every(found: list[int], layers: int, what: str) -> int:
    """The n of "every n-th layer"; 0 for no such layers."""
    every = found[0] + 1 if found else 0
    if found and found != list(range(every - 1, layers, every)):
        raise UsageError(f"layers {shown(found[:8])} of {layers} {what}, expected every n-th")
    return every


def _is_local(config: Config, layers: int, interval: int) -> list[bool]:
    """Which layers look back less than all tokens."""
    kinds, rotated_layers = config.items("layer_types"), config.items("no_rope_layers")
    if kinds is not None:
        others = [kind for kind in kinds if kind not in (*_LOCAL, _GLOBAL)]
        if others:
            raise UsageError(
                f"layer_types has {shown(others[0])}, expected {_GLOBAL} or {' or '.join(_LOCAL)}"
            )
        found = [kind != _GLOBAL for kind in kinds]
    elif rotated_layers is not None:
        found = [bool(one) for one in rotated_layers]  # those without positions look back to the first token
    else:
        names = ("sliding_window_pattern", "_sliding_window_pattern", "no_rope_layer_interval")
        every = config.size(*names, default=interval)
        first = config.size("max_window_layers", default=0)
        return [index >= first and not (every and (index + 1) % every == 0) for index in range(layers)]
    if len(found) != layers:
        raise UsageError(f"kinds of layers are {len(found)}, expected {layers}, one per layer")
    return found


def first_dense(name: str) -> Reader:
    """How many of the first layers have no experts, from the list of those that have none."""

    def read(config: Config, _: Mapping[str, Any]) -> int:
        listed = config.items(name) or []
        if listed != list(range(len(listed))):
            raise UsageError(field=name, found=listed, expected="the first layers")
        return len(listed)

    return read


def layer_pattern(*names: str, each: str = "", interval: int = 0) -> Reader:
    """Parts of the layers, from a text of letters or a list of kinds, with a part that `each` layer has too.

    `interval` is the family's where a configuration has neither: every n-th layer has attention.
    """

    def read(config: Config, _: Mapping[str, Any]) -> str:
        name = next((name for name in names if config.has(name)), names[0])
        if isinstance(found := config.values.get(name), str):
            return found
        every = config.size("full_attention_interval", default=interval) if interval else 0
        kinds = config.items(name) or ["linear_attention"] * (every - 1) + ["full_attention"] * bool(every)
        for kind in kinds:
            if not isinstance(kind, str) or kind not in _LETTERS:
                raise UsageError(field=name, found=kind, expected=either(_LETTERS))
        return (" " * bool(each)).join(_LETTERS[kind] + each for kind in kinds)

    return read


def of_experts(name: str) -> Reader:
    """A size of experts, 0 where no layer has any."""
    return lambda config, given: config.size(name, default=0) if "E" in given["layer_pattern"] else 0


def nemotrons_router(config: Config, given: Mapping[str, Any]) -> str:
    """Sigmoid scores, where a layer has experts."""
    return "sigmoid" if "E" in given["layer_pattern"] else "softmax"


def falcons_kv_heads(config: Config, given: Mapping[str, Any]) -> int:
    """Key-value heads: groups in the newer form (of 40B and 180B), else one, or one per head."""
    heads: int = given["attention_heads"]
    if config.flag("new_decoder_architecture", default=False):
        return config.size("num_kv_heads", "n_head_kv", default=heads)
    return 1 if config.flag("multi_query", default=True) else heads


def falcons_parallel_residual(config: Config, _: Mapping[str, Any]) -> bool:
    """Always in the newer form."""
    return config.flag("new_decoder_architecture", default=False) or config.flag(
        "parallel_attn", default=True
    )


def mpts_kv_heads(config: Config, given: Mapping[str, Any]) -> int:
    """As the table of its attention has them."""
    table = config.table("attn_config")
    allowed = ("multihead_attention", "multiquery_attention", "grouped_query_attention")
    kind = table.one_of(("attn_type",), allowed, allowed[0])
    heads: int = given["attention_heads"]
    return 1 if kind == allowed[1] else table.size("kv_n_heads", default=heads)


def mpts_norms_of_heads(config: Config, _: Mapping[str, Any]) -> bool:
    """Whether that table has norms of queries and keys."""
    return config.table("attn_config").flag("qk_ln", default=False)


def mpts_positions(config: Config, given: Mapping[str, Any]) -> int:
    """Rows of its position table: none with ALiBi."""
    return 0 if config.table("attn_config").flag("alibi", default=False) else int(given["sequence_length"])
