"""Which layers of a model are alike."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import ModelConfig
from kernelcast.runtime.step.layers.kinds import DENSE, LayerKind, kinds_of

MODEL = ModelConfig(
    name="m", hidden_size=32, sequence_length=16, attention_heads=4, layers=6, vocabulary_size=256
)
EXPERTS = LayerKind(has_experts=True)


def kinds(**changes: object) -> list[LayerKind]:
    found = kinds_of(replace(MODEL, **changes))
    return [found.distinct[kind] for kind in found.of_layer]


def test_by_hand() -> None:
    assert kinds() == [DENSE] * 6
    mixture = {"experts": 4, "experts_per_token": 1}
    assert kinds(**mixture, dense_layers=2) == [DENSE] * 2 + [EXPERTS] * 4
    assert kinds(**mixture, expert_interval=2) == [DENSE, EXPERTS] * 3
    local = LayerKind(window=4)
    assert kinds(sliding_window=4, global_interval=3) == [local, local, DENSE] * 2
    assert kinds(sliding_window=4) == [local] * 6
    # A window that is no shorter than the sequence changes nothing.
    assert kinds(sliding_window=16) == [DENSE] * 6
    assert kinds_of(replace(MODEL, sliding_window=4, global_interval=3)).distinct == (local, DENSE)


@given(
    st.integers(1, 40),
    st.integers(0, 3),
    st.integers(1, 5),
    st.integers(0, 6),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_parts_have_all_layers(
    layers: int, dense: int, interval: int, every: int, first: int, until: int
) -> None:
    found = kinds_of(
        replace(
            MODEL,
            layers=layers + dense,
            experts=4,
            experts_per_token=1,
            dense_layers=dense,
            expert_interval=interval,
            sliding_window=4,
            global_interval=every,
        )
    )
    first, until = sorted((min(first, layers), min(until, layers)))
    parts = [found.counts(0, first), found.counts(first, until), found.counts(until, layers + dense)]
    assert tuple(map(sum, zip(*parts, strict=True))) == found.counts(0, layers + dense)
    counts = found.counts(0, layers + dense)
    assert sum(counts) == layers + dense
    assert list(counts) == sorted(counts, reverse=True)
