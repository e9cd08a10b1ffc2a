"""Bytes that an update of one parameter moves, and that its states take, by hand."""

import pytest

from kernelcast.runtime.step.update import MEASURED, moved_bytes, moved_share, state_bytes


@pytest.mark.parametrize(
    ("kind", "states", "moved", "kept"),
    [
        # Two moments read and written, weights read and written, the gradient read: 4 · 4 + 3 · 4.
        ("adam_fused", "float32", 28, 8),
        ("adam_fused", "bfloat16", 4 * 2 + 12, 4),
        ("adam_fused", "8bit", 4 * 1 + 12, 2),
        # A kernel for every step of the formula: moments eight times, the rest twelve times.
        ("adam_foreach", "float32", 8 * 4 + 12 * 4, 8),
        ("adam_loop", "bfloat16", 8 * 2 + 12 * 4, 4),
        # One momentum.
        ("sgd", "float32", 2 * 4 + 12, 4),
        ("lion", "8bit", 2 * 1 + 12, 1),
    ],
)
def test_bytes_of_a_parameter(kind: str, states: str, moved: int, kept: int) -> None:
    assert moved_bytes(kind, states) == moved  # type: ignore[arg-type]
    assert moved_share(kind, states) == moved / 28  # type: ignore[arg-type]
    assert state_bytes(kind, states, 4) == kept  # type: ignore[arg-type]


def test_states_of_float64() -> None:
    # Where training has 8 bytes, states that are not cut down have them too.
    assert state_bytes("adam_fused", "float32", 8) == 16
    assert state_bytes("adam_fused", "8bit", 8) == 2
    assert moved_share(*MEASURED) == 1
