"""A list of ops that trains: parameters and forward pass are folds over the ops that a prediction prices.

Every op has a row in `ROWS`, by its name or its operator: the tensor function that the benches measure, on a stack of
tensors. The residual stream lies at the bottom of the stack, and the current tensor on top.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from math import prod
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from kernelcast.collector.functions import transformer, vocabulary_parallel
from kernelcast.collector.training import experts
from kernelcast.collector.training.exchanges import enter, heads_for_tokens, leave, tokens_for_heads
from kernelcast.collector.training.groups import Part, Shard
from kernelcast.collector.training.marks import LAYER, marked, operator_mark
from kernelcast.runtime import ModelConfig
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.step.layers.transformer_layer import ATTENTION_RESIDUAL
from kernelcast.runtime.step.op import Op, Ops
from kernelcast.runtime.step.recomputation import with_parts
from kernelcast.runtime.step.sizes import Sizes

_SCALE = 0.02  # of random weights, as GPT-2 has it

Stack = tuple[Any, ...]
"""Tensors, and tuples of tensors that belong together: queries, keys and values, or rows and their experts."""
Run = Callable[["Layer", Op, Stack], Stack]


def random_weight(seed: int, prefix: str, name: str, *size: int) -> Tensor:
    """The whole tensor of a name in a layer; the caller cuts out its shard."""
    generator = torch.Generator()
    generator.manual_seed(seed ^ zlib.crc32(f"{prefix}{name}".encode()))
    return torch.randn(size, generator=generator) * _SCALE


class Tables(nn.Module):
    """What attention reads in every layer: cosines and sines of this device's tokens, the mask of a window."""

    cosine: Tensor
    sine: Tensor
    mask: Tensor

    def __init__(self, model: ModelConfig, context: Part) -> None:
        super().__init__()
        cpu, length = torch.device("cpu"), model.sequence_length
        tables = transformer.rotary_tables(length, model.head_size, device=cpu, dtype=torch.float32)
        for name, table in zip(("cosine", "sine"), tables, strict=True):
            self.register_buffer(name, table[:, context.of(length)], persistent=False)
        if window := model.sliding_window:
            mask = transformer.windowed_mask(length, length, window, device=cpu)
            self.register_buffer("mask", mask, persistent=False)


def checkpointed(call: Callable[..., Any], *inputs: Any, when: bool) -> Any:
    """`call(*inputs)`; if `when` is true, with activation checkpointing: the backward pass runs all of it again."""
    if not when:
        return call(*inputs)
    # Frameworks run all of it again; torch by default stops after the last tensor that is needed.
    with set_checkpoint_early_stop(False):
        # Without dropout there is no random state to restore.
        return checkpoint(call, *inputs, use_reentrant=False, preserve_rng_state=False)


class Layer(nn.Module):
    """The ops that `describe` lists for `sizes`, as one device of a layout runs them.

    Modules in `recomputed` are run again in the backward pass. `loss_scale` scales the load-balancing loss of routed
    experts, whose gradients are added in the backward pass. UsageError for an op without a row in `ROWS`, or with other
    parameters than its row has.
    """

    def __init__(
        self,
        describe: Callable[[Sizes], Ops],
        sizes: Sizes,
        shard: Shard,
        weights: Callable[..., Tensor],
        tables: Tables,
        *,
        recomputed: Iterable[str] = (),
        loss_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.sizes, self.shard, self.tables, self.loss_scale = sizes, shard, tables, loss_scale
        self.weights = nn.ParameterDict()
        self.replicated: list[str] = []
        """Parameters that every device of the tensor-parallel group has whole, by name."""
        self.experts: list[str] = []
        """Parameters of this device's routed experts."""
        # On one device, with as many rows of the vocabulary.
        multiple = sizes.layout.vocabulary_multiple * sizes.layout.tp
        on_one = describe(Sizes.alone(sizes.model, kind=sizes.kind, vocabulary_multiple=multiple))
        whole = {one.name: one for one in on_one}
        ops = [one for one in describe(sizes) if one.parameters or (one.call is not None and one.call.count)]
        runs = {one.name: self._run_of(one) for one in ops}
        for one in ops:
            if one.parameters:
                self._build(one, whole[one.name], weights)
        ordered = self._with_sums_first(ops) if shard.group is not None else ops
        self._in_layer = any(one.in_layer for one in ops)
        # Modules inside others run again with them, as one.
        parts = {name: with_parts([name]) for name in recomputed}
        outer = {
            part: name for name in sorted(parts, key=lambda name: len(parts[name])) for part in parts[name]
        }
        self._segments = [
            (bool(module), [(one, runs[one.name]) for one in segment])
            for module, segment in groupby(ordered, lambda one: outer.get(one.module, ""))
        ]

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states [b, l, d], or token ids [b, l] → what the last op leaves on the stack."""
        stack: Stack = (x,)
        with marked(LAYER) if self._in_layer else nullcontext():
            for again, rows in self._segments:
                stack = checkpointed(partial(self._run, rows), *stack, when=again)
        result: Tensor = stack[-1]
        return result

    def _run(self, rows: list[tuple[Op, Run]], *stack: Any) -> Stack:
        for op, run in rows:
            # Collectives have marks of their own, around each of their messages.
            call = None if op.collective else op.call
            with nullcontext() if call is None else operator_mark(call.operator, call.role):
                stack = run(self, op, stack)
        return stack

    def _run_of(self, op: Op) -> Run:
        run = ROWS.get(op.name) or ROWS.get(_operator(op))
        return run or self._refuse(
            op, f"operator {_operator(op) or 'none'}", "operators with a row in layer.py"
        )

    def _refuse(self, op: Op, found: str, expected: str) -> NoReturn:
        name = self.sizes.model.name
        raise UsageError(f"model {name}: op {op.name} has {found}, real steps train {expected} only")

    def _build(self, op: Op, whole: Op, weights: Callable[..., Tensor]) -> None:
        """This device's shard of an op's parameters, which are cut where its size differs from the whole op's."""
        size, own = _parameter_size(whole), _parameter_size(op)
        part = self.shard.experts if op.is_expert else self.shard

        def own_part(tensor: Tensor) -> Tensor:
            cuts = zip(tensor.shape, size, own, strict=True)
            return tensor[tuple(slice(n) if all_of == mine else part.of(n) for n, all_of, mine in cuts)]

        if (operator := _operator(op)) in _DRAWN:
            product, kind = op.name.removesuffix("_bias"), "bias" if operator == "bias_add" else "weight"
            rows = _fused_rows(self.sizes).get(product, {product: size[0]})
            drawn = [own_part(weights(f"{name}.{kind}", n, *size[1:])) for name, n in rows.items()]
            built = {op.name: torch.cat(drawn)}
        else:
            built = {op.name: torch.ones(own)}
            if whole.parameters == 2 * size[0]:
                built[f"{op.name}_bias"] = torch.zeros(own)
        if (trained := prod(size) * len(built)) != whole.parameters:
            self._refuse(op, f"{whole.parameters} parameters", str(trained))
        self.weights.update({name: nn.Parameter(value.contiguous().clone()) for name, value in built.items()})
        self.replicated += [name for name in built if self.shard.group is not None and size == own]
        self.experts += [name for name in built if op.is_expert]

    def _with_sums_first(self, ops: list[Op]) -> list[Op]:
        """Biases that are whole on every device are added to the sum of the group, not to each part of it.

        With a parallel residual, both branches are added to each other before their one sum.
        """
        is_parallel = self.sizes.model.parallel_residual
        ordered: list[Op] = []
        late: list[Op] = []
        for one in ops:
            is_sum = _operator(one) == "all_reduce" and one.collective == "forward"
            is_bias = _operator(one) == "bias_add" and one.name in self.replicated
            (late if is_bias or (is_sum and is_parallel) else ordered).append(one)
            if one.name == ATTENTION_RESIDUAL if is_parallel else is_sum:
                ordered += sorted(late, key=lambda one: not one.collective)
                late = []
        return ordered + late


def _operator(op: Op) -> str:
    return "" if op.call is None else op.call.operator


_DRAWN = ("gemm", "grouped_gemm", "bias_add", "embedding")
"""Operators with random parameters; all others begin with ones, their second half with zeros."""


def _parameter_size(op: Op) -> tuple[int, ...]:
    """The size of an op's weight, output rows first, or of its vector."""
    operator, shape = _operator(op), () if op.call is None else op.call.shape
    if operator == "gemm":
        return shape[2], shape[1]
    if operator == "grouped_gemm":
        return shape[0], shape[3], shape[2]
    return tuple(shape[1:]) if operator == "embedding" else tuple(shape[-1:])


def _fused_rows(s: Sizes) -> Mapping[str, Mapping[str, int]]:
    """The weights that lie above each other in one product, each cut by itself, and their rows on all devices."""
    model = s.model
    width, kv_width = model.attention_heads * model.head_size, model.kv_heads * model.head_size
    branches = dict.fromkeys(("gate", "up")[-s.branches :], model.mlp_size)
    heads = {"query": width, "key": kv_width, "value": kv_width}
    return {"qkv": heads, "mlp_up": branches, "mlp_gate_up": branches}


def on_top(run: Callable[["Layer", Op, Any], Any]) -> Run:
    """A row whose function takes the current tensor and gives the next."""
    return lambda layer, op, stack: (*stack[:-1], run(layer, op, stack[-1]))


def _norm(layer: Layer, op: Op, stack: Stack) -> Stack:
    """A norm of the residual stream, with which a branch begins."""
    weight, stream = layer.weights[op.name], stack[0]
    if _operator(op) == "rms_norm":
        return *stack, F.rms_norm(stream, weight.shape, weight)
    return *stack, F.layer_norm(stream, weight.shape, weight, layer.weights[f"{op.name}_bias"])


def _residual_add(layer: Layer, op: Op, stack: Stack) -> Stack:
    """A branch is added to what lies below it: the residual stream, or another branch."""
    return *stack[:-2], stack[-2] + stack[-1]


def _linear(layer: Layer, op: Op, x: Tensor) -> Tensor:
    return F.linear(x, layer.weights[op.name])


def _scores(layer: Layer, op: Op, heads: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Scores [b, heads, l, l] and values [b · heads, l, s] of attention that is not fused."""
    b, length, count, size = heads[0].shape

    def by_head(x: Tensor) -> Tensor:
        x = x if x.shape[2] == count else x.repeat_interleave(count // x.shape[2], dim=2)
        return x.transpose(1, 2).reshape(b * count, length, size)

    with operator_mark("attention_heads"):
        query, key, value = by_head(heads[0]) * size**-0.5, by_head(heads[1]), by_head(heads[2])
    return torch.bmm(query, key.transpose(1, 2)).view(b, count, length, length), value


def _mask(layer: Layer, op: Op, given: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    scores, value = given
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(mask, torch.finfo(scores.dtype).min), value


def _values(layer: Layer, op: Op, given: tuple[Tensor, Tensor]) -> Tensor:
    weights, value = given
    out = torch.bmm(weights.flatten(0, 1), value)
    with operator_mark("attention_heads"):
        return out.view(*weights.shape[:3], -1).transpose(1, 2).flatten(2)


def _embedding(layer: Layer, op: Op, ids: Tensor) -> Any:
    """Hidden states of this shard's tokens; with other shards, the mask of their tokens too."""
    weight, shard = layer.weights[op.name], layer.shard
    if shard.group is None:
        return F.embedding(ids, weight)
    with operator_mark("embedding_mask"):
        local, elsewhere = vocabulary_parallel.local_rows(ids, shard.index * weight.shape[0], weight.shape[0])
    return F.embedding(local, weight), elsewhere


def _activation(run: Callable[[Tensor], Tensor]) -> Run:
    """An activation of hidden states, or of the rows of routed experts."""
    return on_top(lambda layer, op, x: (run(x[0]), *x[1:]) if isinstance(x, tuple) else run(x))


ROWS: Mapping[str, Run] = {
    **dict.fromkeys(("input_norm", "pre_mlp_norm", "final_norm"), _norm),
    **dict.fromkeys(
        ("qkv", "attention_output", "mlp_up", "mlp_gate_up", "mlp_down", "logits"), on_top(_linear)
    ),
    "bias_add": on_top(lambda layer, op, x: transformer.add_bias(x, layer.weights[op.name])),
    **dict.fromkeys((ATTENTION_RESIDUAL, "mlp_residual", "add_shared"), _residual_add),
    "all_reduce": on_top(
        lambda layer, op, x: (enter if op.collective == "backward" else leave)(x, layer.shard.group)
    ),
    "gelu": _activation(F.gelu),
    "swiglu": _activation(transformer.swiglu),
    "embedding": on_top(_embedding),
    "embedding_mask": on_top(lambda layer, op, given: vocabulary_parallel.mask_rows(*given)),
    # Attention: queries, keys and values are one entry of the stack.
    "qkv_split": on_top(
        lambda layer, op, x: transformer.split_qkv(
            x, heads=int(layer.sizes.heads), kv_heads=int(layer.sizes.kv_heads)
        )
    ),
    "rope": on_top(
        lambda layer, op, heads: (
            *(transformer.rotate(x, layer.tables.cosine, layer.tables.sine) for x in heads[:2]),
            heads[2],
        )
    ),
    "exchange_qkv": on_top(lambda layer, op, heads: heads_for_tokens(heads, layer.shard.context)),
    "flash_attention": on_top(lambda layer, op, heads: transformer.causal_attention(*heads)),
    "attention_block": on_top(
        lambda layer, op, heads: transformer.masked_attention(heads[0], heads[1], heads[2], layer.tables.mask)
    ),
    "reorder": lambda layer, op, stack: stack,  # both exchanges put their tensors in order
    "exchange_output": on_top(lambda layer, op, x: tokens_for_heads(x, layer.shard.context)),
    "attention_scores": on_top(_scores),
    "causal_mask_fill": on_top(_mask),
    "softmax": on_top(lambda layer, op, given: (torch.softmax(given[0], dim=-1), given[1])),
    "attention_values": on_top(_values),
    # Shared experts leave their output below what the router reads.
    "shared_gate_up": lambda layer, op, stack: (*stack, _linear(layer, op, stack[-1])),
    "shared_down": lambda layer, op, stack: (*stack[:-2], _linear(layer, op, stack[-1]), stack[-2]),
    "router": on_top(experts.router),
    "routing": on_top(experts.routing),
    "permute": on_top(experts.permuted),
    "dispatch": on_top(experts.dispatch),
    "dispatch_probabilities": lambda layer, op, stack: stack,  # rows are weighted where they come back
    "sort": on_top(experts.sort),
    "grouped_gemm": on_top(experts.product),
    "latent_down": on_top(experts.latent_down),
    "latent_up": on_top(_linear),
    "sort_back": on_top(experts.returned),
    "combine": on_top(experts.returned),
    "unpermute": on_top(experts.unpermuted),
}
"""How every op runs, by its name or else its operator."""
