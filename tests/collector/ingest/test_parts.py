"""The parts of ingesting that decide by numbers alone: which linear a product is, how a group lies on nodes."""

import pytest

from kernelcast.collector.ingest.collectives import collective, group_ranks, layout
from kernelcast.collector.ingest.recognise import LinearRoles
from kernelcast.collector.ingest.recognised_calls import RecognisedCall, Unrecognised
from kernelcast.collector.traces.arguments import Arguments

D = 16
GPT = [(D, 3 * D), (D, D), (D, 4 * D), (4 * D, D)]
EMBEDDING = {(100, D)}


def roles(
    products: list[tuple[int, int]], embeddings: set[tuple[int, int]] = EMBEDDING
) -> dict[str, tuple[int, int]]:
    found = LinearRoles.of(products, {D}, embeddings).by_width
    assert len(set(found.values())) == len(found)
    return {name: width for width, name in found.items()}


def test_a_gpts_products_are_told_apart() -> None:
    assert roles([*GPT * 3, (D, 100)]) == {
        "qkv": (D, 3 * D),
        "attention_output": (D, D),
        "mlp_up": (D, 4 * D),
        "mlp_down": (4 * D, D),
        "logits": (D, 100),
    }


def test_grouped_queries_and_gate_and_up_at_once() -> None:
    products = [(D, D + D // 2), (D, D), (D, 88), (44, D)] * 2
    assert roles(products) == {
        "qkv": (D, D + D // 2),
        "attention_output": (D, D),
        "mlp_gate_up": (D, 88),
        "mlp_down": (44, D),
    }


@pytest.mark.parametrize(
    ("products", "expected"),
    [
        (
            [(D, D)] * 4 + [(D, 44)] * 2 + [(44, D)],
            {"mlp_gate_up", "mlp_down"},
        ),  # everything apart, as Llama's layers are
        ([(D, D)] * 4, set()),
        (
            [(D, 3 * D), (3 * D, D), (D, D)],
            {"mlp_up", "mlp_down"},
        ),  # an MLP three times as wide
        ([(D, 3 * D), (D, 2 * D), (D, D)], set()),  # two that might be the projection
        ([(D, 3 * D)] * 2 + [(D, D)], set()),
        ([(5, 7), (7, 5)], set()),
    ],
)
def test_what_could_be_several_is_none(products: list[tuple[int, int]], expected: set[str]) -> None:
    assert set(roles(products)) == expected


def test_without_one_hidden_size_there_are_no_roles() -> None:
    assert LinearRoles.of(GPT, {D, 2 * D}, set()).by_width == {}
    assert LinearRoles.of(GPT, set(), set()).by_width == {}
    assert (
        LinearRoles.of(GPT, {D, 2 * D}, EMBEDDING).by_width == LinearRoles.of(GPT, set(), EMBEDDING).by_width
    )


@pytest.mark.parametrize(
    ("ranks", "gpus_per_node", "expected"),
    [
        ([0, 1], 8, (1, 2)),
        (range(16), 8, (2, 8)),
        (range(0, 32, 8), 8, (4, 1)),  # data parallelism with tensor parallelism over a node
        ([0, 4, 8, 12], 8, (2, 2)),
        ([6, 7, 8], 8, None),  # two on one node, one on the next
        ([0, 1], 0, None),
    ],
)
def test_a_groups_layout(ranks: list[int], gpus_per_node: int, expected: tuple[int, int] | None) -> None:
    assert layout(ranks, gpus_per_node) == expected


def test_ranks_that_are_cut_short_follow_from_start_and_stride() -> None:
    cut = Arguments(group_ranks="[0, 8, ..., 120]", group_size=16, rank_start=0, rank_stride=8)
    assert list(group_ranks(cut) or []) == list(range(0, 128, 8))
    assert group_ranks(Arguments(group_ranks="[0, 1]", group_size=3)) is None
    assert group_ranks(Arguments(group_size=2**40, rank_start=0, rank_stride=1)) is None
    assert group_ranks(Arguments(group_ranks=7)) is None


ALL_REDUCE = {
    "collective": "allreduce",
    "elements_in": 64,
    "dtype": "Half",
    "group_size": 2,
    "group_ranks": "[0, 1]",
}

ALL_TO_ALL = RecognisedCall("all_to_all", (64, 1, 2), dtype="float16")
UNEVEN = "an all-to-all that may send more to one process than to another"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, RecognisedCall("all_reduce", (64, 1, 2), dtype="float16")),
        ({"collective": "_allgather_base"}, RecognisedCall("all_gather", (64, 1, 2), dtype="float16")),
        ({"collective": "send"}, RecognisedCall("point_to_point", (64, 1, 2), dtype="float16")),
        ({"collective": "all_to_all"}, ALL_TO_ALL),
        ({"collective": "all_to_all", "elements_out": 64}, ALL_TO_ALL),
        ({"collective": "all_to_all", "elements_out": 62}, UNEVEN),  # a list of tensors of several sizes
        ({"collective": "all_to_all", "elements_in": 63, "elements_out": 63}, UNEVEN),
        ({"collective": "all_to_allv", "split_in": "[4, 4]", "split_out": "[4, 4]"}, ALL_TO_ALL),
        ({"collective": "all_to_allv", "split_in": "[4, 4]", "split_out": "[]"}, ALL_TO_ALL),
        ({"collective": "all_to_allv", "split_in": "[4, 4]", "split_out": "[3, 5]"}, UNEVEN),
        ({"collective": "all_to_allv", "split_in": "[4]", "split_out": "[4]"}, UNEVEN),
        ({"collective": "all_to_allv", "split_in": "[4, 4, ...]", "split_out": "[4, 4, ...]"}, UNEVEN),
        ({"collective": "all_to_allv", "split_in": "[]", "split_out": "[]"}, UNEVEN),
        ({"collective": "all_to_allv"}, UNEVEN),
        ({"collective": "broadcast"}, "no operator for broadcast"),
        ({"collective": None}, "a collective whose size and group were not recorded"),
        ({"elements_in": 0}, "a collective whose size and group were not recorded"),
        ({"dtype": "Int"}, "its element type is none of a training step"),
        ({"group_size": 1, "group_ranks": "[5]"}, "a collective of one process alone"),
        (
            {"collective": "send", "group_size": 3, "group_ranks": "[0, 1, 2]"},
            "a transfer inside a group of more than two: between which ranks was not recorded",
        ),
    ],
)
def test_collectives_by_their_metadata(changes: dict[str, object], expected: RecognisedCall | str) -> None:
    found = collective(Arguments(**(ALL_REDUCE | changes)), gpus_per_node=8)
    assert (found.reason if isinstance(found, Unrecognised) else found) == expected


def test_a_collective_of_unknown_layout_says_how_to_state_it() -> None:
    found = collective(Arguments(**ALL_REDUCE), gpus_per_node=0)
    assert isinstance(found, Unrecognised)
    assert "--gpus-per-node" in found.reason
