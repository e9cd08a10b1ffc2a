"""Trees of host calls that are drawn, to the number: drawn_trees.txt, which WRITE_DRAWN_TREES=1 writes again.

Calls nest and meet at equal times, autograd's nodes share and restart numbers, kernels name a launch, a call or none.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from kernelcast.collector.traces.attribution import attribute
from kernelcast.collector.traces.call_tree import NODE_PREFIX, CallTree
from kernelcast.collector.traces.kineto import parse_trace

TEXT = Path(__file__).with_name("drawn_trees.txt")
NAMES = ("aten::mm", "aten::addmm", "aten::add_", "c10d::allreduce_", "record_param_comms", "MyFunction")
NODES = ("AddmmBackward0", "MmBackward0", "torch::autograd::AccumulateGrad", "MyFunctionBackward")


def events_of(drawn: Random, numbers: int = 5, end: int = 120) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []

    def event(cat: str, name: str, start: float, time: float, tid: int, **args: Any) -> None:
        events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": 1,
                "tid": tid,
                "ts": start,
                "dur": time,
                "args": args,
            }
        )

    def nested(start: int, end: int, depth: int, tid: int) -> None:
        while end - start >= 2 and depth:
            begin = start + drawn.choice([0, 0, 1, 3])
            until = begin + drawn.choice([1, 2, 6, 20, 40])
            if until > end:
                break
            args: dict[str, Any] = {"External id": drawn.randrange(1, 30)}
            if drawn.random() < 0.5:
                args["Sequence number"] = drawn.randrange(numbers)
            kind = drawn.random()
            if kind < 0.15:
                node = drawn.choice(NODES)
                event("cpu_op", NODE_PREFIX + node, begin, until - begin, tid, **args)
                if drawn.random() < 0.5 and until - begin > 2:
                    event("cpu_op", node, begin, until - begin - 1, tid, **args)
            elif kind < 0.2:
                event("cpu_op", drawn.choice(NODES), begin, until - begin, tid, **args)
            elif kind < 0.3:
                event("user_annotation", f"kernelcast.mark#{len(events)}", begin, until - begin, tid)
            elif kind < 0.45:
                event("cuda_runtime", "cudaLaunchKernel", begin, 1, tid, correlation=len(events))
                until = begin + 1
            else:
                event("cpu_op", drawn.choice(NAMES), begin, until - begin, tid, **args)
            nested(begin, until, depth - 1, tid)
            start = until

    for tid in (1, 2):
        nested(0, end, 5, tid)
    launches = [one for one in events if one["cat"] == "cuda_runtime"]
    for place in range(drawn.choice([0, 4, 8])):
        known = (
            drawn.choice(launches)["args"]["correlation"]
            if launches and drawn.random() < 0.8
            else 900 + place
        )
        more = drawn.choice([{}, {"External id": drawn.randrange(1, 30)}, {"External id": known}])
        event(
            "kernel",
            f"kernel {place}",
            drawn.choice([5, 60, 200]),
            4,
            7,
            correlation=known,
            stream=7,
            device=0,
            **more,
        )
    drawn.shuffle(events)
    return events


def trees() -> Iterator[str]:
    drawn = Random(5)
    for number in range(96):
        # In the last trees many calls have one number.
        events = events_of(drawn) if number < 90 else events_of(drawn, numbers=1 + number % 2, end=400)
        trace = parse_trace(json.dumps({"traceEvents": events}).encode(), Path("made.json"))
        tree = CallTree(trace, annotations=("kernelcast.",) if number % 2 else ())
        yield f"{number}: {tree.parents} {[round(one, 3) for one in tree.self_times_us]}"
        yield f"  nodes {tree.backward_nodes} again {[place for place, one in enumerate(tree.recomputed) if one]}"
        nodes = sorted({node for node in tree.backward_nodes if node is not None})
        yield f"  forward {[(node, tree.forward_of(node), tree.forward_of(node, thread='1/1')) for node in nodes]}"
        yield f"  inside {tree.innermost('c10d::')} {tree.innermost('aten::mm')}"
        kernels = trace.of_category("kernel")
        yield f"  launched {tree.launch_of(kernels).tolist()} {tree.launching(kernels).tolist()}"
        yield f"  slices {[list(tree.slices(thread)) for thread in ('1/1', '1/2')]}"
        for work in attribute(trace, "kernelcast.mark"):
            ran = [f"{one.name} {one.start_us:g}+{one.duration_us:g}" for one in work.kernels]
            yield f"  {work.mark} {work.start_us:g} {work.end_us:g} {work.time_us:g} {ran}"


def test_trees_of_drawn_calls() -> None:
    if "WRITE_DRAWN_TREES" in os.environ:
        TEXT.write_text("\n".join(trees()) + "\n", encoding="utf-8")
    assert "\n".join(trees()) + "\n" == TEXT.read_text(encoding="utf-8")
