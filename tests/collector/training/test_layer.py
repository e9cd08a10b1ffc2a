"""A list of ops that trains: all of its parameters, one row for a new op, one line for an op without a row."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from kernelcast.collector.training import layer as training
from kernelcast.collector.training.groups import Part, Shard
from kernelcast.collector.training.layer import Layer, Tables, random_weight
from kernelcast.runtime import ModelConfig, Parallelism, UsageError
from kernelcast.runtime.step.chunks import DENSE, LayerKind
from kernelcast.runtime.step.layers.transformer_layer import transformer_layer
from kernelcast.runtime.step.op import Op, Ops, op
from kernelcast.runtime.step.sizes import Sizes
from tests.collector.training.in_threads import of_every_rank

MODEL = ModelConfig(
    name="tiny", hidden_size=32, sequence_length=16, attention_heads=4, layers=2, vocabulary_size=100, experts=4,
    experts_per_token=2, shared_expert_size=24, biases="none",
)  # fmt: skip
SCALED = ("attention_residual", "mlp_residual")


def layer_of(describe: Callable[[Sizes], Ops], kind: LayerKind = DENSE) -> Layer:
    sizes = Sizes.alone(MODEL, kind=kind)
    return Layer(describe, sizes, Shard(), partial(random_weight, 1, ""), Tables(MODEL, Part()))


def with_layer_scale(s: Sizes) -> Ops:
    """A layer with a learned vector after attention and MLP."""
    found: list[Op] = []
    for one in transformer_layer(s):
        if one.name in SCALED:
            shape = (s.micro_batch, s.local_length, s.hidden)
            scale = op(f"{one.name}_scale", "layer_scale", *shape, parameters=s.hidden)
            found.append(scale._replace(in_layer=True))
        found.append(one)
    return tuple(found)


@pytest.mark.parametrize("kind", [DENSE, LayerKind(has_experts=True)])
def test_it_has_the_parameters_of_its_ops(kind: LayerKind) -> None:
    built = sum(p.numel() for p in layer_of(transformer_layer, kind).parameters())
    assert built == sum(one.parameters for one in transformer_layer(Sizes.alone(MODEL, kind=kind)))


def test_a_new_op_needs_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError) as caught:
        layer_of(with_layer_scale)
    message = "model tiny: op attention_residual_scale has operator layer_scale, real steps train"
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    row = training.on_top(lambda layer, op, x: x * layer.weights[op.name])
    monkeypatch.setattr(training, "ROWS", dict(training.ROWS) | {"layer_scale": row})
    plain, scaled = layer_of(transformer_layer), layer_of(with_layer_scale)
    x = torch.randn(2, 16, 32)
    assert torch.equal(scaled(x), plain(x))  # it begins with ones
    for name in SCALED:
        torch.nn.init.zeros_(scaled.weights[f"{name}_scale"])
    assert torch.equal(scaled(x), x)
    scaled(x).sum().backward()
    assert all(scaled.weights[f"{name}_scale"].grad.abs().sum() > 0 for name in SCALED)


def test_parameters_that_a_row_lacks_are_refused() -> None:
    def with_router_bias(s: Sizes) -> Ops:
        return tuple(
            one._replace(parameters=one.parameters + 4) if one.name == "router" else one
            for one in transformer_layer(s)
        )

    with pytest.raises(UsageError, match="op router has 132 parameters, real steps train 128 only"):
        layer_of(with_router_bias, LayerKind(has_experts=True))


@pytest.mark.parametrize(
    ("fields", "layout", "name"),
    [
        pytest.param({"post_norms": True}, {}, "post_attention_norm", id="norms of branches"),
        pytest.param({"qk_norm": True}, {}, "query_norm", id="norms of heads"),
        pytest.param({"attention_sinks": True}, {}, "sinks", id="sinks"),
        pytest.param({}, {"lora_rank": 4}, "qkv_adapter_down", id="adapters"),
        pytest.param({}, {"dropout": 0.1}, "attention_output_dropout", id="dropout"),
    ],
)
def test_ops_without_a_row_are_refused(fields: dict[str, Any], layout: dict[str, Any], name: str) -> None:
    sizes = Sizes.alone(replace(MODEL, **fields), **layout)
    with pytest.raises(UsageError, match=f"^model tiny: op {name} has operator .*, real steps train"):
        Layer(transformer_layer, sizes, Shard(), partial(random_weight, 1, ""), Tables(MODEL, Part()))


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("biases", ["all", "qkv", "attention", "mlp", "none"])
@pytest.mark.parametrize("parallel_residual", [False, True])
def test_shards_are_one_layer_together(tp: int, biases: str, parallel_residual: bool) -> None:
    """Outputs and the input's gradients: each bias and each branch counts once, whichever order the sums have."""
    syncs = 1 if parallel_residual else 2
    model = replace(MODEL, biases=biases, parallel_residual=parallel_residual, forward_syncs=syncs)  # type: ignore[arg-type]
    weights, tables = partial(random_weight, 1, ""), Tables(model, Part())
    sample = torch.randn(2, 16, 32)

    def run(sizes: Sizes, shard: Shard) -> tuple[torch.Tensor, torch.Tensor]:
        layer = Layer(transformer_layer, sizes, shard, weights, tables)
        x = sample.clone().requires_grad_()
        out = layer(x)
        (gradient,) = torch.autograd.grad(out.square().sum(), x)
        return out.detach(), gradient

    def on_rank(index: int, group: dist.ProcessGroup) -> tuple[torch.Tensor, torch.Tensor]:
        return run(sizes, Shard(index=index, parts=tp, group=group))

    layout = Parallelism(pp=1, tp=tp, dp=1, micro_batch=2, micro_batches=1)
    sizes = Sizes(model=model, layout=layout)
    expected = run(Sizes.alone(model, kind=DENSE), Shard())
    for found in of_every_rank(tp, on_rank):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("rotary", [True, False])
def test_every_kind_of_attention_computes_the_same(rotary: bool) -> None:
    """Four heads in two groups, causal: only the kernels differ."""
    outputs = []
    x = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(3))
    for attention in ("flash", "unfused"):
        model = replace(MODEL, attention=attention, kv_heads=2, rotary=rotary)  # type: ignore[arg-type]
        layer = Layer(
            transformer_layer, Sizes.alone(model, micro_batch=2), Shard(), partial(random_weight, 1, ""),
            Tables(model, Part()),
        )  # fmt: skip
        outputs.append(layer(x))
        outputs[-1].square().mean().backward()
        assert all(parameter.grad is not None for parameter in layer.parameters())
    for other in outputs[1:]:
        torch.testing.assert_close(other, outputs[0], rtol=1e-4, atol=1e-6)
