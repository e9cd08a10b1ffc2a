"""Linear operators: the products alone, and the bias that some models add to them."""

import torch.nn.functional as F

from kernelcast.collector.benches.bench import Bench, Place
from kernelcast.collector.functions.transformer import add_bias
from kernelcast.runtime.operators import OPERATORS, Shape


def _product(rows: int, columns_in: int, columns_out: int, place: Place) -> Bench:
    x, weight = place.activation(rows, columns_in), place.parameter(columns_out, columns_in)
    return Bench(lambda: F.linear(x, weight), [x], [weight])


def qkv_linear(s: Shape, place: Place) -> Bench:
    """Projection to queries, keys and values, grouped widths as the shape says."""
    return _product(s.tokens, s.hidden_size, s.qkv_width // s.tensor_parallel, place)


def attention_output_linear(s: Shape, place: Place) -> Bench:
    """Row-parallel projection of the attention's output."""
    return _product(s.tokens, s.attention_width // s.tensor_parallel, s.hidden_size, place)


def mlp_up_linear(s: Shape, place: Place) -> Bench:
    """Column-parallel projection to the MLP's width."""
    return _product(s.tokens, s.hidden_size, s.local_mlp_size, place)


def mlp_gate_up_linear(s: Shape, place: Place) -> Bench:
    """Gate and up projections of a gated MLP, one product."""
    return _product(s.tokens, s.hidden_size, 2 * s.local_mlp_size, place)


def mlp_down_linear(s: Shape, place: Place) -> Bench:
    """Row-parallel projection back."""
    return _product(s.tokens, s.local_mlp_size, s.hidden_size, place)


def logits_linear(s: Shape, place: Place) -> Bench:
    """Column-parallel projection to the local vocabulary."""
    return _product(s.tokens, s.hidden_size, s.local_vocabulary, place)


def bias_add(s: Shape, place: Place) -> Bench:
    """The bias of any linear, at the sizes of its output."""
    rows, columns = OPERATORS["bias_add"].workload(s)
    x, bias = place.activation(rows, columns), place.parameter(columns)
    return Bench(lambda: add_bias(x, bias), [x], [bias])
