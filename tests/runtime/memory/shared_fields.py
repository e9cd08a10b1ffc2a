"""Fields of a layout that memory depends on, and that all layouts of a search have in common, as strategies."""

from typing import Any

from hypothesis import strategies as st

from kernelcast.runtime.request.fields import LAYOUT

_NAMES = (
    "layer_split",
    "reduce_dtype",
    "loss",
    "kept_by",
    "shard_group",
    "recompute_modules",
    "recompute_layers",
    "recompute_together",
    "dropout",
    "vocabulary_multiple",
    "optimizer",
    "optimizer_states",
    "offload_optimizer",
    "offload_activations",
    "offload_modules",
    "fp8_recipe",
    "fp8_linears",
    "lora_rank",
    "lora_linears",
)


def _some(name: str) -> st.SearchStrategy[Any]:
    if name == "shard_group":
        # One shard per replica, or all in one: a group that divides any number of replicas.
        return st.sampled_from((0, 1))
    field = LAYOUT[name]
    return st.sampled_from(field.kind.values or (field.default, field.default + 0.1))


SHARED_FIELDS: dict[str, st.SearchStrategy[Any]] = {name: _some(name) for name in _NAMES}
