"""Laws of the ops of all layers: models and layouts with every option, drawn at random."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kernelcast.runtime import Cluster, Estimator, ModelConfig, Parallelism, UsageError
from kernelcast.runtime.estimate.pricing import MICRO_BATCH, What
from kernelcast.runtime.memory.stages import stage_memory
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.request.fields import RecomputeModule
from kernelcast.runtime.step.decomposition import Decomposition, decompose
from kernelcast.runtime.step.op import Call, Ops
from kernelcast.runtime.step.recomputation import PER_OP, recomputed, with_parts

FIELDS: dict[str, Any] = {
    "name": "any",
    "hidden_size": 64,
    "sequence_length": 64,
    "attention_heads": 16,
    "head_size": 8,
    "layers": 4,
    "vocabulary_size": 1024,
    "mlp_size": 64,
}
EXPERTS = {"experts": 8, "experts_per_token": 2, "expert_size": 32, "dense_layers": 1}
HYBRID = {"recurrent_heads": 8, "recurrent_head_size": 8, "recurrent_groups": 8, "recurrent_state_size": 16}
LATENT = {"kv_rank": 8, "rotary_size": 4, "value_head_size": 8}
OF_MODEL: dict[str, tuple[Any, ...]] = {
    "kv_heads": (16, 8),
    "activation": ("gelu", "swiglu", "geglu", "squared_relu"),
    "norm": ("layer_norm", "rms_norm"),
    "attention": ("flash", "fused_softmax", "unfused"),
    "biases": ("all", "qkv", "mlp", "none"),
    "learned_positions": (0, 64),
    "extra_predictions": (0, 0, 1, 2),
    "sliding_window": (0, 8),
    "global_interval": (0, 2),
    "forward_syncs": (1, 2),
    "backward_syncs": (1, 2),
} | dict.fromkeys(
    (
        "rotary",
        "parallel_residual",
        "tied_embeddings",
        "post_norms",
        "qk_norm",
        "attention_sinks",
        "attention_gate",
    ),
    (False, True),
)
OF_LAYOUT: dict[str, tuple[Any, ...]] = {
    "tp": (1, 2, 4),
    "cp": (1, 1, 1, 2),
    "ep": (1, 2, 4),
    "expert_tp": (1, 2),
    "zero": (0, 1, 3),
    "micro_batch": (1, 2),
    "context_exchange": ("ring", "all_to_all", "all_gather"),
    "tensor_overlap": ("none", "weight_gradients", "products"),
    "fp8_recipe": ("none", "tensorwise", "blockwise"),
    "lora_rank": (0, 2),
    "dropout": (0.0, 0.1),
    "kept_by": ("torch", "megatron", "megatron_local"),
    "loss": ("plain", "fused", "in_place"),
    "recompute_modules": (
        *((name,) for name in get_args(RecomputeModule) if name != PER_OP),
        ("core_attn", "layernorm", "mlp"),
        ("layernorm", "mla_up_proj", "mlp", "moe_act"),
    ),
    "recompute": ("none", "selective", "full"),
    "recompute_early_stop": (False, True),
    "expert_overlap": (False, True),
    "objective": ("next_token", "dpo", "dpo_precomputed"),
}


@st.composite
def questions(draw: st.DrawFn) -> tuple[ModelConfig, Parallelism]:
    """A model, and a layout on up to 16 devices that it can have; every option is among them."""
    model, layout = (
        {name: draw(st.sampled_from(values)) for name, values in fields.items()}
        for fields in (OF_MODEL, OF_LAYOUT)
    )
    kind = draw(st.sampled_from(("dense", "experts", "latent", "both")))
    if kind in ("experts", "both"):
        model |= EXPERTS | {"shared_expert_size": draw(st.sampled_from((0, 64)))}
        model |= {"expert_latent_size": draw(st.sampled_from((0, 24)))}
        model |= {"router": draw(st.sampled_from(("softmax", "sigmoid")))}
        layout["sequence_parallel"] = layout["tp"] > 1
    else:
        layout |= {"ep": 1, "expert_tp": 1, "expert_overlap": False}
        layout["sequence_parallel"] = draw(st.booleans())
    if kind in ("latent", "both"):
        model |= LATENT | {"kv_heads": 16, "query_rank": draw(st.sampled_from((0, 16)))}
        model |= {
            "attention": "flash",
            "norm": "rms_norm",
            "biases": "none",
            "qk_norm": False,
            "attention_gate": False,
            "rotary": True,
        }
    if draw(st.booleans()):
        model["layer_pattern"] = draw(
            st.sampled_from(("ME*E", "MEG-", "GE *E") if "experts" in model else ("M-*-", "G- *-", "MG*-"))
        )
        model |= HYBRID | {"dense_layers": 0, "parallel_residual": False}
    if layout["lora_rank"] and layout["fp8_recipe"] == "none":
        layout["frozen_weights"] = draw(st.sampled_from(("same", "nf4")))
    if layout["cp"] > 1:
        model["attention"] = "flash"
    if not model["sliding_window"]:
        model["global_interval"] = 0
    if layout["tp"] * layout["cp"] % (layout["ep"] * layout["expert_tp"]):
        layout["dp"] = 8
    try:
        config = ModelConfig(**FIELDS | model)
        found = Parallelism(**{"pp": 1, "dp": 1, "micro_batches": 2} | layout)
        found.check(config)
    except UsageError:
        assume(False)
    return config, found


def taken_apart(model: ModelConfig, layout: Parallelism) -> Decomposition:
    cluster = Cluster(gpus_per_node=8)
    return decompose(model=model, parallelism=layout, cluster=cluster, bucket_entries=10**9)


def changed(layout: Parallelism, **fields: Any) -> Parallelism:
    return Parallelism.unchecked(layout, **fields)


@given(questions())
def test_names_are_unique_and_overlaps_name_ops(question: tuple[ModelConfig, Parallelism]) -> None:
    for block in taken_apart(*question).blocks.values():
        names = Counter(one.name for one in block.ops)
        assert max(names.values()) == 1, names.most_common(3)
        for one in block.ops:
            if one.overlaps is not None and one.call is not None and one.call.count:
                assert one.collective
                assert set(one.overlaps.ops) <= set(names), one.name
                # None overlaps another collective, or has nothing to overlap.
                assert one.overlaps.ops or one.overlaps.another_micro_batch
                assert not any(other.collective for other in block.ops if other.name in one.overlaps.ops)


@given(questions())
def test_parameters_of_a_stage_are_those_of_its_ops(question: tuple[ModelConfig, Parallelism]) -> None:
    model, layout = question
    parts = taken_apart(model, layout)
    held = {name: sum(one.parameters for one in block.ops) for name, block in parts.blocks.items()}
    counts = dict(zip(parts.blocks, (1, 1, *parts.stages[0].counts), strict=True))
    tied = model.tied_embeddings * parts.sizes.vocabulary * model.hidden_size
    assert parts.parameters(parts.stages[0]) == sum(counts[name] * held[name] for name in held) - tied
    # Of a linear, its matrix and perhaps a bias per column.
    for block in parts.blocks.values():
        for one in block.ops:
            if one.weight is not None and one.parameters:
                assert (
                    one.weight.entries
                    <= one.parameters
                    <= one.weight.entries + one.weight.times * (one.weight.n)
                )


@given(questions())
def test_what_runs_again_is_enough_for_every_gradient(question: tuple[ModelConfig, Parallelism]) -> None:
    model, layout = question
    for block in taken_apart(model, layout).blocks.values():
        layer = [one for one in block.ops if one.in_layer]
        for stops in (False, True):
            for modules in ((), *OF_LAYOUT["recompute_modules"]):
                how = changed(
                    layout,
                    recompute="selective" if modules else "full",
                    recompute_modules=modules,
                    recompute_early_stop=stops,
                )
                again = {one.name for one in recomputed(how, block.ops)}
                # What is dropped together, and then made again from what is kept before it.
                regions = [
                    [one for one in layer if one.module in with_parts([name])] for name in modules
                ] or [layer]
                assert again <= {one.name for region in regions for one in region}
                for region in regions:
                    for place, one in enumerate(region):
                        made = region[: place + (one.needs == "output")] if one.needs else ()
                        missing = {other.name for other in made} - again
                        assert not missing, (one.name, missing)
        # Bytes that are kept are a tensor that this op, or a later one, needs.
        for place, one in enumerate(layer):
            assert not one.saves or any(other.needs for other in layer[place:]), one.name


def counted(calls: Iterable[Call]) -> Counter[Call]:
    found: Counter[Call] = Counter()
    for one in calls:
        found[one._replace(count=1)] += one.count
    return found


@given(questions())
def test_every_op_is_priced_once_per_pass(question: tuple[ModelConfig, Parallelism]) -> None:
    parts = taken_apart(*question)
    priced = MICRO_BATCH.parts(parts)
    for name, block in parts.blocks.items():
        expected: dict[bool, list[Call]] = {True: [], False: []}
        for one in block.ops:
            if one.call is None or not one.call.count:
                continue
            if one.collective:
                for is_forward in (True, False):
                    if one.collective in ("both", "forward" if is_forward else "backward"):
                        expected[is_forward].append(one.call)
                continue
            for direction in one.directions or tuple(OPERATORS[one.call.operator].costs):
                # Not the sum of both gradients of a linear.
                if direction in (
                    *OPERATORS[one.call.operator].forward,
                    *OPERATORS[one.call.operator].backward,
                ):
                    expected[direction is Direction.FORWARD].append(one.call._replace(direction=direction))
            expected[False] += one.forward() if one.reruns else ()
        expected[True] += [call for one in block.passes.reference for call in one.forward()]
        again = set(recomputed(parts.parallelism, block.ops))
        expected[False] += [call for one in block.ops if one in again for call in one.forward()]
        for is_forward, whats in (
            (True, (What.FORWARD, What.OVERLAPPED_FORWARD)),
            (False, (What.BACKWARD, What.OVERLAPPED_BACKWARD, What.OVERLAPPED_AGAIN)),
        ):
            own = (
                calls
                for part, calls in priced.items()
                if part.block == name and part.what in whats and not part.is_compute
            )
            assert counted(call for calls in own for call in calls) == counted(expected[is_forward])


PRODUCTS = ("gemm", "grouped_gemm", "batched_gemm", "flash_attention", "attention_block", "state_", "gated_")


def flops(ops: Ops, *, of_attention: bool) -> float:
    """FLOPs of both passes of the products of a list, or of what lies between queries and attention output."""
    total = 0.0
    for one in ops:
        if one.call is None or one.is_adapter or not one.call.operator.startswith(PRODUCTS):
            continue
        if (one.module == "core_attn") == of_attention:
            for call in (*one.forward(), *one.backward()):
                total += call.count * OPERATORS[call.operator].flops(call.direction, call.shape)
    return total


@given(questions())
def test_devices_that_share_a_layer_compute_what_one_does(question: tuple[ModelConfig, Parallelism]) -> None:
    model, layout = question
    # Without a cut sequence every device of a tensor-parallel group projects all tokens to low ranks.
    layout = changed(layout, sequence_parallel=layout.tp > 1)
    alone = changed(layout, tp=1, cp=1, ep=1, expert_tp=1, sequence_parallel=False)
    devices = layout.tp * layout.cp  # experts are shared by devices that have tokens of their own
    whole, cut = (taken_apart(model, one).blocks for one in (alone, layout))
    # Masks cut the triangle of a ring into whole keys.
    for name in whole:
        for of_attention, error in ((False, 1e-9), (True, 0.2 if layout.cp > 1 else 1e-9)):
            one, together = (flops(blocks[name].ops, of_attention=of_attention) for blocks in (whole, cut))
            assert devices * together == pytest.approx(one, rel=error), name


@given(questions())
def test_checkpointing_never_takes_more_memory(question: tuple[ModelConfig, Parallelism]) -> None:
    model, layout = question
    none, some = (
        stage_memory(model, changed(layout, recompute=one))[0] for one in ("none", layout.recompute)
    )
    assert some.activations_bytes <= none.activations_bytes
    assert some.total_bytes <= none.total_bytes + 2  # each part is rounded up


@given(question=questions())
def test_checkpointing_never_takes_less_time(
    constant: Estimator, question: tuple[ModelConfig, Parallelism]
) -> None:
    model, layout = question
    none, early, whole = (
        constant.step_time_s(model=model, parallelism=changed(layout, **fields))
        for fields in (
            {"recompute": "none"},
            {"recompute_early_stop": True},
            {"recompute_early_stop": False},
        )
    )
    assert none <= early * (1 + 1e-12)
    assert early <= whole * (1 + 1e-12)


@given(questions())
def test_an_op_of_a_repeated_part_differs_in_name_and_amounts_alone(
    question: tuple[ModelConfig, Parallelism],
) -> None:
    for block in taken_apart(*question).blocks.values():
        for one in block.ops:
            of_part, once = one.times(3, "part_"), one.times(1, "")
            assert once == one
            assert of_part.name == f"part_{one.name}"
            assert (of_part.parameters, of_part.saves) == (3 * one.parameters, 3 * one.saves)
            changed = {"name", "call", "overlaps", "parameters", "weight", "saves"}
            assert all(getattr(of_part, name) == getattr(one, name) for name in set(one._fields) - changed)
