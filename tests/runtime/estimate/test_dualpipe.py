"""DualPipe as estimates see it: pairs that hide the exchange with experts, and two copies of the model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import Cluster, Estimate, Estimator, ModelConfig, Parallelism
from kernelcast.runtime.memory.stages import stage_memory

Make = Callable[..., Path]
MODEL = ModelConfig(
    name="tiny", hidden_size=8, sequence_length=4, attention_heads=2, layers=8, vocabulary_size=100
)
MIXTURE = replace(MODEL, experts=4, experts_per_token=2)
LAYOUT: dict[str, Any] = {"pp": 2, "tp": 1, "dp": 2, "micro_batch": 1, "micro_batches": 4}


def ask(bundle: Path, model: ModelConfig = MODEL, **layout: Any) -> Estimate:
    return Estimator.load(bundle).predict(
        model=model,
        parallelism=Parallelism(**LAYOUT | layout),
        cluster=Cluster(gpus_per_node=4),
        interval=False,
    )


@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipe_v"])
def test_pairs_hide_the_exchange_with_experts(make_bundle: Make, schedule: str) -> None:
    bundle = make_bundle({"all_to_all": 50.0})

    def asked(**layout: Any) -> Estimate:
        return ask(bundle, MIXTURE, ep=2, schedule=schedule, **layout)

    exchange_us, estimate = 3 * 50.0, asked()
    durations, layers = estimate.durations, 4 if schedule == "dualpipe" else 2
    assert durations.saved_forward_us is not None
    assert durations.saved_backward_us is not None
    # Alone a pass takes the whole exchange of its layers; in a pair a quarter of it, or what a layer does not compute.
    alone = asked(exposed_share=1.0).durations
    assert alone.forward_us.tolist() == durations.forward_us.tolist()
    assert not alone.saved_forward_us.any()  # type: ignore[union-attr]
    layer_us = durations.forward_us[0, 1] / layers - exchange_us
    if schedule == "dualpipe_v":  # its second chunk has no end of the model
        exposed_us = max(0.25 * exchange_us, exchange_us - layer_us)
        assert durations.saved_forward_us[0, 1] == pytest.approx(layers * (exchange_us - exposed_us))
    assert durations.saved_forward_us.min() > 0
    assert durations.saved_backward_us.min() > 0
    # Hidden everywhere: nothing is left to be hidden in pairs.
    everywhere = asked(expert_overlap=True)
    assert not everywhere.durations.saved_forward_us.any()  # type: ignore[union-attr]
    expected = durations.forward_us - durations.saved_forward_us
    assert everywhere.durations.forward_us[0].tolist() == pytest.approx(expected[0].tolist())
    assert everywhere.step_time_s < estimate.step_time_s < asked(exposed_share=1.0).step_time_s


def test_without_experts_there_is_nothing_to_hide(make_bundle: Make) -> None:
    durations = ask(make_bundle(), schedule="dualpipe").durations
    assert not durations.saved_forward_us.any()  # type: ignore[union-attr]
    assert not durations.saved_backward_us.any()  # type: ignore[union-attr]


def test_both_copies_of_the_model_are_held_and_combined(make_bundle: Make) -> None:
    bundle = make_bundle()
    one, two = ask(bundle), ask(bundle, schedule="dualpipe")
    parameters = [stage.parameters for stage in one.stages]
    assert [stage.parameters for stage in two.stages] == [sum(parameters)] * 2
    # Every parameter is on 2 · dp devices; the mirrored stage is on this node where the job is.
    group = two.parts.data_parallel.group
    assert (group.nodes, group.gpus_per_node) == (1, 4)
    assert ask(bundle, schedule="dualpipe", dp=4).parts.data_parallel.group.nodes == 2
    # A micro-batch runs through one copy: together the stages compute as much for each as without the second one.
    assert sum(stage.forward_s for stage in two.stages) == pytest.approx(
        sum(stage.forward_s for stage in one.stages)
    )


def test_states_are_sharded_over_the_devices_of_both_copies() -> None:
    layout = Parallelism(**LAYOUT | {"pp": 4, "dp": 3, "micro_batches": 8, "schedule": "dualpipe"})
    held, plain = (
        stage_memory(MODEL, replace(layout, schedule=one), dtype="float16") for one in ("dualpipe", "1f1b")
    )
    for stage, one in enumerate(held):
        both = plain[stage].parameters + plain[3 - stage].parameters
        assert one.parameters == both
        assert one.weights_bytes == 2 * both
        assert one.optimizer_bytes == 12 * -(-both // 6)


def test_a_v_lies_on_its_stages_both_ways(make_bundle: Make) -> None:
    # 8 layers on 4 chunks: the first stage has both ends of the model, the second one neither.
    estimate = ask(make_bundle(), schedule="zb_v", layer_counts=(1, 2, 4, 1))
    assert estimate.parallelism.virtual_stages == 2
    assert [stage.layers for stage in estimate.stages] == [2, 6]
    # Between the chunks of a stage nothing is sent.
    assert estimate.durations.send_forward_us[0].tolist() == [5, 0, 5, 0]
    assert estimate.durations.send_backward_us[0].tolist() == [0, 5, 0, 5]
