"""Every operator's bench runs forward and backward, on tensors of the sizes that its workload vector says."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernelcast.collector.benches import BENCHES, Bench, Place, UnsupportedError
from kernelcast.collector.communication.collectives import COLLECTIVES
from kernelcast.runtime.operators import OPERATORS, Direction, OperatorClass, Shape

ALONE = [op.name for op in OPERATORS.values() if op.operator_class is not OperatorClass.COMMUNICATION]
RUNNABLE = [name for name in ALONE if name != "fused_causal_softmax"]


def vector(name: str, shape: Shape) -> dict[str, int]:
    return dict(zip(OPERATORS[name].features, OPERATORS[name].workload(shape), strict=True))


def sizes(tensors: Sequence[Tensor]) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tensors]


def test_every_operator_has_a_bench_or_a_collective() -> None:
    assert sorted(BENCHES) == sorted(ALONE)
    assert set(COLLECTIVES) == {op.collective for op in OPERATORS.values() if op.collective}


@pytest.mark.parametrize("name", RUNNABLE)
def test_runs_and_gives_gradients_to_all_inputs(name: str, shape: Shape, cpu: Place) -> None:
    bench = BENCHES[name](shape, cpu)
    bench.prepare()
    for tensor in bench.parameters:
        assert tensor.grad is not None
        assert not tensor.grad.any()
    for _ in range(2):
        bench.reset()
        assert all(tensor.grad is None for tensor in bench.activations)
        outputs = bench.outputs()
        assert all(output.isfinite().all() for output in outputs)
        if Direction.BACKWARD in OPERATORS[name].directions:
            assert len(bench.output_gradients) == len([out for out in outputs if out.ndim])
            bench.backward(outputs)
            for tensor in [*bench.activations, *bench.parameters]:
                assert tensor.grad is not None
                assert tensor.grad.any(), tuple(tensor.shape)


@pytest.mark.parametrize("name", RUNNABLE)
def test_the_same_sizes_twice(name: str, shape: Shape, cpu: Place) -> None:
    first, second = BENCHES[name](shape, cpu), BENCHES[name](shape, cpu)
    assert sizes([*first.activations, *first.parameters]) == sizes([*second.activations, *second.parameters])


LINEARS = [name for name in ALONE if name.endswith("_linear")]


@pytest.mark.parametrize("name", LINEARS)
def test_a_linear_is_its_product(name: str, shape: Shape, cpu: Place) -> None:
    m, k, n = OPERATORS[name].workload(shape)
    bench = BENCHES[name](shape, cpu)
    assert sizes(bench.activations) == [(m, k)]
    assert sizes(bench.parameters) == [(n, k)]
    assert sizes(bench.outputs()) == [(m, n)]


# [b, l, d] and the like: one input that is as large as the product of the vector.
ELEMENTWISE = ("layer_norm", "rms_norm", "causal_mask_fill", "softmax", "gelu", "cross_entropy")


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_elementwise_input_is_its_vector(name: str, shape: Shape, cpu: Place) -> None:
    bench = BENCHES[name](shape, cpu)
    assert sizes(bench.activations) == [OPERATORS[name].workload(shape)]
    assert sizes(bench.outputs()) == [() if name == "cross_entropy" else OPERATORS[name].workload(shape)]


def test_residual_add_has_two_inputs_and_sends_the_stream_on(shape: Shape, cpu: Place) -> None:
    bench = BENCHES["residual_add"](shape, cpu)
    assert sizes(bench.activations) == [OPERATORS["residual_add"].workload(shape)] * 2
    total, stream = bench.outputs()
    x, branch = bench.activations
    assert torch.equal(total, x + branch)
    assert torch.equal(stream, x)


def test_swiglu_takes_gate_and_up_halves(shape: Shape, cpu: Place) -> None:
    b, length, width = OPERATORS["swiglu"].workload(shape)
    bench = BENCHES["swiglu"](shape, cpu)
    assert sizes(bench.activations) == [(b, length, 2 * width)]
    assert sizes(bench.outputs()) == [(b, length, width)]


def test_embedding(shape: Shape, cpu: Place) -> None:
    tokens, vocabulary, d = OPERATORS["embedding"].workload(shape)
    bench = BENCHES["embedding"](shape, cpu)
    assert sizes(bench.parameters) == [(vocabulary, d)]
    (out,) = bench.outputs()
    assert out.shape[-1] == d
    assert math.prod(out.shape[:-1]) == tokens


def test_attention_operators(shape: Shape, cpu: Place) -> None:
    scores, values = vector("attention_scores", shape), vector("attention_values", shape)
    bench = BENCHES["attention_scores"](shape, cpu)
    assert sizes(bench.activations) == [
        (scores["batch_heads"], scores["l_query"], scores["head_size"]),
        (scores["batch_heads"], scores["l_key"], scores["head_size"]),
    ]
    assert sizes(bench.outputs()) == [(scores["batch_heads"], scores["l_query"], scores["l_key"])]
    bench = BENCHES["attention_values"](shape, cpu)
    assert sizes(bench.activations) == [
        (values["batch_heads"], values["l_query"], values["l_key"]),
        (values["batch_heads"], values["l_key"], values["head_size"]),
    ]
    for name in ("rope", "flash_attention"):
        bench = BENCHES[name](shape, cpu)
        assert set(sizes(bench.activations)) == {OPERATORS[name].workload(shape)}
    b, length, heads, head_size = OPERATORS["flash_attention"].workload(shape)
    assert sizes(BENCHES["flash_attention"](shape, cpu).outputs()) == [(b, length, heads * head_size)]


def test_grouped_queries_narrow_the_qkv_projection(cpu: Place) -> None:
    shape = Shape(micro_batch=1, sequence_length=4, hidden_size=32, attention_heads=4, kv_heads=2)
    assert OPERATORS["qkv_linear"].workload(shape) == (4, 32, (4 + 2 * 2) * 8)
    assert sizes(BENCHES["qkv_linear"](shape, cpu).outputs()) == [(4, 64)]


@pytest.mark.parametrize("role", ["first", "middle", "last"])
def test_an_optimizer_step_changes_every_parameter(role: str, shape: Shape, cpu: Place) -> None:
    bench = BENCHES[f"optimizer_{role}_stage"](shape, cpu)
    for tensor in bench.parameters:
        assert tensor.grad is not None
        tensor.grad.fill_(1.0)
    before = [tensor.detach().clone() for tensor in bench.parameters]
    assert bench.outputs() == ()
    assert all((a != b).all() for a, b in zip(before, bench.parameters, strict=True))


def test_what_a_cpu_lacks_says_so(shape: Shape, cpu: Place) -> None:
    with pytest.raises(UnsupportedError, match="no fused scale-mask-softmax kernel on device type 'cpu'"):
        BENCHES["fused_causal_softmax"](shape, cpu)


DTYPES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_runs_in_16_bit(name: str, dtype: torch.dtype, shape: Shape) -> None:
    bench = BENCHES[name](shape, Place(torch.device("cpu"), dtype))
    bench.prepare()
    outputs = bench.outputs()
    assert all(output.isfinite().all() for output in outputs)
    if Direction.BACKWARD in OPERATORS[name].directions:
        bench.backward(outputs)
        for tensor in [*bench.activations, *bench.parameters]:
            assert tensor.grad is not None
            assert tensor.grad.dtype == dtype


def test_a_bias_is_added_and_its_gradient_summed(shape: Shape, cpu: Place) -> None:
    bench = BENCHES["bias_add"](shape, cpu)
    rows, columns = OPERATORS["bias_add"].workload(shape)
    (x,), (bias,) = bench.activations, bench.parameters
    assert sizes([x, bias]) == [(rows, columns), (columns,)]
    bench.prepare()
    (out,) = bench.outputs()
    assert torch.equal(out, x + bias)
    bench.backward((out,))
    assert bias.grad is not None
    torch.testing.assert_close(bias.grad, bench.output_gradients[0].sum(0))


class _Calls(TorchDispatchMode):
    """Notes the tensor functions that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "kernels"), [("residual_add", ["add"]), ("bias_add", ["sum", "add_"])])
def test_gradients_are_handed_on_without_a_copy(
    name: str, kernels: list[str], shape: Shape, cpu: Place
) -> None:
    bench = BENCHES[name](shape, cpu)
    bench.prepare()
    outputs = bench.outputs()
    with _Calls() as calls:
        bench.backward(outputs)
    assert [call for call in calls.names if call not in ("view", "view_as", "detach", "squeeze")] == kernels


def test_queries_keys_and_values_are_views_whose_gradients_lie_side_by_side(cpu: Place) -> None:
    shape = Shape(micro_batch=2, sequence_length=3, hidden_size=32, attention_heads=4, kv_heads=2)
    bench = BENCHES["qkv_split"](shape, cpu)
    (fused,) = bench.activations
    assert (fused.shape[0] * fused.shape[1], fused.shape[2]) == OPERATORS["qkv_split"].workload(shape)
    bench.prepare()
    outputs = bench.outputs()
    assert sizes(outputs) == [(2, 3, 4, 8), (2, 3, 2, 8), (2, 3, 2, 8)]
    assert all(out.data_ptr() >= fused.data_ptr() and out._base is not None for out in outputs)
    bench.backward(outputs)
    assert fused.grad is not None
    assert torch.equal(fused.grad, torch.cat([g.flatten(2) for g in bench.output_gradients], dim=-1))


def test_fewer_keys_and_values_serve_groups_of_queries(cpu: Place) -> None:
    shape = Shape(micro_batch=2, sequence_length=6, hidden_size=32, attention_heads=4, kv_heads=2)
    bench = BENCHES["grouped_flash_attention"](shape, cpu)
    query, key, value = bench.activations
    assert OPERATORS["grouped_flash_attention"].workload(shape) == (2, 6, 4, 2, 8)
    assert sizes([query, key, value]) == [(2, 6, 4, 8), (2, 6, 2, 8), (2, 6, 2, 8)]
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key.repeat_interleave(2, 2)) / 8**0.5
    scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), float("-inf"))
    expected = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), value.repeat_interleave(2, 2)).flatten(2)
    torch.testing.assert_close(bench.outputs(), (expected,))
    assert sizes(BENCHES["grouped_rope"](shape, cpu).activations) == [(2, 6, 4, 8), (2, 6, 2, 8)]


def test_rows_of_other_shards_are_masked(shape: Shape, cpu: Place) -> None:
    bench = BENCHES["embedding_mask"](shape, cpu)
    (x,) = bench.activations
    (out,) = bench.outputs()
    masked = (out == 0).all(-1)
    assert masked.any()
    assert torch.equal(out[~masked], x[~masked])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ALONE)
def test_runs_on_a_gpu(name: str, shape: Shape) -> None:
    bench = BENCHES[name](shape, Place(torch.device("cuda"), torch.bfloat16))
    bench.prepare()
    outputs = bench.outputs()
    if Direction.BACKWARD in OPERATORS[name].directions:
        bench.backward(outputs)
    torch.cuda.synchronize()


def test_a_bench_with_one_output_gives_a_tuple() -> None:
    x = torch.ones(2, requires_grad=True)
    bench = Bench(lambda: x * 2, [x])
    bench.prepare()
    bench.backward(bench.outputs())
    assert x.grad is not None
    assert torch.equal(x.grad, 2 * bench.output_gradients[0])
