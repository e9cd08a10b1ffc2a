"""What a field can be changed to: the same devices, the same batch, valid layouts only, and why others are not."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.runtime import Estimator, ModelConfig, UsageError
from kernelcast.runtime.request.fields import SEARCHED
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.models import load_model
from kernelcast.runtime.search.choices import CHOSEN, choices

LLAMA, MIXTRAL = load_model("llama-2-7b"), load_model("mixtral-8x7b")
LAYOUT = Parallelism(pp=2, tp=2, dp=4, micro_batch=1, micro_batches=8)


@pytest.fixture(scope="module")
def estimator() -> Estimator:
    return Estimator.load("hardware:h100-sxm")


def found(
    estimator: Estimator, layout: Parallelism, model: ModelConfig, field: str
) -> dict[int, tuple[int, ...] | str]:
    """Value → pp, tp, dp, cp of the layout that it leads to, or the problem."""
    several = choices(layout, model, estimator.bundle, usable_bytes=None, simulated=True)[field]
    return {
        one.value: one.problem
        if one.layout is None
        else (one.layout.pp, one.layout.tp, one.layout.dp, one.layout.cp)
        for one in several
    }


def test_dp_takes_what_others_leave(estimator: Estimator) -> None:
    by_tp = found(estimator, LAYOUT, LLAMA, "tp")
    assert by_tp == {1: (2, 1, 8, 1), 2: (2, 2, 4, 1), 4: (2, 4, 2, 1), 8: (2, 8, 1, 1),
                     16: "pp · tp · cp is 32, expected a divisor of the 16 devices"}  # fmt: skip
    by_dp = found(estimator, LAYOUT, LLAMA, "dp")
    assert by_dp == {1: (8, 2, 1, 1), 2: (4, 2, 2, 1), 4: (2, 2, 4, 1), 8: (1, 2, 8, 1),
                     16: "tp · dp · cp is 32, expected a divisor of the 16 devices"}  # fmt: skip


def test_the_batch_stays(estimator: Estimator) -> None:
    several = choices(LAYOUT, LLAMA, estimator.bundle, usable_bytes=None, simulated=True)["micro_batch"]
    assert [(one.value, one.layout and one.layout.micro_batches) for one in several] == [
        (1, 8), (2, 4), (4, 2), (8, 1), (16, None), (32, None),
    ]  # fmt: skip
    assert several[4].problem == "dp · micro_batch is 64, expected a divisor of the global batch (32)"
    assert several[4].to_dict() == {
        "value": 16, "layout": None, "problem": several[4].problem, "memory_bytes": None, "fits": None,
    }  # fmt: skip
    twice = several[1].to_dict()
    assert twice["layout"] == {name: getattr(several[1].layout, name) for name in SEARCHED}
    assert (twice["layout"]["micro_batches"], twice["memory_bytes"]) == (4, several[1].memory_bytes)


def test_what_no_longer_applies_is_dropped(estimator: Estimator) -> None:
    layout = replace(LAYOUT, schedule="interleaved", virtual_stages=4, sequence_parallel=True)
    possible = choices(layout, LLAMA, estimator.bundle, usable_bytes=None, simulated=True)
    alone = next(one.layout for one in possible["pp"] if one.value == 1)
    assert alone is not None
    assert (alone.schedule, alone.virtual_stages, alone.sequence_parallel) == ("1f1b", 1, True)
    whole = next(one.layout for one in possible["tp"] if one.value == 1)
    assert whole is not None
    assert (whole.schedule, whole.virtual_stages, whole.sequence_parallel) == ("interleaved", 4, False)
    more = next(one.layout for one in possible["pp"] if one.value == 4)
    assert more is not None
    assert (more.schedule, more.virtual_stages, more.dp) == ("interleaved", 4, 2)
    given = choices(
        replace(LAYOUT, layer_counts=(20, 12)), LLAMA, estimator.bundle, usable_bytes=None, simulated=True
    )
    assert all(
        one.layout is None or one.layout.layer_counts is None for several in given.values() for one in several
    )


def test_experts(estimator: Estimator) -> None:
    layout = replace(LAYOUT, sequence_parallel=True)
    of_dense = choices(layout, LLAMA, estimator.bundle, usable_bytes=None, simulated=True)
    assert {"ep", "expert_tp"} & set(of_dense) == set()
    by_ep = found(estimator, layout, MIXTRAL, "ep")
    assert list(by_ep) == [1, 2, 4, 8, 16]
    assert by_ep[8] == (2, 2, 4, 1)
    by_width = found(estimator, replace(layout, ep=4), MIXTRAL, "expert_tp")
    assert [value for value, one in by_width.items() if isinstance(one, tuple)] == [1, 2]
    assert by_ep[16] == "ep is 16, expected a divisor of tp · dp · cp (8)"


def test_memory(estimator: Estimator) -> None:
    several = choices(LAYOUT, LLAMA, estimator.bundle, usable_bytes=40 << 30, simulated=True)["micro_batch"]
    fits = [one.fits for one in several if one.layout is not None]
    assert fits[0] is True
    assert fits[-1] is False
    for one in several:
        if one.layout is not None:
            estimate = estimator.predict(model=LLAMA, parallelism=one.layout, interval=False)
            assert one.memory_bytes == pytest.approx(estimate.memory.largest_bytes, rel=1e-6)
    assert several[0].layout is not None
    first = estimator.predict(model=LLAMA, parallelism=several[0].layout, interval=False).memory
    # torch's allocator and NCCL's buffers
    needed = (several[0].memory_bytes or 0) + first.taken_bytes["NCCL"]
    for usable, expected in ((needed, True), (needed - 1, False), (None, None)):
        [first, *_] = choices(LAYOUT, LLAMA, estimator.bundle, usable_bytes=usable, simulated=True)[
            "micro_batch"
        ]
        assert first.fits is expected


def test_steps_too_long_to_be_simulated_are_no_choice(estimator: Estimator) -> None:
    # 2 stages: 500,000 micro-batches are the most.
    layout = replace(LAYOUT, micro_batch=2, micro_batches=500_000)
    for simulated, expected in ((True, {1: False, 2: True}), (False, {1: True, 2: True})):
        found = choices(layout, LLAMA, estimator.bundle, usable_bytes=None, simulated=simulated)[
            "micro_batch"
        ]
        assert {one.value: one.layout is not None for one in found if one.value <= 2} == expected


def test_more_than_a_search_may_have(estimator: Estimator) -> None:
    layout = replace(LAYOUT, dp=1_000_000, tp=1_000_000)
    with pytest.raises(UsageError, match="gpus is 2000000000000, expected a whole number"):
        choices(layout, LLAMA, estimator.bundle, usable_bytes=None, simulated=True)


@settings(deadline=None, max_examples=40)
@given(
    degrees=st.tuples(*[st.sampled_from([1, 2, 3, 4, 8])] * 4),
    micro=st.tuples(st.integers(1, 6), st.integers(1, 12)),
    model=st.sampled_from([LLAMA, MIXTRAL]),
)
def test_devices_and_batch_are_the_same(
    estimator: Estimator, degrees: tuple[int, int, int, int], micro: tuple[int, int], model: ModelConfig
) -> None:
    pp, tp, dp, cp = degrees
    layout = Parallelism(pp=pp, tp=tp, dp=dp, cp=cp, micro_batch=micro[0], micro_batches=micro[1])
    for field, several in choices(layout, model, estimator.bundle, usable_bytes=None, simulated=True).items():
        assert field in CHOSEN
        assert getattr(layout, field) in [one.value for one in several]
        for one in several:
            assert (one.layout is None) == bool(one.problem)
            if one.layout is not None:
                one.layout.check(model)
                assert getattr(one.layout, field) == one.value
                assert one.layout.world_size == layout.world_size
                assert one.layout.samples_per_update == layout.samples_per_update
