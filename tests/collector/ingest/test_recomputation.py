"""Activation checkpointing in real traces: what the backward pass computes again is told from both passes."""

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

from kernelcast.collector.ingest.run import ingest_traces
from kernelcast.store import Database
from kernelcast.store.trace_report import trace_report, traced_runs

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
