"""A layout written as a framework's arguments and read back is the same, as far as the framework can express it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kernelcast.runtime import ModelConfig, Parallelism, UsageError, load_model
from kernelcast.runtime.frameworks.layout_files import FRAMEWORKS, read_layout_text, write_layout
from kernelcast.runtime.frameworks.rows import Job
from kernelcast.runtime.request.fields import LAYOUT, STACK
from kernelcast.runtime.request.layout import read_layout
from kernelcast.runtime.step.chunks import layers_of_chunks, partition

every_framework = pytest.mark.parametrize("name", FRAMEWORKS)
Case = tuple[ModelConfig, Parallelism]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A model and a layout of it, with a cut of its own in half the cases."""
    model = replace(load_model("llama-3-8b"), layers=draw(st.integers(24, 40)), sequence_length=4096)
    pp = draw(st.integers(1, 6))
    one, several = (
        ["1f1b", "gpipe", *(["zero_bubble"] if pp > 1 else [])],
        ["interleaved", "zb_v", "dualpipe_v"],
    )
    schedule = draw(st.sampled_from(several if pp > 1 and draw(st.booleans()) else one))
    virtual_stages = draw(st.integers(1, 4)) if schedule == "interleaved" else 1 + (schedule in several)
    counts = None
    if draw(st.booleans()):
        ends = sorted(draw(st.integers(0, model.layers)) for _ in range(pp * virtual_stages - 1))
        counts = tuple(b - a for a, b in zip([0, *ends], [*ends, model.layers], strict=True))
    dp, cp = draw(st.integers(1, 6)), draw(st.sampled_from([1, 1, 2]))
    layout = Parallelism(
        pp=pp,
        tp=draw(st.sampled_from([1, 2, 4, 8])),
        dp=dp,
        cp=cp,
        micro_batch=draw(st.integers(1, 4)),
        micro_batches=pp * draw(st.integers(2 if schedule == "dualpipe_v" else 1, 3)),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        schedule=schedule,
        virtual_stages=virtual_stages,
        zero=draw(st.integers(0, 3)),
        shard_group=draw(st.sampled_from([0, 2])) if dp * cp % 2 == 0 else 0,
        sequence_parallel=draw(st.booleans()),
        layer_counts=counts,
        recompute_modules=draw(st.sampled_from([("core_attn",), ("mlp", "layernorm"), ("core_attn", "mlp")])),
        recompute_layers=draw(st.integers(0, 4)),
        recompute_together=draw(st.integers(1, 3)),
        recompute_early_stop=draw(st.booleans()),
        dropout=draw(st.sampled_from([0.0, 0.1])),
        vocabulary_multiple=draw(st.sampled_from([1, 64, 128])),
    )
    try:
        layers_of_chunks(model.layers, layout)
    except UsageError:
        assume(False)
    return model, layout


WRITTEN = (
    "shard_group",
    "recompute_modules",
    "recompute_layers",
    "recompute_together",
    "recompute_early_stop",
    "dropout",
    "vocabulary_multiple",
)
"""Fields of the training software that are drawn, and that some framework has an argument for."""


def plain(model: ModelConfig, layout: Parallelism) -> Parallelism:
    """The same layout with what changes nothing in it at its plainest, and with the layers of every chunk."""
    return replace(
        layout,
        zero=layout.zero if layout.replicas > 1 else 0,
        shard_group=layout.shards if layout.zero and layout.shards < layout.replicas else 0,
        sequence_parallel=layout.sequence_parallel and layout.tp > 1,
        recompute_modules=layout.recompute_modules if layout.recompute == "selective" else ("core_attn",),
        recompute_layers=layout.recompute_layers if layout.recompute == "full" else 0,
        recompute_together=(
            layout.recompute_together if layout.recompute == "full" and not layout.recompute_layers else 1
        ),
        recompute_early_stop=layout.recompute_early_stop and layout.recompute != "none",
        layer_counts=layers_of_chunks(model.layers, layout),
        # Frameworks overlap by default, kernelcast does not; see test_megatron.py and test_nested.py.
        **{name: LAYOUT[name].default for name in STACK if name not in WRITTEN},
    )


def expressible(name: str, model: ModelConfig, layout: Parallelism) -> Parallelism:
    """What is left of a layout in a framework's arguments."""
    changes: dict[str, Any] = {}
    if layout.virtual_stages == 1 and (name == "megatron-lm" or layout.schedule == "interleaved"):
        changes["schedule"] = "1f1b"
    elif name == "megatron-lm":
        changes["schedule"] = "interleaved"
    if name == "torchtitan":
        if layout.schedule == "zero_bubble" or layout.pp == 1:
            changes["schedule"] = "1f1b"
        changes["zero"] = max(layout.zero, 2) if layout.zero else 0
        if not layout.zero and layout.cp > 1:
            # Devices of a context-parallel group always share the parameters of a replica.
            changes["zero"] = 2
            changes["shard_group"] = layout.cp if layout.dp > 1 else 0
        changes["vocabulary_multiple"] = 1
        changes["dropout"] = 0.0
    if name == "nemo":
        changes["schedule"] = "interleaved" if layout.virtual_stages > 1 else "1f1b"
        changes |= {"zero": min(layout.zero, 1), "shard_group": 0, "dropout": 0.0}
        changes["recompute_modules"] = ("core_attn",)
    if name in ("megatron-lm", "nemo"):
        changes["recompute_early_stop"] = False
    else:
        changes["recompute_modules"], changes["recompute_layers"] = ("core_attn",), 0
        changes["recompute_together"] = 1
    if name == "llm-foundry":
        changes |= {"zero": 0 if layout.zero == 1 else layout.zero, "recompute_early_stop": False}
        changes |= {"vocabulary_multiple": 1, "dropout": 0.0, "shard_group": 0, "schedule": "1f1b"}
        changes["recompute"] = "full" if layout.recompute == "full" else "none"
    if name == "deepspeed":
        changes |= {"schedule": "1f1b", "virtual_stages": 1, "sequence_parallel": False}
        changes |= {"vocabulary_multiple": 128, "dropout": 0.0, "recompute_early_stop": False}
        changes["layer_counts"] = partition(model.layers, layout.pp)
        if layout.recompute == "selective":
            changes["recompute"] = "none"
        changes["shard_group"] = 0
    return replace(layout, **changes)


def of_framework(name: str, layout: Parallelism) -> Parallelism:
    """Data parallel alone for LLM Foundry, which cuts no model."""
    if name != "llm-foundry":
        return layout
    shards = {"shard_group": 0 if layout.dp % 2 else layout.shard_group}
    whole = dict.fromkeys(("pp", "tp", "cp", "virtual_stages"), 1)
    return replace(layout, **whole, **shards, schedule="1f1b", layer_counts=None, sequence_parallel=False)


def read_back(text: str, model: ModelConfig, devices: int) -> tuple[Parallelism, dict[str, Any]]:
    file = read_layout_text(text, "text")
    assert file.unread == ()
    fields, _, _ = file.request(model, {}, devices if file.name == "llm-foundry" else None)
    return read_layout(fields), fields


@every_framework
@given(case=cases(), gpus_per_node=st.integers(1, 9))
def test_the_same_as_far_as_it_can_be_expressed(name: str, case: Case, gpus_per_node: int) -> None:
    model, layout = case
    layout = plain(model, of_framework(name, layout))
    written = write_layout(
        name, Job(model=model, parallelism=layout, gpus_per_node=gpus_per_node, dtype="bfloat16")
    )
    expected = expressible(name, model, layout)
    found, fields = read_back(written.text, model, layout.world_size)
    assert plain(model, found) == expected
    assert fields.get("sequence_length", 4096) == 4096
    # Whatever is not the same was said.
    lost = "; ".join(written.lost)
    for field, said in (
        ("schedule", "schedule"),
        ("virtual_stages", "virtual_stages"),
        ("zero", "zero"),
        ("recompute", "recompute"),
        ("recompute_modules", "recompute_modules"),
        ("recompute_layers", "recompute_layers"),
        ("recompute_together", "recompute_together"),
        ("recompute_early_stop", "recompute_early_stop"),
        ("dropout", "dropout"),
        ("sequence_parallel", "sequence_parallel"),
        ("layer_counts", "layers per chunk"),
        ("shard_group", "shard_group"),
    ):
        if getattr(expected, field) != getattr(layout, field):
            assert said in lost


@every_framework
@given(case=cases())
def test_what_is_read_is_written_the_same(name: str, case: Case) -> None:
    model, layout = case
    job = Job(
        model=model,
        parallelism=plain(model, of_framework(name, layout)),
        gpus_per_node=8,
        dtype="float32",
    )
    text = write_layout(name, job).text
    again, _ = read_back(text, model, job.parallelism.world_size)
    assert write_layout(name, replace(job, parallelism=again)).text == text
