"""What would make a step fit: every change fits, on equal devices, with equal samples."""

from dataclasses import replace
from math import prod
from typing import Any

import pytest

from kernelcast.runtime import Cluster, DataError, Estimator, Parallelism, load_model, predict
from kernelcast.runtime.estimate.fitting_changes import faster_changes, fitting_changes
from kernelcast.runtime.request.fields import SAMPLES
from kernelcast.runtime.search.read_question import read_question
from kernelcast.runtime.search.search import search


@pytest.fixture(scope="module")
def estimator() -> Estimator:
    return Estimator.load("h100-sxm")


LAYOUT = Parallelism(pp=1, tp=4, dp=16, micro_batch=4, micro_batches=8)


def asked(estimator: Estimator, **fields: Any) -> Any:
    return estimator.predict(model=load_model("llama-3.1-8b"), parallelism=replace(LAYOUT, **fields))


def test_single_changes(estimator: Estimator) -> None:
    estimate = asked(estimator)
    assert estimate.memory.fits is False
    found = fitting_changes(estimator, estimate)
    kinds = [(next(iter(one.fields)), one.more_devices is None) for one in found]
    names = ("recompute", "micro_batch", "tp", "pp", "offload_activations")
    assert {("pp", False), *((name, True) for name in names)} <= set(kinds)
    assert len(kinds) == len(set(kinds))
    assert [one.step_time_s for one in found] == sorted(one.step_time_s for one in found)
    for one in found:
        changed = asked(estimator, **one.fields)
        assert changed.memory.fits
        assert (changed.step_time_s, changed.memory.largest_bytes) == (one.step_time_s, one.memory_bytes)
        layout = changed.parallelism
        assert layout.world_size == (one.more_devices or LAYOUT.world_size)
        assert prod(getattr(layout, name) for name in SAMPLES) == prod(
            getattr(LAYOUT, name) for name in SAMPLES
        )


def test_a_refusal_of_all_layouts_says_with_what_the_smallest_fits(estimator: Estimator) -> None:
    changes = r"pp 2 \(16 devices, [0-9.]+ s a step\) or with lora_rank 16 \([0-9.]+ s a step\)"
    with pytest.raises(DataError, match=f"the smallest needs .*; it fits with {changes}$") as refused:
        predict(estimator, "llama-3-70b", gpus=8, global_batch=8)
    assert "\n" not in str(refused.value)
    assert predict(estimator, "llama-3-70b", gpus=8, global_batch=8, lora_rank=16).memory.fits


def test_a_search_lists_what_makes_its_smallest_layout_fit(estimator: Estimator) -> None:
    model = load_model("llama-3-70b")
    asked = {"gpus": 8, "global_batch": 64}
    smallest = search(estimator, read_question(asked, model=model, bundle=estimator.bundle)).smallest
    assert smallest
    assert smallest.changes
    for one in smallest.changes:
        layout = replace(smallest.parallelism, **one.fields)
        changed = estimator.predict(model=model, parallelism=layout, cluster=Cluster(gpus_per_node=8))
        assert changed.memory.fits
        assert (changed.step_time_s, changed.memory.largest_bytes) == (one.step_time_s, one.memory_bytes)


def test_changes_that_fit_with_a_probability(estimator: Estimator) -> None:
    usual = asked(estimator, recompute="full")
    memory = round(1.01 * usual.memory.largest_bytes) + sum(usual.memory.taken_bytes.values())
    estimate = estimator.predict(model=usual.model, parallelism=usual.parallelism, gpu_memory_bytes=memory)
    probability = estimate.memory.fit_probability
    assert estimate.memory.fits
    assert probability is not None
    assert fitting_changes(estimator, estimate, fit_probability=probability) == ()
    found = fitting_changes(estimator, estimate, fit_probability=(1 + probability) / 2)
    assert found
    assert all(one.memory_bytes < estimate.memory.largest_bytes for one in found)


def test_of_each_kind_the_least(estimator: Estimator) -> None:
    [halved] = [one for one in fitting_changes(estimator, asked(estimator)) if "micro_batch" in one.fields]
    assert halved.fields == {"micro_batch": 2, "micro_batches": 16}


def test_nothing_where_it_fits(estimator: Estimator) -> None:
    assert fitting_changes(estimator, asked(estimator, recompute="full")) == ()


def test_with_full_recomputation_where_no_single_change_does(estimator: Estimator) -> None:
    estimate = estimator.predict(model=load_model("llama-3.1-70b"), parallelism=LAYOUT)
    found = fitting_changes(estimator, estimate)
    assert found
    assert all(one.fields["recompute"] == "full" and len(one.fields) > 1 for one in found)


def test_more_devices_or_adapters_make_a_step_fit(estimator: Estimator) -> None:
    # One device: its states do not fit, and its micro-batches can go to others.
    alone = {"tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 16, "recompute": "full", "zero": 3}
    found = [one.fields for one in fitting_changes(estimator, asked(estimator, **alone))]
    assert {"lora_rank": 16} in found
    [more] = [fields for fields in found if "dp" in fields]
    assert more["dp"] * more["micro_batches"] == 16


def test_frozen_weights_in_4_bit_make_adapters_fit(estimator: Estimator) -> None:
    alone = {"tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 16, "recompute": "full", "lora_rank": 16}
    estimate = estimator.predict(model=load_model("llama-3.1-70b"), parallelism=replace(LAYOUT, **alone))
    [found] = [one for one in fitting_changes(estimator, estimate) if "frozen_weights" in one.fields]
    assert found.fields == {"frozen_weights": "nf4"}
    assert found.step_time_s > estimate.step_time_s


SLOW = {"micro_batch": 1, "micro_batches": 32, "recompute": "full"}


def test_changes_that_shorten_a_step(estimator: Estimator) -> None:
    estimate = asked(estimator, **SLOW)
    found = faster_changes(estimator, estimate)
    assert {"recompute": "none"} in [one.fields for one in found]
    assert [one.step_time_s for one in found] == sorted(one.step_time_s for one in found)
    for one in found:
        changed = asked(estimator, **SLOW | one.fields)
        assert changed.memory.fits
        assert changed.step_time_s == one.step_time_s <= 0.99 * estimate.step_time_s
        assert changed.parallelism.samples_per_update == estimate.parallelism.samples_per_update
    [more] = [one for one in found if set(one.fields) == {"dp", "micro_batches"}]
    assert more.fields == {"dp": 32, "micro_batches": 16}


def test_a_graph_takes_the_launches_of_the_host(estimator: Estimator) -> None:
    found = [
        faster_changes(estimator, asked(estimator, **SLOW, kept_by="megatron", host_launch_us=us))
        for us in (0.0, 1e3)
    ]
    assert [{"cuda_graphs": "full"} in [one.fields for one in changes] for changes in found] == [False, True]


def test_frozen_weights_in_16_bit_need_no_dequantisation(estimator: Estimator) -> None:
    estimate = asked(estimator, **SLOW | {"recompute": "none"}, lora_rank=8, frozen_weights="nf4")
    assert {"frozen_weights": "same"} in [one.fields for one in faster_changes(estimator, estimate)]


def test_only_changes_that_the_framework_runs(estimator: Estimator) -> None:
    # Without tensor parallelism: LLM Foundry has none, and no selective recomputation either.
    estimate = asked(estimator, **SLOW, tp=1, zero=3)
    free = {name for one in faster_changes(estimator, estimate) for name in one.fields}
    found = faster_changes(estimator, estimate, framework="llm-foundry")
    assert found
    for one in found:
        assert one.fields.get("recompute") in (None, "none")
        assert one.fields.get("zero") in (None, 0, 2)
        assert not {"tp", "pp", "sequence_parallel"} & set(one.fields)
    assert {name for one in found for name in one.fields} <= free
