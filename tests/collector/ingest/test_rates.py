"""FLOPs and bytes of calls outside of the table of operators, against torch's own count and by hand."""

from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from kernelcast.collector.ingest.run import ingest_traces
from kernelcast.store import Database
from kernelcast.store.shape_costs import call_costs

_KINDS = "SELECT number, host_operator, shapes, dtype, category FROM event_kind WHERE shapes <> '' AND direction <> ''"


def test_convolutions_have_the_flops_that_torch_counts(tmp_path: Path) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(8, 16, 3, stride=2, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.Conv2d(16, 24, 5, bias=False),
        torch.nn.Conv2d(24, 8, 1),
    )

    def step() -> None:
        model(torch.ones(4, 8, 40, 32, requires_grad=True)).sum().backward()

    with FlopCounterMode(display=False) as counter:
        step()
    counted = {str(op): flops for op, flops in counter.get_flop_counts()["Global"].items()}
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    ingest_traces([tmp_path / "trace.json"], tmp_path / "traces.db")
    with Database.open(tmp_path / "traces.db") as database:
        names = {number: call for number, *call in map(dict.values, database.query(_KINDS))}
    found = {"forward": 0.0, "backward": 0.0}
    for number, _, flops, _ in call_costs(names):
        found["backward" if "backward" in names[number][0] else "forward"] += flops
    assert found == {"forward": counted["aten.convolution"], "backward": counted["aten.convolution_backward"]}


X, W, Y = "[32,64,56,56]", "[128,64,3,3]", "[32,128,28,28]"
FLOPS = 2 * 32 * 128 * 28 * 28 * 64 * 9
IMAGES = 8 * 64 * 112**2
BYTES = 4 * (32 * 64 * 56 * 56 + 128 * 64 * 9 + 32 * 128 * 28 * 28)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ({"cudnn_convolution": f"[{X},{W},[]]"}, {}),  # nothing says how large the output is
        (
            {"cudnn_convolution": f"[{X},{W},[]]", "convolution_backward": f"[{Y},{X},{W}]"},
            {"cudnn_convolution": (FLOPS, BYTES), "convolution_backward": (2 * FLOPS, 2 * BYTES)},
        ),
        (  # torch before 1.10
            {
                "cudnn_convolution": f"[{X},{W},[]]",
                "cudnn_convolution_backward_input": f"[[],{Y},{W}]",
                "cudnn_convolution_backward_weight": f"[[],{Y},{X}]",
            },
            {
                "cudnn_convolution": (FLOPS, BYTES),
                "cudnn_convolution_backward_input": (FLOPS, BYTES),
                "cudnn_convolution_backward_weight": (FLOPS, BYTES),
            },
        ),
        (  # images need no gradient
            {"convolution_backward": "[[8,64,112,112],[8,3,224,224],[64,3,7,7]]"},
            {"convolution_backward": (2 * IMAGES * 3 * 49, 4 * (IMAGES + 8 * 3 * 224**2 + 64 * 3 * 49))},
        ),
        ({"mul": "[[16,128],[128],[]]"}, {"mul": (2048, 4 * (2048 + 128 + 2048))}),
        ({"threshold_backward": "[[16,128],[16,128],[]]"}, {"threshold_backward": (2048, 4 * 3 * 2048)}),
        ({"copy_": "[[16,128],[16,128],[]]", "mul": "[[],[[3]]]", "add": '[["x"],[-1]]'}, {}),
        ({"convolution_backward": "[[8],[8],[8]]"}, {}),
    ],
)  # fmt: skip
def test_costs_by_hand(calls: dict[str, str], expected: dict[str, tuple[int, int]]) -> None:
    names = list(calls)
    given = {place: (f"aten::{name}", calls[name], "float32", "kernel") for place, name in enumerate(names)}
    found = {names[number]: (flops, moved) for number, _, flops, moved in call_costs(given)}
    assert found == expected
