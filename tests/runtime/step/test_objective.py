"""Laws of direct preference optimization: its steps against supervised ones of the same sequences."""

import pytest
from hypothesis import given

from kernelcast.runtime import Estimator, ModelConfig, Parallelism
from kernelcast.runtime.memory.stages import stage_memory
from kernelcast.runtime.request.fields import LAYOUT
from tests.runtime.step.test_op_laws import changed, questions, taken_apart


def by_objective(layout: Parallelism) -> list[Parallelism]:
    """Supervised with twice the samples, and both kinds of DPO."""
    twice = changed(layout, objective="next_token", micro_batch=2 * layout.micro_batch)
    return [twice, *(changed(layout, objective=one) for one in ("dpo_precomputed", "dpo"))]


@given(question=questions())
def test_a_pair_takes_what_two_samples_take_and_the_reference_comes_on_top(
    constant: Estimator, question: tuple[ModelConfig, Parallelism]
) -> None:
    model, layout = question
    twice, precomputed, dpo = (
        constant.predict(model=model, parallelism=one, interval=False) for one in by_objective(layout)
    )
    assert precomputed.step_time_s == twice.step_time_s < dpo.step_time_s
    assert precomputed.tokens_per_s == twice.tokens_per_s
    # Another forward pass at most: adapters and dropout, which the reference has not, take no less than nothing.
    assert dpo.step_time_s <= 2 * precomputed.step_time_s
    assert precomputed.model_flops == twice.model_flops
    if not layout.lora_rank:
        assert dpo.model_flops == pytest.approx(4 / 3 * twice.model_flops, rel=1e-12)


@given(questions())
def test_a_reference_runs_the_forward_pass_without_adapters_and_dropout(
    question: tuple[ModelConfig, Parallelism],
) -> None:
    model, layout = question
    dpo = taken_apart(model, changed(layout, objective="dpo")).blocks
    plain = taken_apart(model, changed(by_objective(layout)[0], lora_rank=0, dropout=0.0)).blocks
    for name, block in dpo.items():
        reference = [call for one in block.passes.reference for call in one.forward()]
        assert reference == [call for one in plain[name].ops for call in one.forward()]
        assert (
            block.passes.backward == taken_apart(model, by_objective(layout)[0]).blocks[name].passes.backward
        )


@given(questions())
def test_the_copy_of_the_weights_is_all_the_memory_of_a_reference(
    question: tuple[ModelConfig, Parallelism],
) -> None:
    model, layout = question
    twice, precomputed, dpo = (stage_memory(model, one)[0] for one in by_objective(layout))
    assert precomputed == twice
    copy = dpo.weights_bytes - twice.weights_bytes
    assert dpo.total_bytes - twice.total_bytes == copy
    if layout.lora_rank:  # without its adapters the model is its own reference
        assert copy == 0
    elif layout.zero < 3 or layout.replicas == 1:
        assert copy == 2 * twice.parameters
    else:
        assert 0 < copy <= 2 * twice.parameters


def test_tokens_of_both_sequences_count() -> None:
    layout = Parallelism(pp=1, tp=1, dp=2, micro_batch=3, micro_batches=4, objective="dpo")
    model = ModelConfig(
        name="small", hidden_size=64, sequence_length=32, attention_heads=4, layers=2, vocabulary_size=512
    )
    assert (layout.samples_per_update, layout.sample_length(model)) == (24, 64)
    assert LAYOUT["objective"].default == "next_token"
