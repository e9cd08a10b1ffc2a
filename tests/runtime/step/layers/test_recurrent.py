"""Mamba-2 and gated delta nets by hand, and layers of one part."""

from dataclasses import replace

import pytest

from kernelcast.runtime import ModelConfig, Parallelism, UsageError
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.request.models import load_model
from kernelcast.runtime.step.chunks import LayerKind, kinds_of
from kernelcast.runtime.step.layers.recurrent import recurrent_mixer
from kernelcast.runtime.step.layers.transformer_layer import transformer_layer
from kernelcast.runtime.step.op import Op, computing, saved_bytes
from kernelcast.runtime.step.sizes import Sizes
from tests.runtime.step.layers.conftest import listed

# w = 8 · 4 = 32, gn = 2 · 16 = 32.
MODEL = ModelConfig(
    name="m",
    hidden_size=24,
    sequence_length=16,
    attention_heads=4,
    layers=6,
    vocabulary_size=256,
    layer_pattern="MG*-M*",
    recurrent_heads=8,
    recurrent_head_size=4,
    recurrent_groups=2,
    recurrent_state_size=16,
    norm="rms_norm",
    activation="swiglu",
)
MAMBA, DELTA = (LayerKind(mixer=mixer, has_mlp=False) for mixer in ("mamba2", "gated_delta_net"))


def ops(kind: LayerKind, **fields: object) -> dict[str, Op]:
    return {one.name: one for one in recurrent_mixer(Sizes.alone(MODEL, kind=kind, **fields))}


def test_kinds_of_a_pattern() -> None:
    kinds = kinds_of(MODEL)
    attention, mlp = LayerKind(has_mlp=False), LayerKind(mixer="")
    assert [kinds.distinct[kind] for kind in kinds.of_layer] == [
        MAMBA,
        DELTA,
        attention,
        mlp,
        MAMBA,
        attention,
    ]
    both = kinds_of(replace(MODEL, layer_pattern="G- *-"))
    assert [both.distinct[kind] for kind in both.of_layer] == [DELTA._replace(has_mlp=True), LayerKind()] * 3
    # 23 of Mamba-2, 23 of experts, 6 of attention (arXiv 2512.20848, section 2.1).
    assert kinds_of(load_model("nemotron-3-nano")).counts(0, 52) == (23, 23, 6)


def test_a_layer_of_one_part_has_one_norm_and_one_sum() -> None:
    for kind, absent in ((MAMBA, "pre_mlp_norm"), (LayerKind(mixer=""), "input_norm")):
        names = [one.name for one in transformer_layer(Sizes.alone(MODEL, kind=kind))]
        assert absent not in names
        assert len([name for name in names if name.endswith("norm") and name != "gated_norm"]) == 1
        assert len([name for name in names if name.endswith("residual")]) == 1
        # Its input alone is kept of the residual stream.
        kept = [
            one for one in transformer_layer(Sizes.alone(MODEL, kind=kind)) if one.name.endswith("residual")
        ]
        assert not saved_bytes(kept)


def test_calls_of_mamba_2() -> None:
    # z, x: 32 each, B, C: 32 each, dt: 8; a half of them on each of two devices.
    assert listed(computing(ops(MAMBA, tp=2, micro_batch=3).values())) == [
        ("gemm/recurrent_in", (48, 24, 68), 1),
        ("causal_convolution", (3, 16, 48), 1),
        ("state_space_scan", (3, 16, 1, 4, 16, 4), 1),
        ("rms_norm", (3, 16, 16), 1),
        ("gemm/recurrent_out", (48, 16, 24), 1),
    ]
    # Megatron-core has tokens first, the scan's kernels samples.
    copies = [
        [
            one
            for one in listed(computing(ops(MAMBA, tp=2, micro_batch=b, kept_by="megatron").values()))
            if one[0] == "copy"
        ]
        for b in (1, 3)
    ]
    assert copies == [[], [("copy", (48, 68), 1), ("copy", (48, 16), 1)]]
    found = ops(MAMBA, cp=2)
    # Whole sequences, and half of the heads.
    assert found["scan"].call is not None
    assert found["scan"].call.shape == (1, 16, 1, 4, 16, 4)
    exchanged = [one.call for one in found.values() if one.collective and one.call is not None]
    assert [(one.operator, one.shape[0], one.count) for one in exchanged] == [
        ("all_to_all", 8 * 136, 1),
        ("all_to_all", 8 * 32, 1),
    ]


def test_parameters() -> None:
    # d(2w + 2gn + heads); four taps and a bias of 96 channels; A, D, bias of dt; the norm; wd.
    parts = (24 * 136, 96 * 5, 3 * 8, 32, 32 * 24)
    assert sum(one.parameters for one in ops(MAMBA).values()) == sum(parts)
    # beta and alpha of each head; taps alone; A and a bias; a norm of one head.
    parts = (24 * 144, 96 * 4, 2 * 8, 4, 32 * 24)
    assert sum(one.parameters for one in ops(DELTA).values()) == sum(parts)
    # The norm of one head is on both devices.
    assert 2 * sum(one.parameters for one in ops(DELTA, tp=2).values()) == sum(parts) + 4


def test_kept_bytes() -> None:
    # Of a token 136 projected, the scan's 32 and the gated 32; the 96 convolved are computed again.
    assert saved_bytes(ops(MAMBA).values()) == 2 * 16 * (136 + 32 + 32)
    again = [one.direction for one in ops(MAMBA)["convolution"].backward()]
    assert again == [Direction.FORWARD, Direction.BACKWARD]
    # They are kept, and 64 of each head: the inverse within a chunk.
    assert saved_bytes(ops(DELTA).values()) == 2 * 16 * (144 + 96 + 8 * 64 + 32 + 32)


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"layer_pattern": "MX"}, "layer_pattern", "expected letters of M mamba2"),
        ({"layer_pattern": "MG *-"}, "layer_pattern", "expected at most one of M, G and"),
        ({"layer_pattern": "M* -"}, "layer_pattern", "expected at most one of M, G and"),
        ({"layer_pattern": "M-M*"}, "layers", "expected a multiple of the 4 layers of layer_pattern"),
        ({"layer_pattern": "ME"}, "layer_pattern", "expected no E with experts 0"),
        ({"layer_pattern": "*-"}, "recurrent_heads", "expected 0 without M or G"),
        ({"recurrent_groups": 0}, "recurrent_groups", "expected at least 1 with M or G"),
        ({"recurrent_groups": 3}, "recurrent_heads", r"expected a multiple of recurrent_groups \(3\)"),
        ({"parallel_residual": True}, "parallel_residual", "expected false with layer_pattern"),
        ({"experts": 4, "experts_per_token": 1}, "layer_pattern", "expected some E with experts 4"),
    ],
)
def test_patterns_that_are_refused(changes: dict[str, object], field: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        replace(MODEL, **changes)
    assert refused.value.field == field


def test_groups_are_cut_by_tensor_and_context_parallelism() -> None:
    with pytest.raises(UsageError, match=r"tp · cp is 4, expected a divisor of recurrent_groups \(2\)"):
        Parallelism(pp=1, tp=2, dp=1, cp=2, micro_batch=1, micro_batches=1).check(MODEL)
