"""A collective's baseline as nodes of an ONNX graph: the arithmetic of collective_baseline.py, [rows, 1] each."""

from collections.abc import Sequence

import numpy as np

from kernelcast.train.collective_baseline import FADE, LatencyBandwidth
from kernelcast.train.onnx_graph import Graph


def latency_bandwidth_us(graph: Graph, baseline: LatencyBandwidth) -> str:
    """Time of the baseline in µs."""
    entries, nodes, gpus = graph.columns
    one = graph.constant([[1.0]])
    several = graph.as_number(graph.add("Greater", nodes, one))
    log_nodes, log_gpus = (_log2(graph, graph.add("Max", column, one)) for column in (nodes, gpus))
    both = graph.add("Mul", several, log_gpus)
    link_terms = (several, graph.add("Sub", log_gpus, both), both, log_nodes)
    link_us = _power_of_two(graph, baseline.link_log2, link_terms)
    processes = graph.add("Mul", nodes, gpus)
    log_processes = _log2(graph, graph.add("Max", processes, one))
    latency_us = _power_of_two(graph, baseline.latency_log2, (several, log_processes))
    entry_us = graph.add("Mul", link_us, _ring_work(graph, baseline.collective, processes))
    latency_us = _own_or(graph, baseline, "latency_us", latency_us)
    entry_us = _own_or(graph, baseline, "entry_us", entry_us)
    return graph.add("Add", latency_us, graph.add("Mul", entry_us, entries))


def residual_scale(graph: Graph, baseline: LatencyBandwidth) -> str:
    """By what the trees' answer is multiplied."""
    one = graph.constant([[1.0]])
    entries = graph.add("Max", graph.columns[0], one)
    smallest, largest = (_own_or(graph, baseline, name, one) for name in ("smallest", "largest"))
    below = graph.add("Log", graph.add("Div", smallest, entries))
    above = graph.add("Log", graph.add("Div", entries, largest))
    outside = graph.add("Relu", graph.add("Max", below, above))
    faded = graph.add("Mul", outside, graph.constant([[1 / np.log(FADE)]]))
    spread = graph.add("MatMul", _matches(graph, baseline), _of_layouts(graph, baseline, "spread"))
    return graph.add("Mul", spread, graph.add("Relu", graph.add("Sub", one, faded)))


def _matches(graph: Graph, baseline: LatencyBandwidth) -> str:
    """1 where a row is of a measured layout, [rows, layouts]."""
    _, nodes, gpus = graph.columns
    same = [
        graph.add(
            "Equal",
            column,
            graph.constant([[getattr(layout, name) for layout in baseline.layouts]], np.float32),
        )
        for column, name in ((nodes, "nodes"), (gpus, "gpus_per_node"))
    ]
    return graph.as_number(graph.add("And", *same))


def _own_or(graph: Graph, baseline: LatencyBandwidth, name: str, otherwise: str) -> str:
    """What a measured layout has under a name; `otherwise` in others."""
    matches = _matches(graph, baseline)
    own = graph.add("MatMul", matches, _of_layouts(graph, baseline, name))
    known = graph.add("ReduceSum", matches, graph.constant([1], np.int64), keepdims=1)
    unknown = graph.add("Sub", graph.constant([[1.0]]), known)
    return graph.add("Add", own, graph.add("Mul", unknown, otherwise))


def _of_layouts(graph: Graph, baseline: LatencyBandwidth, name: str) -> str:
    return graph.constant([[getattr(layout, name)] for layout in baseline.layouts])


def _ring_work(graph: Graph, collective: str, processes: str) -> str:
    one, two = graph.constant([[1.0]]), graph.constant([[2.0]])
    p = graph.add("Max", processes, two)
    if collective == "all_reduce":
        return graph.add("Sub", two, graph.add("Div", two, p))
    if collective == "all_gather":
        return graph.add("Sub", p, one)
    if collective in ("reduce_scatter", "all_to_all"):
        return graph.add("Sub", one, graph.add("Div", one, p))
    return one


def _log2(graph: Graph, value: str) -> str:
    return graph.add("Mul", graph.add("Log", value), graph.constant([[1 / np.log(2)]]))


def _power_of_two(graph: Graph, coefficients: Sequence[float], terms: Sequence[str]) -> str:
    """2 to the first coefficient + the others · terms."""
    constant, *others = coefficients
    total = graph.weighted_sum(list(zip(others, terms, strict=True)))
    exponent = graph.add("Add", total, graph.constant([[constant]]))
    return graph.add("Exp", graph.add("Mul", exponent, graph.constant([[np.log(2)]])))
