"""The model that trains for real: its stages are the whole cut up, and its parameters those that are predicted."""

from dataclasses import replace

import pytest
import torch

from kernelcast.collector.gpt import Stage, build_stage, require_trainable
from kernelcast.collector.layers import token_loss
from kernelcast.runtime import ModelConfig, UsageError
from kernelcast.runtime.parameters import stage_parameters

VOCABULARY = 128
VARIANTS = {
    "gpt": {},
    "llama": {"norm": "rms_norm", "activation": "swiglu", "mlp_size": 88, "biases": "none"},
    "parallel residual": {"parallel_residual": True},
    "without rotation": {"rotary": False},
    "gated with layer norm": {"activation": "swiglu"},
    "rms norm with gelu": {"norm": "rms_norm", "biases": "mlp"},
    "heads of their own size": {"head_size": 6},
    "biases of queries, keys and values only": {"biases": "qkv"},
}


def batch(model: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    size = (2, model.sequence_length)
    return torch.randint(model.vocabulary_size, size), torch.randint(model.vocabulary_size, size)


def cut(model: ModelConfig, encoders: tuple[int, ...], whole: Stage) -> list[Stage]:
    """Stages that hold the weights of `whole`."""
    stages = [
        build_stage(model, encoders=encoders, stage=index, vocabulary_size=VOCABULARY)
        for index in range(len(encoders))
    ]
    weights, first = whole.state_dict(), 0
    for count, stage in zip(encoders, stages, strict=True):
        own = {}
        for name in stage.state_dict():
            head, _, tail = name.partition(".")
            number, _, rest = tail.partition(".")
            own[name] = weights[f"encoders.{first + int(number)}.{rest}" if head == "encoders" else name]
        stage.load_state_dict(own)
        first += count
    return stages


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("encoders", [(2, 1), (1, 1, 1), (3, 0)])
def test_a_cut_model_learns_as_the_whole_does(
    model: ModelConfig, changes: dict[str, object], encoders: tuple[int, ...]
) -> None:
    model = replace(model, **changes)  # type: ignore[arg-type]
    whole = build_stage(model, encoders=(3,), stage=0, vocabulary_size=VOCABULARY)
    stages = cut(model, encoders, whole)
    tokens, targets = batch(model)

    loss = token_loss(whole(tokens), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    x = tokens
    for stage in stages:
        x = stage(x)
    assert x.shape == (2, model.sequence_length, VOCABULARY)
    cut_loss = token_loss(x, targets)
    cut_loss.backward()  # type: ignore[no-untyped-call]

    assert cut_loss.item() == pytest.approx(loss.item(), rel=1e-6)
    assert loss.item() == pytest.approx(4.85, abs=0.6)  # ln 128: it knows nothing yet
    found = [parameter.grad for stage in stages for parameter in stage.parameters()]
    expected = [parameter.grad for parameter in whole.parameters()]
    # Both in the order embedding, encoders, norm, logits.
    for one, other in zip(found, expected, strict=True):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one, other)
        assert one.any()


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_parameters_are_those_that_are_predicted(model: ModelConfig, changes: dict[str, object]) -> None:
    model = replace(model, **changes)  # type: ignore[arg-type]
    encoders = (2, 1, 0)
    for stage, count in enumerate(encoders):
        module = build_stage(model, encoders=encoders, stage=stage, vocabulary_size=VOCABULARY)
        first, last = stage == 0, stage == len(encoders) - 1
        assert sum(p.numel() for p in module.parameters()) == stage_parameters(
            model, 1, encoders=count, first=first, last=last
        )


def test_attention_is_causal(model: ModelConfig) -> None:
    module = build_stage(model, encoders=(3,), stage=0, vocabulary_size=VOCABULARY)
    tokens, _ = batch(model)
    changed = tokens.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % model.vocabulary_size
    with torch.no_grad():
        before, after = module(tokens), module(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_positions_matter_with_rotation_only(model: ModelConfig) -> None:
    tokens = torch.full((1, model.sequence_length), 5)
    tokens[0, :2] = torch.tensor([1, 2])
    swapped = tokens.clone()
    swapped[0, :2] = torch.tensor([2, 1])
    for rotary in (True, False):
        module = build_stage(
            replace(model, rotary=rotary, encoders=1), encoders=(1,), stage=0, vocabulary_size=VOCABULARY
        )
        with torch.no_grad():
            same = torch.allclose(module(tokens)[0, -1], module(swapped)[0, -1], atol=1e-6)
        assert same is not rotary


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "unfused"}, "model tiny: attention is 'unfused', real steps train 'flash' only"),
        (
            {"kv_heads": 2},
            r"model tiny: kv_heads is 2, real steps train 4 \(as many as attention_heads\) only",
        ),
        ({"head_size": 5}, "model tiny: head_size is 5, rotary position embedding needs an even number"),
        ({"learned_positions": 64}, "model tiny: learned_positions is 64, real steps train 0 only"),
        ({"tied_embeddings": True}, "model tiny: tied_embeddings is true, real steps train false only"),
    ],
)
def test_what_is_not_trained_is_named(model: ModelConfig, changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        require_trainable(replace(model, **changes))  # type: ignore[arg-type]
    require_trainable(replace(model, head_size=5, rotary=False))
    require_trainable(model)
