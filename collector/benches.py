"""One runnable bench per operator of runtime/operators.py: the torch call a training framework makes, and its inputs.

A bench is built from a `Shape`; the same shape gives the workload vector, so a measurement cannot carry a vector that
it did not run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelcast.collector.layers import causal_attention, rotary_tables, rotate, token_loss
from kernelcast.collector.stage_parameters import stage_parameter_shapes
from kernelcast.runtime.operators import Shape


class UnsupportedError(Exception):
    """This device cannot run the operator; the message says why and is stored with the sample."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where and in which precision a bench runs."""

    device: torch.device
    dtype: torch.dtype

    def activation(self, *size: int) -> Tensor:
        """A random input that asks for a gradient."""
        return torch.randn(size, device=self.device, dtype=self.dtype).requires_grad_()

    def parameter(self, *size: int) -> Tensor:
        """A small random weight whose gradient is already there, as from the second micro-batch on."""
        weight = (torch.randn(size, device=self.device, dtype=self.dtype) * 0.02).requires_grad_()
        weight.grad = torch.zeros_like(weight)
        return weight

    def indices(self, high: int, *size: int) -> Tensor:
        """Random integers below `high`."""
        return torch.randint(high, size, device=self.device)


@dataclass(frozen=True, slots=True)
class Bench:
    """`forward` returns the outputs; the gradients `grads` then flow back to `activations` and `parameters`."""

    forward: Callable[[], Tensor | tuple[Tensor, ...]]
    activations: Sequence[Tensor] = ()
    parameters: Sequence[Tensor] = ()
    output_gradients: list[Tensor] = field(default_factory=list)

    def outputs(self) -> tuple[Tensor, ...]:
        """Run forward once; one output is a tuple of one."""
        result = self.forward()
        return result if isinstance(result, tuple) else (result,)

    def backward(self, outputs: tuple[Tensor, ...]) -> None:
        """Run backward once. Gradients of the outputs are made before any timing: no loss kernel is counted."""
        torch.autograd.backward(
            outputs, self.output_gradients or None, inputs=[*self.activations, *self.parameters]
        )

    def prepare(self) -> None:
        """Make the gradients of the outputs; a scalar output (the loss) is differentiated as it is."""
        self.output_gradients.extend(torch.randn_like(out) for out in self.outputs() if out.ndim > 0)

    def reset(self) -> None:
        """Forget the inputs' gradients, as a step does; the parameters' stay and are added to."""
        for tensor in self.activations:
            tensor.grad = None


Builder = Callable[[Shape, Place], Bench]


def _linear(rows: int, columns_in: int, columns_out: int, place: Place) -> Bench:
    x = place.activation(rows, columns_in)
    weight, bias = place.parameter(columns_out, columns_in), place.parameter(columns_out)
    return Bench(lambda: F.linear(x, weight, bias), [x], [weight, bias])


def _qkv_linear(s: Shape, place: Place) -> Bench:
    width = (s.attention_heads + 2 * s.kv_heads) * s.head_size // s.tensor_parallel
    return _linear(s.tokens, s.hidden_size, width, place)


def _attention_output_linear(s: Shape, place: Place) -> Bench:
    return _linear(s.tokens, s.hidden_size // s.tensor_parallel, s.hidden_size, place)


def _mlp_up_linear(s: Shape, place: Place) -> Bench:
    return _linear(s.tokens, s.hidden_size, s.local_mlp_size, place)


def _mlp_gate_up_linear(s: Shape, place: Place) -> Bench:
    return _linear(s.tokens, s.hidden_size, 2 * s.local_mlp_size, place)


def _mlp_down_linear(s: Shape, place: Place) -> Bench:
    return _linear(s.tokens, s.local_mlp_size, s.hidden_size, place)


def _logits_linear(s: Shape, place: Place) -> Bench:
    # Output projections have no bias in the models that the method describes.
    x, weight = place.activation(s.tokens, s.hidden_size), place.parameter(s.local_vocabulary, s.hidden_size)
    return Bench(lambda: F.linear(x, weight), [x], [weight])


def _embedding(s: Shape, place: Place) -> Bench:
    ids = place.indices(s.local_vocabulary, s.micro_batch, s.sequence_length)
    weight = place.parameter(s.local_vocabulary, s.hidden_size)
    return Bench(lambda: F.embedding(ids, weight), [], [weight])


def _layer_norm(s: Shape, place: Place) -> Bench:
    x = place.activation(s.micro_batch, s.sequence_length, s.hidden_size)
    weight, bias = place.parameter(s.hidden_size), place.parameter(s.hidden_size)
    return Bench(lambda: F.layer_norm(x, (s.hidden_size,), weight, bias), [x], [weight, bias])


def _rms_norm(s: Shape, place: Place) -> Bench:
    x, weight = (
        place.activation(s.micro_batch, s.sequence_length, s.hidden_size),
        place.parameter(s.hidden_size),
    )
    return Bench(lambda: F.rms_norm(x, (s.hidden_size,), weight), [x], [weight])


def _heads(s: Shape, place: Place) -> Tensor:
    return place.activation(s.micro_batch, s.sequence_length, s.local_heads, s.head_size)


def _rope(s: Shape, place: Place) -> Bench:
    query, key = _heads(s, place), _heads(s, place)
    cosine, sine = rotary_tables(s.sequence_length, s.head_size, device=place.device, dtype=place.dtype)
    return Bench(lambda: (rotate(query, cosine, sine), rotate(key, cosine, sine)), [query, key])


def _flash_attention(s: Shape, place: Place) -> Bench:
    query, key, value = _heads(s, place), _heads(s, place), _heads(s, place)
    if place.device.type == "cuda" and place.dtype == torch.float32:
        raise UnsupportedError("flash attention on CUDA needs fp16 or bf16, found fp32")
    return Bench(lambda: causal_attention(query, key, value), [query, key, value])


def _attention_scores(s: Shape, place: Place) -> Bench:
    heads = s.micro_batch * s.local_heads
    query = place.activation(heads, s.sequence_length, s.head_size)
    key = place.activation(heads, s.sequence_length, s.head_size)
    return Bench(lambda: torch.bmm(query, key.transpose(1, 2)), [query, key])


def _attention_values(s: Shape, place: Place) -> Bench:
    heads = s.micro_batch * s.local_heads
    weights = place.activation(heads, s.sequence_length, s.sequence_length)
    value = place.activation(heads, s.sequence_length, s.head_size)
    return Bench(lambda: torch.bmm(weights, value), [weights, value])


def _scores(s: Shape, place: Place) -> Tensor:
    return place.activation(s.micro_batch, s.local_heads, s.sequence_length, s.sequence_length)


def _masked_above_diagonal(s: Shape, place: Place) -> Tensor:
    return torch.ones(s.sequence_length, s.sequence_length, dtype=torch.bool, device=place.device).triu(1)


def _causal_mask_fill(s: Shape, place: Place) -> Bench:
    scores, mask = _scores(s, place), _masked_above_diagonal(s, place)
    lowest = torch.finfo(place.dtype).min
    return Bench(lambda: scores.masked_fill(mask, lowest), [scores])


def _softmax(s: Shape, place: Place) -> Bench:
    scores = _scores(s, place)
    return Bench(lambda: torch.softmax(scores, dim=-1), [scores])


def _fused_causal_softmax(s: Shape, place: Place) -> Bench:
    if place.device.type != "cuda":
        raise UnsupportedError(f"no fused scale-mask-softmax kernel on device type '{place.device.type}'")
    scores, mask = _scores(s, place).detach().flatten(0, 1).requires_grad_(), _masked_above_diagonal(s, place)
    scale, lowest = s.head_size**-0.5, torch.finfo(place.dtype).min
    fused = torch.compile(lambda x: torch.softmax((x * scale).masked_fill(mask, lowest), dim=-1))
    return Bench(lambda: fused(scores), [scores])


def _gelu(s: Shape, place: Place) -> Bench:
    x = place.activation(s.micro_batch, s.sequence_length, s.local_mlp_size)
    return Bench(lambda: F.gelu(x), [x])


def _swiglu(s: Shape, place: Place) -> Bench:
    both = place.activation(s.micro_batch, s.sequence_length, 2 * s.local_mlp_size)

    def forward() -> Tensor:
        gate, up = both.chunk(2, dim=-1)
        return F.silu(gate) * up

    return Bench(forward, [both])


def _residual_add(s: Shape, place: Place) -> Bench:
    # The stream x goes on into the next branch too, so backward adds two gradients into it, as in a real block.
    x = place.activation(s.micro_batch, s.sequence_length, s.hidden_size)
    branch = place.activation(s.micro_batch, s.sequence_length, s.hidden_size)
    return Bench(lambda: (x + branch, x.view_as(x)), [x, branch])


def _cross_entropy(s: Shape, place: Place) -> Bench:
    logits = place.activation(s.micro_batch, s.sequence_length, s.local_vocabulary)
    targets = place.indices(s.local_vocabulary, s.micro_batch, s.sequence_length)
    return Bench(lambda: token_loss(logits, targets), [logits])


def _optimizer(role: str) -> Builder:
    def build(s: Shape, place: Place) -> Bench:
        parameters = [place.parameter(*size) for size in stage_parameter_shapes(s, role)]
        optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)

        def step() -> tuple[Tensor, ...]:
            optimizer.step()
            return ()

        return Bench(step, [], parameters)

    return build


BENCHES: Mapping[str, Builder] = MappingProxyType(
    {
        "embedding": _embedding,
        "layer_norm": _layer_norm,
        "rms_norm": _rms_norm,
        "qkv_linear": _qkv_linear,
        "rope": _rope,
        "attention_scores": _attention_scores,
        "causal_mask_fill": _causal_mask_fill,
        "softmax": _softmax,
        "fused_causal_softmax": _fused_causal_softmax,
        "attention_values": _attention_values,
        "flash_attention": _flash_attention,
        "attention_output_linear": _attention_output_linear,
        "mlp_up_linear": _mlp_up_linear,
        "gelu": _gelu,
        "swiglu": _swiglu,
        "mlp_gate_up_linear": _mlp_gate_up_linear,
        "mlp_down_linear": _mlp_down_linear,
        "residual_add": _residual_add,
        "logits_linear": _logits_linear,
        "cross_entropy": _cross_entropy,
        "optimizer_first_stage": _optimizer("first"),
        "optimizer_middle_stage": _optimizer("middle"),
        "optimizer_last_stage": _optimizer("last"),
    }
)
"""Builder of every operator that one device runs alone; collectives are in comm.py."""
