"""Predicted memory against what torch really holds: stages that train on this CPU, every allocation counted."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.profiler import ProfilerActivity, profile

from kernelcast.collector.training.groups import Shard
from kernelcast.collector.training.job import TrainingJob
from kernelcast.collector.training.model import Chunk
from kernelcast.runtime import ModelConfig, Parallelism
from kernelcast.runtime.memory.stages import stage_memory
from kernelcast.runtime.pipeline.schedules import Kind, stage_orders
from kernelcast.runtime.step.sizes import padded_vocabulary
from tests.collector.training.plain_models import AnyStage


def peak_bytes(work: Callable[[], object]) -> int:
    """Most bytes that CPU tensors made during `work` held at once; what `work` returns is still alive at the end.

    Tensors from before do not count. torch's own total is not used: it may take a block from before for a newer one.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = work()
    del result
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    alive: dict[int, int] = {}
    held = most = 0
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: float(e["ts"])):
        account = event["args"]
        if account["Device Type"] != 0:  # torch's number of the CPU
            continue
        if account["Bytes"] > 0:
            alive[account["Addr"]] = account["Bytes"]
            held += account["Bytes"]
            most = max(most, held)
        else:
            held -= alive.pop(account["Addr"], 0)
    return most


def torch_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss whose memory is predicted: torch's own."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def training(
    model: ModelConfig, layout: Parallelism, index: int, *, dtype: str = "float32"
) -> Callable[[], object]:
    """Two updates of stage `index`, its passes in the order of the schedule; neighbours are random tensors.

    With bfloat16, weights have fp32 copies that Adam runs on, as in mixed precision.
    """

    def work() -> object:
        torch.manual_seed(1)
        element = getattr(torch, dtype)
        vocabulary = int(padded_vocabulary(model.vocabulary_size, 1))
        stage = AnyStage(model, layout, index, vocabulary_size=vocabulary).to(element)
        parameters = [p for p in stage.parameters() if p.numel()]
        update = _update(parameters)
        for _ in range(2):
            # Gradients stay where they are, as in the buffers of frameworks that train on many devices.
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.zero_()
            _passes(model, layout, index, stage, element)
            update()
        return stage, update

    return work


def _update(parameters: list[nn.Parameter]) -> Callable[[], None]:
    """Adam; in mixed precision on fp32 copies, one parameter at a time, whose fp32 gradient is then dropped."""
    if parameters[0].dtype == torch.float32:
        optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
        return lambda: optimizer.step() and None
    masters = [parameter.detach().float() for parameter in parameters]
    optimizers = [torch.optim.AdamW([master], lr=1e-4, fused=True) for master in masters]

    def update() -> None:
        for master, parameter, one in zip(masters, parameters, optimizers, strict=True):
            master.grad = parameter.grad.float()
            one.step()
            master.grad = None
            with torch.no_grad():
                parameter.copy_(master)

    return update


def _passes(
    model: ModelConfig, layout: Parallelism, index: int, stage: AnyStage, element: torch.dtype
) -> None:
    size = (layout.micro_batch, model.sequence_length)
    alive = {}
    for one in stage_orders(layout.schedule, layout.pp, layout.micro_batches)[index]:
        if one.kind is Kind.FORWARD:
            if index == 0:
                x = torch.randint(model.vocabulary_size, size)
            else:
                x = torch.randn(*size, model.hidden_size, dtype=element, requires_grad=True)
            out = stage(x)
            if index == layout.pp - 1:
                loss = torch_loss(out.float(), torch.randint(model.vocabulary_size, size))
                alive[one.micro_batch] = loss, out
            else:
                # The output is freed, as if it had been sent; its place in the graph stays.
                alive[one.micro_batch] = get_gradient_edge(out), None
            del out, x
        elif one.kind is Kind.BACKWARD:
            root, kept = alive.pop(one.micro_batch)
            gradient = None
            if index < layout.pp - 1:
                gradient = torch.randn(*size, model.hidden_size, dtype=element)
            torch.autograd.backward(root, gradient)
            del root, kept, gradient


GPT: dict[str, Any] = {
    "name": "small",
    "hidden_size": 128,
    "sequence_length": 128,
    "attention_heads": 4,
    "layers": 4,
    "vocabulary_size": 1000,
}
LLAMA = GPT | {"norm": "rms_norm", "activation": "swiglu", "mlp_size": 344}
SOFTMAX = GPT | {"sequence_length": 256, "attention": "fused_softmax"}
GPT_2 = GPT | {"rotary": False, "tied_embeddings": True, "learned_positions": 256}
NEOX = GPT | {"parallel_residual": True}
LONG = GPT | {"layers": 7}
WIDE = GPT | {"hidden_size": 512}
MANY_WORDS = GPT | {"vocabulary_size": 20000}

ONE: dict[str, Any] = {"pp": 1, "tp": 1, "dp": 1, "micro_batch": 4, "micro_batches": 2}
SINGLE = ONE | {"micro_batch": 1}
THREE = ONE | {"pp": 3, "micro_batches": 6}
TWO = ONE | {"pp": 2, "micro_batches": 4}
FULL, SELECTIVE = {"recompute": "full"}, {"recompute": "selective"}


@pytest.mark.parametrize(
    ("model", "layout", "index", "options"),
    [
        pytest.param(GPT, ONE, 0, {}, id="gpt"),
        pytest.param(GPT, ONE | FULL, 0, {}, id="gpt, full recomputation"),
        pytest.param(GPT, ONE | {"dropout": 0.1}, 0, {}, id="gpt, dropout"),
        pytest.param(GPT, ONE, 0, {"dtype": "bfloat16"}, id="gpt, bfloat16"),
        pytest.param(GPT, ONE | FULL, 0, {"dtype": "bfloat16"}, id="gpt, bfloat16, full recomputation"),
        pytest.param(GPT_2, ONE, 0, {}, id="gpt2: learned positions, tied"),
        pytest.param(NEOX, ONE, 0, {}, id="neox: parallel residual"),
        pytest.param(LLAMA, ONE, 0, {}, id="llama"),
        pytest.param(LLAMA, ONE | FULL, 0, {}, id="llama, full recomputation", marks=pytest.mark.slow),
        pytest.param(LLAMA | {"kv_heads": 2}, ONE, 0, {}, id="llama, grouped queries"),
        pytest.param(LLAMA, ONE, 0, {"dtype": "bfloat16"}, id="llama, bfloat16", marks=pytest.mark.slow),
        pytest.param(GPT | {"head_size": 64}, ONE, 0, {}, id="wide heads"),
        pytest.param(SOFTMAX, SINGLE, 0, {}, id="softmax"),
        pytest.param(SOFTMAX, SINGLE | SELECTIVE, 0, {}, id="softmax, selective recomputation"),
        pytest.param(SOFTMAX, SINGLE | FULL, 0, {}, id="softmax, full recomputation"),
        pytest.param(
            SOFTMAX,
            SINGLE | SELECTIVE | {"recompute_modules": ("core_attn", "mlp")},
            0,
            {},
            id="attention and MLP again",
        ),
        pytest.param(
            LLAMA, SINGLE | SELECTIVE | {"recompute_modules": ("mlp",)}, 0, {}, id="llama, MLP again"
        ),
        pytest.param(GPT, ONE | FULL | {"recompute_layers": 3}, 0, {}, id="gpt, 3 of 4 layers again"),
        pytest.param(SOFTMAX | {"rotary": False}, SINGLE | {"dropout": 0.1}, 0, {}, id="softmax, dropout"),
        pytest.param(SOFTMAX | LLAMA | {"kv_heads": 1}, SINGLE, 0, {}, id="softmax, grouped queries"),
        pytest.param(LONG, THREE, 0, {}, id="1f1b, first stage"),
        pytest.param(LONG, THREE, 1, {}, id="1f1b, middle stage"),
        pytest.param(LONG, THREE | FULL, 1, {}, id="1f1b, middle stage, full recomputation"),
        pytest.param(LONG, THREE, 2, {}, id="1f1b, last stage"),
        pytest.param(GPT, TWO | {"schedule": "gpipe"}, 0, {}, id="gpipe, first stage"),
        pytest.param(GPT, TWO | {"schedule": "gpipe"}, 1, {}, id="gpipe, last stage"),
        pytest.param(MANY_WORDS, TWO | FULL, 0, {}, id="an embedding larger than all else"),
        pytest.param(WIDE, SINGLE, 0, {}, id="weights larger than activations"),
    ],
)
def test_measured_peak(
    model: dict[str, Any], layout: dict[str, Any], index: int, options: dict[str, Any]
) -> None:
    config, parallelism = ModelConfig(**model), Parallelism(**layout)
    measured = peak_bytes(training(config, parallelism, index, **options))
    predicted = stage_memory(config, parallelism, is_cpu=True, **{"dtype": "float32"} | options)[index]
    # Wanted are 10 %; what is left out are small temporaries, and they stay below this.
    assert predicted.total_bytes == pytest.approx(measured, rel=0.025)


MIXTURE = LLAMA | {"biases": "none", "experts": 8, "experts_per_token": 2, "expert_size": 96}
SHARED = {"shared_expert_size": 64, "dense_layers": 1, "experts_per_token": 4}


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(GPT, id="gpt"),
        pytest.param(MIXTURE, id="mixture"),
        pytest.param(MIXTURE | SHARED, id="mixture, shared experts after a dense layer"),
    ],
)
def test_the_model_that_real_steps_train(fields: dict[str, Any]) -> None:
    model = ModelConfig(**fields)

    def steps() -> object:
        stage = Chunk(TrainingJob(model=model, parallelism=Parallelism(**ONE)), 0, Shard())
        optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-4, fused=True)
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            for _ in range(2):
                logits = stage(torch.randint(1000, (4, 128)))
                torch_loss(logits, torch.randint(1000, (4, 128))).backward()
            optimizer.step()
        return stage, optimizer

    predicted = stage_memory(model, Parallelism(**ONE), dtype="float32", is_cpu=True)[0]
    assert predicted.total_bytes == pytest.approx(peak_bytes(steps), rel=0.025)


def test_the_peak_is_what_was_alive_at_once() -> None:
    def work() -> object:
        first = torch.zeros(1000, dtype=torch.float64)
        torch.zeros(5000, dtype=torch.float64)
        second = torch.zeros(3000, dtype=torch.float64)
        return first, second

    assert peak_bytes(work) == 8 * 6000


def test_memory_from_before_does_not_count() -> None:
    # Twice: what the first account saw is released outside of it, and its places are used again.
    for _ in range(2):
        before = [torch.zeros(1000) for _ in range(20)]

        def work(before: list[Tensor] = before) -> object:
            made = torch.zeros(500)
            before.clear()
            return made, torch.zeros(100)

        assert peak_bytes(work) == 4 * 600
