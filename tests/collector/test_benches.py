"""Every operator's bench runs forward and backward, on tensors of the sizes that its workload vector gives."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernelcast.collector.benches import BENCHES, Bench, Place, Point, UnsupportedError
from kernelcast.collector.benches.attention import _visible_mask
from kernelcast.collector.benches.optimizer import stage_tensors
from kernelcast.collector.communication.collectives import COLLECTIVES
from kernelcast.collector.plans.workloads import columns_of
from kernelcast.runtime.operators import OPERATORS, Direction

ALONE = [op.name for op in OPERATORS.values() if not (op.is_collective or op.is_on_request)]
COLUMNS = [column for name in ALONE for column in columns_of(name)]
RUNNABLE = [column for column in COLUMNS if column[0] != "fused_causal_softmax"]
Asked = Callable[..., Point]


def built(point: Point, place: Place) -> Bench:
    return BENCHES[point.operator](point, place)


def sizes(tensors: Sequence[Tensor]) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tensors]


def test_every_operator_has_a_bench_or_a_collective() -> None:
    assert sorted(BENCHES) == sorted(ALONE)
    assert set(COLLECTIVES) == {op.name for op in OPERATORS.values() if op.is_collective}


def test_every_role_of_the_table_is_called() -> None:
    # No layer predicts further tokens yet; plans have gated experts, and those without a gate are the same products.
    apart = {("gemm", "next_token"), ("grouped_gemm", "experts_up")}
    # Adapters are a layout's: their products have shapes that other linears have too.
    apart |= {("gemm", "adapter_down"), ("gemm", "adapter_up")}
    # No plan has shapes of recurrent layers or experts in a latent space yet.
    apart |= {("gemm", name) for name in ("recurrent_in", "recurrent_out", "latent_down", "latent_up")}
    assert set(COLUMNS) == {(name, role) for name in ALONE for role in OPERATORS[name].roles} - apart


@pytest.mark.parametrize(("name", "role"), RUNNABLE)
def test_runs_and_gives_gradients_to_all_inputs(name: str, role: str, asked: Asked, cpu: Place) -> None:
    bench = built(asked(name, role), cpu)
    bench.prepare()
    for tensor in bench.parameters:
        assert tensor.grad is not None
        assert not tensor.grad.any()
    for _ in range(2):
        bench.reset()
        assert all(tensor.grad is None for tensor in bench.activations)
        outputs = bench.outputs()
        assert all(output.isfinite().all() for output in outputs)
        if OPERATORS[name].backward:
            assert len(bench.output_gradients) == len([out for out in outputs if out.ndim])
            for direction in OPERATORS[name].backward:
                bench.backward(outputs, direction)
            for tensor in [*bench.activations, *bench.parameters]:
                assert tensor.grad is not None
                assert tensor.grad.any(), tuple(tensor.shape)


@pytest.mark.parametrize(("name", "role"), RUNNABLE)
def test_the_same_sizes_twice(name: str, role: str, asked: Asked, cpu: Place) -> None:
    first, second = built(asked(name, role), cpu), built(asked(name, role), cpu)
    assert sizes([*first.activations, *first.parameters]) == sizes([*second.activations, *second.parameters])


@pytest.mark.parametrize("role", [role for name, role in COLUMNS if name == "gemm"])
def test_a_linear_is_its_product(role: str, asked: Asked, cpu: Place) -> None:
    point = asked("gemm", role)
    m, k, n = point.vector
    bench = built(point, cpu)
    assert sizes(bench.activations) == [(m, k)]
    assert sizes(bench.parameters) == [(n, k)]
    assert sizes(bench.outputs()) == [(m, n)]


class _Calls(TorchDispatchMode):
    """Notes the tensor functions that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))

    @property
    def kernels(self) -> list[str]:
        return [n for n in self.names if n not in ("view", "view_as", "detach", "squeeze", "t", "transpose")]


def test_the_two_products_of_a_linears_backward_run_apart(cpu: Place) -> None:
    bench = built(Point(operator="gemm", vector=(6, 4, 5)), cpu)
    bench.prepare()
    (x,), (weight,) = bench.activations, bench.parameters
    assert weight.grad is not None
    weight.grad.fill_(1.0)
    outputs = bench.outputs()
    with _Calls() as calls:
        bench.backward(outputs, Direction.INPUT_GRADIENT)
    assert calls.kernels == ["mm"]
    assert (weight.grad == 1.0).all()
    torch.testing.assert_close(x.grad, bench.output_gradients[0] @ weight)
    with _Calls() as calls:
        bench.backward(outputs, Direction.WEIGHT_GRADIENT)
    assert calls.kernels == ["mm", "add_"]
    torch.testing.assert_close(weight.grad, 1.0 + bench.output_gradients[0].T @ x)


# [b, l, d] and the like: one input that is as large as the product of the vector.
ELEMENTWISE = ("layer_norm", "rms_norm", "causal_mask_fill", "softmax", "gelu", "cross_entropy")


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_elementwise_input_is_its_vector(name: str, asked: Asked, cpu: Place) -> None:
    point = asked(name)
    bench = built(point, cpu)
    assert sizes(bench.activations) == [point.vector]
    assert sizes(bench.outputs()) == [() if name == "cross_entropy" else point.vector]


def test_residual_add_has_two_inputs_and_sends_the_stream_on(asked: Asked, cpu: Place) -> None:
    point = asked("residual_add")
    bench = built(point, cpu)
    assert sizes(bench.activations) == [point.vector] * 2
    total, stream = bench.outputs()
    x, branch = bench.activations
    assert torch.equal(total, x + branch)
    assert torch.equal(stream, x)


def test_swiglu_takes_gate_and_up_halves(asked: Asked, cpu: Place) -> None:
    b, length, width = asked("swiglu").vector
    bench = built(asked("swiglu"), cpu)
    assert sizes(bench.activations) == [(b, length, 2 * width)]
    assert sizes(bench.outputs()) == [(b, length, width)]


def test_embedding(asked: Asked, cpu: Place) -> None:
    tokens, vocabulary, d = asked("embedding").vector
    bench = built(asked("embedding"), cpu)
    assert sizes(bench.parameters) == [(vocabulary, d)]
    (out,) = bench.outputs()
    assert out.shape[-1] == d
    assert math.prod(out.shape[:-1]) == tokens


@pytest.mark.parametrize("role", OPERATORS["batched_gemm"].roles)
def test_products_per_head(role: str, asked: Asked, cpu: Place) -> None:
    point = asked("batched_gemm", role)
    batch, m, k, n = point.vector
    bench = built(point, cpu)
    # Of attention scores the keys lie as the queries do.
    second = (batch, n, k) if role == "attention_scores" else (batch, k, n)
    assert sizes(bench.activations) == [(batch, m, k), second]
    assert sizes(bench.outputs()) == [(batch, m, n)]


def test_attention_operators(asked: Asked, cpu: Place) -> None:
    b, length, heads, kv_heads, head_size = asked("flash_attention").vector
    assert heads == kv_heads
    for name in ("rope", "flash_attention"):
        bench = built(asked(name), cpu)
        assert set(sizes(bench.activations)) == {(b, length, heads, head_size)}
    assert sizes(built(asked("flash_attention"), cpu).outputs()) == [(b, length, heads * head_size)]


def test_fewer_keys_and_values_serve_groups_of_queries(cpu: Place) -> None:
    bench = built(Point(operator="flash_attention", vector=(2, 6, 4, 2, 8)), cpu)
    query, key, value = bench.activations
    assert sizes([query, key, value]) == [(2, 6, 4, 8), (2, 6, 2, 8), (2, 6, 2, 8)]
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key.repeat_interleave(2, 2)) / 8**0.5
    scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), float("-inf"))
    expected = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), value.repeat_interleave(2, 2)).flatten(2)
    torch.testing.assert_close(bench.outputs(), (expected,))
    rope = built(Point(operator="rope", vector=(2, 6, 4, 2, 8)), cpu)
    assert sizes(rope.activations) == [(2, 6, 4, 8), (2, 6, 2, 8)]


def test_an_optimizer_step_changes_every_parameter(asked: Asked, cpu: Place) -> None:
    point = asked("adam", "last_stage")
    bench = built(point, cpu)
    assert sum(tensor.numel() for tensor in bench.parameters) == point.vector[0]
    for tensor in bench.parameters:
        assert tensor.grad is not None
        tensor.grad.fill_(1.0)
    before = [tensor.detach().clone() for tensor in bench.parameters]
    assert bench.outputs() == ()
    assert all((a != b).all() for a, b in zip(before, bench.parameters, strict=True))


@pytest.mark.parametrize(
    ("parameters", "layers", "tensors"),
    [
        (999, 0, [(999,)]),
        (20, 4, [(20,)]),  # not even a layer of one
        (3 * (12 * 64 * 64 + 13 * 64), 3, None),
        (2 * (12 * 64 * 64 + 13 * 64) + 500 * 64, 2, None),
        (12_345_677, 5, None),
    ],
)
def test_the_tensors_of_a_stage_add_up(
    parameters: int, layers: int, tensors: list[tuple[int, ...]] | None
) -> None:
    found = stage_tensors(parameters, layers)
    assert sum(map(math.prod, found)) == parameters
    if tensors is not None:
        assert found == tensors
        return
    of_layers = found[: 12 * layers]
    assert len(found) - len(of_layers) <= 1
    assert sum(map(math.prod, of_layers)) > 0.8 * parameters
    assert all(size % 8 == 0 for shape in of_layers for size in shape)


def test_a_stage_of_whole_layers_has_their_tensors() -> None:
    found = stage_tensors(3 * (12 * 64 * 64 + 13 * 64), 3)
    assert len(found) == 3 * 12
    assert {(192, 64), (64, 64), (256, 64), (64, 256)} <= set(found)


def test_what_a_cpu_lacks_is_a_reason(asked: Asked, cpu: Place) -> None:
    with pytest.raises(UnsupportedError, match="no fused scale-mask-softmax kernel on device type 'cpu'"):
        built(asked("fused_causal_softmax"), cpu)


DTYPES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize(("name", "role"), RUNNABLE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_runs_in_16_bit(name: str, role: str, dtype: torch.dtype, asked: Asked) -> None:
    bench = built(asked(name, role), Place(torch.device("cpu"), dtype))
    bench.prepare()
    outputs = bench.outputs()
    assert all(output.isfinite().all() for output in outputs)
    for direction in OPERATORS[name].backward:
        bench.backward(outputs, direction)
    if OPERATORS[name].backward:
        for tensor in [*bench.activations, *bench.parameters]:
            assert tensor.grad is not None
            assert tensor.grad.dtype == dtype


def test_a_bias_is_added_and_its_gradient_summed(asked: Asked, cpu: Place) -> None:
    rows, columns = asked("bias_add").vector
    bench = built(asked("bias_add"), cpu)
    (x,), (bias,) = bench.activations, bench.parameters
    assert sizes([x, bias]) == [(rows, columns), (columns,)]
    bench.prepare()
    (out,) = bench.outputs()
    assert torch.equal(out, x + bias)
    bench.backward((out,))
    assert bias.grad is not None
    torch.testing.assert_close(bias.grad, bench.output_gradients[0].sum(0))


@pytest.mark.parametrize(("name", "kernels"), [("residual_add", ["add"]), ("bias_add", ["sum", "add_"])])
def test_gradients_are_handed_on_without_a_copy(
    name: str, kernels: list[str], asked: Asked, cpu: Place
) -> None:
    bench = built(asked(name), cpu)
    bench.prepare()
    outputs = bench.outputs()
    with _Calls() as calls:
        bench.backward(outputs)
    assert calls.kernels == kernels


@pytest.mark.parametrize("columns", [96, 80])
def test_queries_keys_and_values_are_views_whose_gradients_lie_side_by_side(columns: int, cpu: Place) -> None:
    bench = built(Point(operator="qkv_split", vector=(6, columns)), cpu)
    (fused,) = bench.activations
    assert sizes([fused]) == [(1, 6, columns)]
    bench.prepare()
    outputs = bench.outputs()
    assert len(outputs) == 3
    assert sum(out.numel() for out in outputs) == fused.numel()
    assert all(out.data_ptr() >= fused.data_ptr() and out._base is not None for out in outputs)
    bench.backward(outputs)
    assert fused.grad is not None
    assert torch.equal(fused.grad, torch.cat([g.flatten(2) for g in bench.output_gradients], dim=-1))


def test_keys_that_a_query_sees(cpu: Place) -> None:
    """The requested number, on average; above a causal mask's mean the first ones, for every query alike."""
    for keys, visible, expected in (
        (8, 8, None), (7, 7, None), (8, 5, [5] * 8), (7, 5, [5] * 7),
        (8, 4, [1, 2, 3, 4, 5, 6, 6, 6]), (7, 4, [1, 2, 3, 4, 5, 6, 7]), (8, 2, [1] + [2] * 7), (8, 1, [1] * 8),
    ):  # fmt: skip
        mask = _visible_mask(keys, keys, visible, cpu)
        assert (None if mask is None else mask.sum(1).tolist()) == expected, (keys, visible)


def test_rows_of_other_shards_are_masked(asked: Asked, cpu: Place) -> None:
    bench = built(asked("embedding_mask"), cpu)
    (x,) = bench.activations
    (out,) = bench.outputs()
    masked = (out == 0).all(-1)
    assert masked.any()
    assert torch.equal(out[~masked], x[~masked])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("name", "role"), COLUMNS)
def test_runs_on_a_gpu(name: str, role: str, asked: Asked) -> None:
    bench = built(asked(name, role), Place(torch.device("cuda"), torch.bfloat16))
    bench.prepare()
    outputs = bench.outputs()
    for direction in OPERATORS[name].backward:
        bench.backward(outputs, direction)
    torch.cuda.synchronize()


def test_a_bench_with_one_output_gives_a_tuple() -> None:
    x = torch.ones(2, requires_grad=True)
    bench = Bench(lambda: x * 2, [x])
    bench.prepare()
    bench.backward(bench.outputs())
    assert x.grad is not None
    assert torch.equal(x.grad, 2 * bench.output_gradients[0])


def test_a_grouped_product_is_one_per_group(cpu: Place) -> None:
    bench = built(Point(operator="grouped_gemm", vector=(3, 4, 5, 6)), cpu)
    bench.prepare()
    (x,), (weight,) = bench.activations, bench.parameters
    (out,) = bench.outputs()
    expected = torch.cat([rows @ own.T for rows, own in zip(x.split(4), weight, strict=True)])
    torch.testing.assert_close(out, expected)
    bench.backward((out,), Direction.INPUT_GRADIENT)
    assert weight.grad is not None
    assert not weight.grad.any()
    bench.backward((out,), Direction.WEIGHT_GRADIENT)
    by_hand = torch.stack(
        [g.T @ rows for g, rows in zip(bench.output_gradients[0].split(4), x.split(4), strict=True)]
    )
    torch.testing.assert_close(weight.grad, by_hand)


@pytest.mark.parametrize(("visible", "see_the_first"), [(8, 8), (6, 8), (4, 6), (2, 2)])
def test_a_block_of_attention_sees_as_many_keys(visible: int, see_the_first: int, cpu: Place) -> None:
    """8 queries and keys: all, the first six, or windows of 6 and 2, through which 4.1 and 1.9 are seen in the mean."""
    bench = built(Point(operator="attention_block", vector=(1, 8, 8, visible, 2, 1, 4)), cpu)
    _, key, value = bench.activations
    with torch.no_grad():
        key.zero_()  # scores are equal: a query takes the mean of the values that it sees
        value.copy_(torch.eye(8)[None, :, None, :4])
    (out,) = bench.outputs()
    assert int((out[0, :, 0] > 0).sum()) == see_the_first
    if visible == 8:
        torch.testing.assert_close(out, torch.full_like(out, 1 / 8))


@pytest.mark.parametrize(("k", "n"), [(8, 12), (5, 6)])
def test_a_product_of_any_width(k: int, n: int, cpu: Place) -> None:
    # torch's grouped product takes rows of whole 16 bytes; others run one by one.
    bench = built(Point(operator="grouped_gemm", vector=(3, 4, k, n)), cpu)
    (x,), (weight,) = bench.activations, bench.parameters
    (out,) = bench.outputs()
    torch.testing.assert_close(out[4:8], x[4:8] @ weight[1].T)
