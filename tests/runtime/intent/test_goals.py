"""Which wishes go together."""

from typing import Any

import pytest

from kernelcast.runtime import UsageError
from kernelcast.runtime.intent.goals import Wish

BATCH = {"global_batch": 64}
BOTH = ("a100-sxm", "gh200")


@pytest.mark.parametrize(
    ("wish", "values", "hardware", "message"),
    [
        ({}, {}, (), "micro_batch is not given; to search for a layout, give gpus and global_batch"),
        ({"gpus": 8}, {}, (), "global_batch is not given, which a search for a layout needs"),
        ({"gpus": 8}, {**BATCH, "tp": 3}, (), "gpus is 8, expected a multiple of tp (3)"),
        ({"days": 3.0}, BATCH, (), "days is given without tokens, expected both"),
        ({"days": 3.0, "tokens": 1, "gpus": 8}, BATCH, (), "gpus is given with days, expected one of them"),
        ({"largest": "global-batch"}, {}, (), "largest is given without gpus, expected both"),
        (
            {"largest": "global-batch", "gpus": 8},
            BATCH,
            (),
            "global_batch is given with largest global-batch, which finds it",
        ),
        (
            {"largest": "sequence-length", "gpus": 8},
            {**BATCH, "sequence_length": 8},
            (),
            "sequence_length is given with largest sequence-length, which finds it",
        ),
        (
            {"gpus": 8, "rank_by": "time"},
            BATCH,
            ("gh200",),
            "rank_by is given with one hardware, expected several",
        ),
        (
            {"gpus": 8, "tokens": 1, "samples": 1},
            BATCH,
            (),
            "samples is given with tokens, expected one of them",
        ),
        ({"gpus": 8, "epochs": 2.0}, BATCH, (), "epochs is given without samples, expected both"),
        (
            {"gpus": 8, "sample_tokens": 2.0},
            BATCH,
            (),
            "sample_tokens is given without samples, expected both",
        ),
        (
            {"gpus": 8, "packing_efficiency": 0.5},
            BATCH,
            (),
            "packing_efficiency is given without tokens or samples",
        ),
        ({"gpus": 8, "prices": {"": 2.0}}, BATCH, (), "price is given without tokens, expected both"),
        (
            {"prices": {"b200": 2.0}, "tokens": 1},
            BATCH,
            BOTH,
            "price names hardware 'b200', expected one of a100-sxm",
        ),
        (
            {"gpus": 8, "rank_by": "energy"},
            BATCH,
            BOTH,
            "rank_by energy is given without tokens, expected both",
        ),
        ({"gpus": 8, "rank_by": "days"}, BATCH, BOTH, "rank_by days is given without tokens, expected both"),
        (
            {"gpus": 8, "rank_by": "cost", "tokens": 1},
            BATCH,
            BOTH,
            "rank_by cost is given without price of a100",
        ),
        (
            {},
            {"micro_batch": 1, **BATCH},
            BOTH,
            "hardware names 2 devices, expected one, or also gpus: each device then gets its own layout",
        ),
        ({"days": 3.0, "tokens": 1}, BATCH, BOTH, "days is given with several hardware, expected one"),
    ],
)
def test_others_are_refused(
    wish: dict[str, Any], values: dict[str, Any], hardware: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        Wish(**wish).check(values, hardware)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("wish", "values", "hardware"),
    [
        ({}, {"micro_batch": 1, **BATCH}, ()),
        ({"tokens": 5}, {"micro_batch": 1, **BATCH}, ()),
        ({"gpus": 8, "tokens": 5, "prices": {"": 1.0}, "rank_by": "cost"}, BATCH, BOTH),
        ({"days": 3.0, "tokens": 1}, {**BATCH, "tp": 4, "pp": 3}, ("gh200",)),
        ({"largest": "global-batch", "gpus": 8}, {"micro_batches": 4}, ()),
    ],
)
def test_these_are_not(wish: dict[str, Any], values: dict[str, Any], hardware: tuple[str, ...]) -> None:
    Wish(**wish).check(values, hardware)


def test_a_named_price_goes_before_that_of_all() -> None:
    wish = Wish(prices={"": 2.0, "gh200": 3.0})
    assert [wish.price(name) for name in ("gh200", "a100-sxm", None)] == [3.0, 2.0, 2.0]
