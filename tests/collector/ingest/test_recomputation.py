"""Activation checkpointing in real traces: what the backward pass computes again is told from both passes."""

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

from kernelcast.collector.ingest.run import ingest_traces
from kernelcast.store import Database
from kernelcast.store.trace_report import trace_report, traced_runs
from tests.collector.ingest.real_runs import Norm

BLOCK_GELUS, LAYERS = 2, 3


def ingested(folder: Path, again: str) -> Path:
    """The database of a traced step of three blocks with two GELUs each."""
    torch.manual_seed(0)
    linear, gelu = partial(torch.nn.Linear, 64, 64), torch.nn.GELU
    blocks = [torch.nn.Sequential(linear(), gelu(), linear(), gelu(), linear()) for _ in range(LAYERS)]
    x = torch.randn(256, 64, requires_grad=True)
    with (
        profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler,
        record_function("step 1"),
    ):
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=again == "reentrant") if "reentrant" in again else block(x)
        if again == "create_graph":
            torch.autograd.grad(
                x.square().mean(), list(torch.nn.ModuleList(blocks).parameters()), create_graph=True
            )
        else:
            x.square().mean().backward()
        for block in blocks:
            for parameter in block.parameters():
                parameter.data.add_(torch.ones_like(parameter), alpha=-0.1)
    profiler.export_chrome_trace(str(folder / "trace.json"))
    ingest_traces([folder / "trace.json"], folder / "traces.db")
    return folder / "traces.db"


@pytest.mark.parametrize("again", ["none", "reentrant", "non-reentrant", "create_graph"])
def test_recomputed_forward_passes_are_a_pass_of_their_own(tmp_path: Path, again: str) -> None:
    with Database.open(ingested(tmp_path, again)) as database:
        calls = Counter[tuple[str, str]]()
        for row in database.query("SELECT DISTINCT host_operator, direction, call FROM trace_event"):
            calls[row["host_operator"], row["direction"]] += 1
        report = trace_report(database, traced_runs(database)[0])
        [samples] = database.query(
            "SELECT sum(repetition_count) AS gelus FROM sample WHERE operator = 'gelu' AND direction = 'forward'"
        )
    gelus = BLOCK_GELUS * LAYERS
    is_again = "reentrant" in again
    assert calls["aten::gelu", "forward"] == calls["aten::gelu_backward", "backward"] == gelus
    assert calls["aten::gelu", "recomputation"] == (gelus if is_again else 0)
    assert calls["aten::gelu", "backward"] == 0
    # Backward passes alone multiply without a bias.
    assert calls["aten::mm", "backward"] >= 2 * gelus
    assert calls["aten::mm", "recomputation"] == calls["aten::mm", "forward"] == 0
    assert samples["gelus"] == gelus * (1 + is_again)
    passes = {row["pass"]: row for row in report.passes}
    assert list(passes) == ["forward", *["recomputation"] * is_again, "backward", "update"]
    assert sum(row["exposed_ms"] for row in passes.values()) == pytest.approx(
        report.parts_ms["compute_ms"], abs=0.01
    )


class Attention(torch.nn.Module):
    """Queries, keys and values apart, fewer of the latter; what is checkpointed begins with the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm(64)
        self.query, self.key, self.value, self.out = (
            torch.nn.Linear(of, n, bias=False) for of, n in ((64, 128), (64, 32), (64, 32), (128, 64))
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        q, k, v = (one(x).view(2, 128, -1, 32).transpose(1, 2) for one in (self.query, self.key, self.value))
        k, v = (one.repeat_interleave(4, 1) for one in (k, v))
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(found.transpose(1, 2).reshape(2, 128, 128))


@pytest.mark.parametrize("again", ["reentrant", "early stop", "whole"])
def test_products_that_run_again_have_the_roles_of_the_first_time(tmp_path: Path, again: str) -> None:
    torch.manual_seed(0)
    blocks = torch.nn.ModuleList(Attention() for _ in range(LAYERS))
    x = torch.randn(2, 128, 64, requires_grad=True)
    with (
        profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler,
        record_function("step 1"),
    ):
        for block in blocks:
            if again == "reentrant":
                x = x + checkpoint(block, x, use_reentrant=True)
            else:
                x = x + checkpoint(block, x, use_reentrant=False, early_stop=again == "early stop")
        x.square().mean().backward()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    ingest_traces([tmp_path / "trace.json"], tmp_path / "traces.db")
    found = Counter[tuple[str, str, str]]()
    with Database.open(tmp_path / "traces.db") as database:
        for row in database.query(
            "SELECT DISTINCT direction, role, vector, call FROM trace_event WHERE host_operator = 'aten::mm'"
            " AND direction IN ('forward', 'recomputation')"
        ):
            found[row["direction"], row["role"], row["vector"]] += 1
    first = {("qkv", "[256,64,128]"): LAYERS, ("qkv", "[256,64,32]"): 2 * LAYERS,
             ("attention_output", "[256,128,64]"): LAYERS}  # fmt: skip
    assert {key[1:]: count for key, count in found.items() if key[0] == "forward"} == first
    assert {key[1:]: count for key, count in found.items() if key[0] == "recomputation"} == first
