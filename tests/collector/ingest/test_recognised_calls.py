"""What calls are recognised as, to the letter: recognised_calls.txt, which WRITE_RECOGNISED=1 pytest THIS_FILE writes.

Every known name meets shapes of all kinds; products, collectives and sequences of calls are drawn, by a fixed seed.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from kernelcast.collector.ingest import experts
from kernelcast.collector.ingest.collectives import (
    annotated_collective,
    annotated_message,
    collective,
    group_ranks,
    layout,
    role_of,
)
from kernelcast.collector.ingest.experts import ExpertCalls
from kernelcast.collector.ingest.named_calls import BY_FUSED, BY_NAME
from kernelcast.collector.ingest.recognise import LinearRoles, Surroundings, recognised
from kernelcast.collector.ingest.recognised_calls import Recognition, Unrecognised, product_shape
from kernelcast.collector.ingest.sequences import SEQUENCES, sequences_of
from kernelcast.collector.traces.arguments import Arguments
from kernelcast.collector.traces.call_tree import CallTree
from kernelcast.collector.traces.kineto import parse_trace
from tests.collector.ingest.conftest import Step, document

TEXT = Path(__file__).with_name("recognised_calls.txt")
PRODUCTS = (
    "aten::addmm",
    "aten::mm",
    "aten::_addmm_activation",
    "aten::_scaled_mm",
    "aten::bmm",
    "aten::baddbmm",
)
OTHERS = (
    "aten::layer_norm",
    "aten::native_layer_norm",
    "aten::rms_norm",
    "aten::_fused_rms_norm",
    "aten::add",
)
OTHERS += ("aten::add_", "aten::_fused_adam_")
SHAPES: tuple[Any, ...] = (
    [], [[]], [[12, 8]], [[2, 6, 8]], [[2, 6, 9]], [[2, 3, 6, 8]], [[8], [12, 8], [8, 24]], [[12, 8], [8, 24]],
    [[12, 8], [9, 24]], [[3, 6, 8], [3, 8, 6]], [[3, 6, 6], [3, 6, 8]], [[3, 6, 8], [4, 8, 6]], [[2, 6, 8], [8]],
    [[2, 6, 8], [8], [8]], [[2, 6, 8], [], [8], [8]], [[2, 6, 8], [2, 6, 8]], [[12, 24], [24]], [[3, 4, 24], [24]],
    [[2, 4, 6, 8], [2, 2, 6, 8]], [[2, 4, 6, 8], [2, 3, 6, 8]], [[2, 4, 6, 8], [2, 2, 6, 8], [2, 2, 6, 8]],
    [[2, 4, 6, 8], [2, 2, 6, 8], [2, 2, 6, 9]], [[2, 6, 4, 8], [2, 6, 2, 8], [2, 6, 2, 8]], [[2, 6, 3, 4, 8]],
    [[2, 6, 2, 4, 8]], [[24, 8], [2, 6, 8]], [[50, 8], [2, 6]], [[12, 50], [12]], [[12, 8], [4, 8, 10], [4]],
    [[12, 8], [10, 8], [10, 8], [10], [10]], [[12, 8], [12, 3]], [[12, 8], [12, 10]], [[12, 8], [36], [4, 3]],
    [[12, 8], [36], [5, 3]], [[12, 10]], [[3, 12, 12]], [[3, 12, 12], [1], [2, 3, 12]], [[0, 8], [8, 24]],
)  # fmt: skip
AROUND = Surroundings(
    LinearRoles({(8, 24): "qkv"}),
    frozenset({(3, 6, 6), (3, 6, 8)}),
    frozenset({8}),
    frozenset({(12, 24)}),
    ExpertCalls(frozenset({(8, 10), (5, 8)}), {(12, 10): 3}, frozenset({8})),
)


def told(found: Recognition | None) -> str:
    if found is None:
        return "none"
    if isinstance(found, Unrecognised):
        return found.reason
    words = [found.operator, "×".join(map(str, found.vector)), found.role, found.variant, found.dtype]
    return " ".join(filter(None, words))


def by_name() -> Iterator[str]:
    """Every name with all shapes, but those that it does not have."""
    compiled = [f"triton_poi_fused_{name}_3" for name in BY_FUSED] + [
        "triton_poi_fused__to_copy_mul_view_9",
        "triton_",
    ]
    names = {*BY_NAME, *experts.RULES, *PRODUCTS[:5], *OTHERS, *compiled}
    for name in sorted(names):
        asked: dict[str, list[str]] = {}
        for dims in SHAPES:
            for flags in (["True"] * 9, ["False"] * 9, ["True"]):
                arguments = Arguments(dims=dims, types=["float"] * len(dims), concrete=flags)
                found = told(recognised(name, arguments, AROUND))
                at = (
                    f"{json.dumps(dims)}{'' if flags[1:] else ' short'}{'' if flags[0] == 'True' else ' not'}"
                )
                asked.setdefault(found, []).append(at.replace(" ", ""))
        asked.pop("shapes that the operator here does not have", None)
        yield f"{name}: " + "; ".join(f"{found} {' '.join(at[:4])} {len(at)}" for found, at in asked.items())
    for types in (["long int", "double"], ["c10::Half"], ["", "c10::BFloat16"], []):
        arguments = Arguments(dims=[[12, 8], [8, 24]], types=types)
        yield f"{types}: {told(recognised('aten::mm', arguments, AROUND))}"
    for name in (*PRODUCTS, "aten::linear", "aten::conv"):
        yield f"{name}: {[found for dims in SHAPES if (found := product_shape(name, tuple(map(tuple, dims))))]}"
    roles = [ExpertCalls(frozenset({(4, 8), (8, 4)}), {}, frozenset({8})).role(*one) for one in
             ((8, 4), (8, 8), (4, 8), (8, 9), (4, 5), (8, 5))]  # fmt: skip
    yield f"experts: {roles}"


def linear_roles(drawn: Random) -> Iterator[str]:
    """Of layers drawn as products: plain and grouped queries, gates, adapters, logits, and a slip in some."""
    for _ in range(250):
        d, layers = 8, drawn.choice([1, 2, 3])
        wide, inner = drawn.choice([8, 16, 32]), drawn.choice([2, 3, 6, 16, 32])
        q = drawn.choice([8, 16])
        products = [(d, n) for n in drawn.choice([(wide,), (2 * wide,), (wide, wide), (3,), ()])]
        products += [(wide, d)] * drawn.choice([0, 1, 1, 1]) + [(q, d)] * drawn.choice([0, 1, 1])
        products += [(d, drawn.choice([q, 9, 3 * q, 25]))] * drawn.choice([0, 1, 1]) + [
            (d, inner)
        ] * drawn.choice([0, 0, 1])
        products = products * layers + [(d, 50)] * drawn.choice([0, 1])
        norms = set(drawn.choice([[d], [d], [d, 16], []]))
        embeddings = set(drawn.choice([[(50, d)], [], [(50, d), (60, 16)], [(50, 16)]]))
        found = LinearRoles.of(products, norms, embeddings).by_width
        counted = " ".join(f"{k}→{n}" for k, n in products[: len(products) // layers + 1])
        yield f"{counted} {sorted(norms)} {sorted(embeddings)}: {sorted(found.items())}"


def in_order(drawn: Random) -> Iterator[str]:
    """Roles of products around attention, from the order of calls; calls that several operators make together."""
    pieces = {
        "apart": [(8, 8), (8, 4), (8, 4)], "together": [(8, 16)], "narrow": [(8, 8)], "wide": [(8, 25)],
        "attention": [None], "twice": [None, None], "output": [(8, 8)], "other": [(16, 8)], "down": [(24, 8)],
    }  # fmt: skip
    for _ in range(120):
        step = Step()
        chosen = [drawn.choice(["apart", "together", "narrow", "wide"]), drawn.choice(["attention", "twice"])]
        chosen += [drawn.choice(["output", "other", "down"])]
        if drawn.random() < 0.4:
            chosen.insert(drawn.randrange(4), drawn.choice(list(pieces)))
        for one in (width for name in chosen for width in pieces[name]):
            if one is None:
                step.forward("aten::_softmax", [[1, 2, 6, 6], [], []])
            else:
                step.forward("aten::mm", [[6, one[0]], list(one)])
        tree = CallTree(parse_trace(json.dumps(document(step.events)).encode(), Path("made.json")))
        around = Surroundings.of(tree)
        results = sorted(around.products), sorted(around.softmaxes)
        yield f"{' '.join(chosen)}: {sorted(around.role_of.items())} {results}"
    for _ in range(120):
        step, sequence = Step(), drawn.choice(SEQUENCES)
        names = [*sequence.names]
        if drawn.random() < 0.5:
            names.insert(
                drawn.randrange(len(names) + 1), drawn.choice(["view", "linear", "sin", "to", names[0]])
            )
        dims = [[2, 4, 6, 8], [2, 2, 6, 8]] if sequence.operator == "rope" else [[2, 6, 8], [2, 6, 8]]
        for place, name in enumerate(names):
            own = dims[place >= 5 :] if sequence.operator == "rope" else dims
            step.forward(f"aten::{name}", own, thread=drawn.choice([1] * 30 + [2]))
        tree = CallTree(parse_trace(json.dumps(document(step.events)).encode(), Path("made.json")))
        found = [(call, first, told(one)) for call, (first, one) in sequences_of(tree).items()]
        yield f"{' '.join(names)}: {found}"


def collectives(drawn: Random) -> Iterator[str]:
    kinds = [
        "allreduce",
        "all_to_allv",
        "all_to_all",
        "_allgather_base",
        "reduce_scatter",
        "send",
        "broadcast",
        None,
    ]
    for _ in range(400):
        size = drawn.choice([2, 4])
        said: dict[str, Any] = {
            "collective": drawn.choice(kinds), "elements_in": 64, "elements_out": 64, "group_size": size,
            "group_ranks": json.dumps(list(range(size))), "dtype": "Float", "split_in": "[]", "split_out": "[]",
            "group_description": drawn.choice(["TENSOR_MODEL_PARALLEL_GROUP", "mesh_dp", "undefined", None]),
        }  # fmt: skip
        if said["collective"] == "all_to_allv":
            said["split_in"] = drawn.choice(
                ["[]", json.dumps([64 // size] * size), json.dumps([64]), "[1, ..., 2]"]
            )
            said["split_out"] = drawn.choice(
                ["[]", json.dumps([64 // size] * size), json.dumps([60] + [4] * (size - 1))]
            )
        if drawn.random() < 0.5:
            field, value = drawn.choice(
                [("elements_in", 0), ("elements_in", 1), ("elements_in", 63), ("elements_out", 63),
                 ("elements_out", None), ("group_size", 3), ("group_size", None), ("group_ranks", "[0, 8]"),
                 ("group_ranks", "[0]"),
                 ("group_ranks", "[0, ..., 8]"), ("dtype", "Long"), ("group_ranks", "[0, 1, 8, 9]")]
            )  # fmt: skip
            said[field] = value
        if said["group_ranks"].count("."):
            said |= {"rank_start": drawn.choice([0, 3, None]), "rank_stride": drawn.choice([1, 8, 0])}
        arguments = Arguments(**said)
        words = " ".join(f"{value}" for name, value in said.items() if name != "group_description" or value)
        yield f"{words}: {group_ranks(arguments)} {told(collective(arguments, drawn.choice([8, 8, 2, 0])))}"
    for kind in ("all_reduce", "all_gather", "all_to_all", "point_to_point"):
        names = (
            "TENSOR_MODEL_PARALLEL_GROUP",
            "dp_cp",
            "Data-Parallel",
            "EXPERT_MODEL_PARALLEL_GROUP",
            "pp",
            "embd",
            7,
        )
        yield f"{kind}: {[role_of(kind, name) for name in names]}"
    for ranks in ([0, 1], [0, 8], [0, 1, 8, 9], [0, 1, 8], range(4, 12), [7, 8]):
        yield f"{ranks}: {[layout(ranks, devices) for devices in (0, 1, 2, 4, 8)]}"
    calls = [
        Arguments(dims=dims) for dims in ([[128], [64]], [[64], [128]], [[64], [63]], [[0], [64]], [], [[64]])
    ]
    for name in (
        "gloo:all_reduce",
        "nccl:_all_gather_base",
        "nccl:_reduce_scatter_base",
        "gloo:all_to_all",
        "nccl:odd",
    ):
        for dims in ([[4, 16]], [[4, 16], [2]], [], [[0]], [[], [64]]):
            said_here = Arguments(dims=dims, types=["float"])
            yield f"{name} {dims}: " + "; ".join(
                told(annotated_collective(name, said_here, group, devices))
                for group, devices in (((), 8), ((0, 1), 8), ((0, 1), 1), ((0,), 8), ((0, 1), 0))
            )
            for group in ((), (0, 1, 2)):
                for call in (None, *calls):
                    message = annotated_message(name, said_here, group, call)
                    shown = message and (
                        message.collective, message.elements_in, message.elements_out, message.dtype,
                        message.group_size, message.group_ranks,
                    )  # fmt: skip
                    yield f"  {group} {call and call.dims}: {shown}"


def everything() -> str:
    drawn = Random(7)
    parts = (by_name(), linear_roles(drawn), in_order(drawn), collectives(drawn))
    return "\n".join(dict.fromkeys(line.rstrip() for part in parts for line in part)) + "\n"


def test_what_calls_are_recognised_as() -> None:
    if "WRITE_RECOGNISED" in os.environ:
        TEXT.write_text(everything(), encoding="utf-8")
    assert everything() == TEXT.read_text(encoding="utf-8")
