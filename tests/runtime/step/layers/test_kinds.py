"""Which layers of a model are alike."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import ModelConfig
from kernelcast.runtime.step.chunks import DENSE, LayerKind, kinds_of
from kernelcast.runtime.step.layers.attention import attention
from kernelcast.runtime.step.op import computing, saved_bytes
from kernelcast.runtime.step.parameters import total_parameters
from kernelcast.runtime.step.sizes import Sizes
from tests.runtime.step.layers.conftest import listed

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
    unrotated = LayerKind(rotates=False)
    assert kinds(unrotated_interval=3) == [DENSE, DENSE, unrotated] * 2
    # Llama 4: layers without positions are those that look back to the first token.
    assert kinds(sliding_window=4, global_interval=3, unrotated_interval=3) == [local, local, unrotated] * 2
    # A window that is no shorter than the sequence changes nothing.
    assert kinds(sliding_window=16) == [DENSE] * 6
    assert kinds_of(replace(MODEL, sliding_window=4, global_interval=3)).distinct == (local, DENSE)


def test_layers_without_positions_rotate_and_keep_nothing_for_it() -> None:
    sizes = Sizes.alone(replace(MODEL, unrotated_interval=2), tp=2, micro_batch=3)
    rotated, other = attention(sizes), attention(sizes.of_kind(LayerKind(rotates=False)))
    assert ("rope", (3, 16, 2, 2, 8), 1) in listed(computing(rotated))
    assert not [name for name, *_ in listed(computing(other)) if name == "rope"]
    # Rotated queries and keys are tensors of their own next to the QKV product: 2 heads of 8 each.
    assert saved_bytes(rotated) - saved_bytes(other) == 2 * 3 * 16 * 2 * 16


def test_sinks_are_a_parameter_per_head() -> None:
    more = total_parameters(replace(MODEL, attention_sinks=True)) - total_parameters(MODEL)
    assert more == 6 * 4


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
