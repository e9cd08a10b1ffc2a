"""Which columns of a linear have adapters (LoRA), by PEFT's names of linears."""

from collections.abc import Mapping

from kernelcast.runtime.request.fields import LinearKind
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.op import Number

_MODULES: Mapping[str, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "attention_output": ("o_proj",),
    **dict.fromkeys(("mlp_up", "mlp_gate_up", "shared_gate_up"), ("gate_proj", "up_proj")),
    **dict.fromkeys(("mlp_down", "shared_down"), ("down_proj",)),
}
"""PEFT's names of linears by the role of their product."""


def adapted_columns(
    model: ModelConfig, layout: Parallelism, kind: LinearKind, role: str, columns: tuple[Number, ...]
) -> tuple[Number, ...]:
    """The columns of a linear that have an adapter; some of one product's share one.

    Linears without a name in PEFT's models have one where all of their kind have.
    """
    chosen, is_frozen = layout.lora_linears, layout.lora_rank > 0
    if kind in chosen or not is_frozen:
        return columns if is_frozen else ()
    modules = _modules_of(model, role)
    if len(columns) < len(modules):
        columns = (columns[0] // len(modules),) * len(modules)
    return tuple(width for name, width in zip(modules, columns, strict=False) if name in chosen)


def is_adapted(model: ModelConfig, layout: Parallelism, kind: str, role: str) -> bool:
    """Whether linears of this kind have adapters; with `role`, whether a linear that it computes has one."""
    return layout.lora_rank > 0 and not {kind, *_modules_of(model, role)}.isdisjoint(layout.lora_linears)


def _modules_of(model: ModelConfig, role: str) -> tuple[str, ...]:
    """PEFT's names of the linears that a product in `role` computes."""
    modules = _MODULES.get(role, ())
    if "gate_proj" in modules:
        return modules if "glu" in model.activation else modules[1:]
    # Latent attention projects queries directly, or down to a low rank and up again.
    is_latent = role == "qkv" and model.kv_rank
    return modules[: int(not model.query_rank)] if is_latent else modules
