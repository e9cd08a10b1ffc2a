"""A search answers exactly what `Estimator.predict` does, for every layout, and keeps the right ones."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from kernelcast.runtime import Cluster, Estimator, ModelConfig
from kernelcast.runtime.answers.bundle_times import BundleTimes
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.estimate.engine import Engine
from kernelcast.runtime.memory.stages import stage_memory
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.request.field_types import NumberSet
from kernelcast.runtime.request.fields import LAYOUT, TimelineKind
from kernelcast.runtime.search.question import Question
from kernelcast.runtime.search.result import SearchResult
from kernelcast.runtime.search.search import search
from kernelcast.runtime.search.space import Space
from kernelcast.runtime.search.sweep import sweep

_OF_MEMORY = (
    "layer_split", "reduce_dtype", "loss", "kept_by", "shard_group", "recompute_modules", "recompute_layers",
    "recompute_together", "dropout", "vocabulary_multiple", "optimizer", "optimizer_states", "offload_optimizer",
    "offload_activations", "offload_modules", "fp8_recipe", "fp8_linears", "lora_rank", "lora_linears",
)  # fmt: skip
"""What memory depends on of the fields that all layouts of a search have in common."""

_ANY: dict[str, Any] = {
    "name": st.just("any"),
    "hidden_size": st.just(64),
    "sequence_length": st.sampled_from([8, 24]),
    "attention_heads": st.just(8),
    "kv_heads": st.sampled_from([4, 8]),
    "layers": st.integers(1, 13),
    "vocabulary_size": st.integers(50, 2000),
    "norm": st.sampled_from(["layer_norm", "rms_norm"]),
    "activation": st.sampled_from(["gelu", "swiglu"]),
    "attention": st.sampled_from(["flash", "fused_softmax", "unfused"]),
    "parallel_residual": st.booleans(),
    "tied_embeddings": st.booleans(),
}
# Up to four kinds of layers: with experts and without, with a window and without.
_OF_KINDS: dict[str, Any] = {
    **_ANY,
    "layers": st.integers(3, 13),
    "attention": st.just("flash"),
    "experts": st.sampled_from([4, 6]),
    "experts_per_token": st.just(2),
    "expert_size": st.just(48),
    "expert_latent_size": st.sampled_from([0, 20]),
    "shared_expert_size": st.sampled_from([0, 48]),
    "dense_layers": st.integers(0, 2),
    "expert_interval": st.integers(1, 2),
    "router": st.sampled_from(["softmax", "sigmoid"]),
    "sliding_window": st.sampled_from([0, 4]),
    "global_interval": st.sampled_from([0, 3]),
}
_DENSE, _EXPERTS = st.builds(ModelConfig, **_ANY), st.builds(ModelConfig, **_OF_KINDS)
models = st.one_of(_DENSE, _EXPERTS)


def _spaces_of(model: st.SearchStrategy[ModelConfig], *of_experts: str) -> st.SearchStrategy[Space]:
    options = (*_OF_MEMORY, "gradient_collective", "tensor_overlap", "context_exchange", *of_experts)
    return st.builds(
        Space,
        model=model,
        gpus=st.tuples(st.sampled_from([1, 2, 4, 6, 8, 12, 16])),
        global_batch=st.sampled_from([2, 4, 8, 12]),
        gpus_per_node=st.sampled_from([1, 2, 4, 6]),
        tp=st.just(range(1, 9)),
        cp=st.sampled_from([range(1, 2), range(1, 4)]),
        virtual_stages=st.just(range(1, 5)),
        common=st.fixed_dictionaries(
            {"host_link_gb_per_s": st.just(0.01), "host_memory_gb_per_s": st.just(0.5)},
            optional={
                "exposed_share": st.sampled_from([0, 0.5, 1.0]),
                **{
                    name: st.sampled_from(
                        (0, 2)
                        if name == "shard_group"
                        else LAYOUT[name].kind.values or (LAYOUT[name].default, LAYOUT[name].default + 0.1)
                    )
                    for name in options
                },
                **{name: st.booleans() for name in ("overlap_gradients", "overlap_parameters")},
                "overlap_bucket": st.sampled_from([0, 10_000]),
                "recompute_layers": st.sampled_from([0, 1, 2]),
            },
        ),
    )


spaces = st.one_of(_spaces_of(_DENSE), _spaces_of(_EXPERTS, "expert_imbalance"))
TINY = ModelConfig(
    name="tiny", hidden_size=64, sequence_length=8, attention_heads=8, layers=6, vocabulary_size=100
)
with_estimator = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=15
)


def predicted_s(estimator: Estimator, question: Question, layout: Any) -> float:
    estimate = estimator.predict(
        model=question.space.model,
        parallelism=layout,
        cluster=question.cluster,
        bucket_entries=question.bucket_entries,
        timeline=question.timeline,
        interval=False,
    )
    return estimate.step_time_s


@with_estimator
@given(
    space=spaces,
    timeline=st.sampled_from(["simulate", "closed-form"]),
    bucket_entries=st.sampled_from([1000, 10**9]),
    random=st.randoms(use_true_random=False),
)
def test_every_time_is_the_one_that_predict_gives(
    estimator: Estimator, space: Space, timeline: TimelineKind, bucket_entries: int, random: Any
) -> None:
    question = Question(space=space, timeline=timeline, bucket_entries=bucket_entries)
    answers = BundleTimes(estimator.predictor)
    engine = Engine(space.model, question.cluster, bucket_entries, answers, element_bytes=4)
    # An estimator of its own: nothing is remembered from the search.
    other = Estimator(estimator.bundle)
    for layouts, _ in space.blocks():
        if not len(layouts):
            continue
        if layouts.like.layer_split == "balanced":
            layouts = engine.balanced(layouts)
        seen = 0
        for group in engine.configurations(layouts):
            seen += len(group.rows)
            times_us = group.times(timeline).step_us
            if timeline == "simulate":
                assert (group.bound_us() <= times_us).all()
            for position in random.sample(range(len(times_us)), min(3, len(times_us))):
                layout = layouts.parallelism(int(group.rows[position]))
                assert times_us[position] / 1e6 == predicted_s(other, question, layout)
        assert seen == len(layouts)


OPTIONAL = tuple(row.name for row in OPERATORS.values() if row.is_optional)


@pytest.mark.parametrize("timeline", ["simulate", "closed-form"])
@pytest.mark.parametrize("without", [OPTIONAL, ("bias_add", "gradient_zero")])
def test_a_bundle_without_optional_operators_is_searched_as_it_predicts(
    make_varied: Callable[..., Path], without: tuple[str, ...], timeline: TimelineKind
) -> None:
    """Residual additions answer for biases, masks and passes over gradients."""
    given = Estimator.load(make_varied(without=without))
    model = replace(TINY, kv_heads=4)
    space = Space(
        model=model, gpus=(4,), global_batch=4, gpus_per_node=2, zero=(0, 2), recompute=("none", "full"),
        schedules=("1f1b", "interleaved"),
    )  # fmt: skip
    result = search(given, Question(space=space, top=10_000, timeline=timeline, prune=False))
    assert len(result.top) == len(list(space.layouts())) > 20
    assert {one.parallelism.tp for one in result.top} == {1, 2}
    # The ranking comes from times for many layouts at once, its answers from estimates made one by one.
    engine = Engine(model, Cluster(gpus_per_node=2), 10**9, BundleTimes(given.predictor), element_bytes=4)
    for layouts, _ in space.blocks():
        for group in engine.configurations(layouts):
            expected_s = [
                predicted_s(given, Question(space=space, timeline=timeline, bucket_entries=10**9), layout)
                for layout in (layouts.parallelism(int(row)) for row in group.rows)
            ]
            assert (group.times(timeline).step_us / 1e6).tolist() == expected_s
    for one in result.top:
        said = {warning.kind for warning in one.estimate.warnings}
        assert said == {"substitute", "devices_per_node"}


def plain(result: SearchResult) -> tuple[Any, ...]:
    return tuple(
        tuple((one.parallelism, one.step_time_s, one.memory_bytes) for one in answers)
        for answers in (result.top, result.front)
    )


@pytest.mark.slow
@with_estimator
@given(space=spaces, top=st.integers(1, 20), limit=st.none() | st.integers(10**5, 10**7))
def test_the_best_of_all_are_found_whether_or_not_bounds_spare_simulations(
    estimator: Estimator, space: Space, top: int, limit: int | None
) -> None:
    asked: dict[str, Any] = {"space": space, "top": top, "gpu_memory_bytes": limit}
    pruned = search(estimator, Question(**asked))
    simulated = search(estimator, Question(**asked, prune=False))
    assert plain(pruned) == plain(simulated)
    for result in (pruned, simulated):
        counts = result.counts
        assert counts.layouts == counts.out_of_memory + counts.evaluated + counts.unanswered
        assert counts.evaluated == counts.simulated + counts.pruned
    assert pruned.counts.layouts == simulated.counts.layouts == len(list(space.layouts()))
    assert simulated.counts.pruned == 0
    times = [one.step_time_s for one in simulated.top]
    assert times == sorted(times)


def test_the_whole_ranking_by_hand(estimator: Estimator) -> None:
    space = Space(
        model=TINY, gpus=(4,), global_batch=8, gpus_per_node=4, zero=(0, 3), recompute=("none", "selective"),
        common={"layer_split": "even"},
    )  # fmt: skip
    question = Question(space=space, top=10_000, timeline="closed-form")
    result = search(estimator, question)
    expected = []
    for layout in space.layouts():
        memory = max(stage.total_bytes for stage in stage_memory(TINY, layout, dtype="float32"))
        expected.append((predicted_s(estimator, question, layout), memory))
    assert [one.step_time_s for one in result.top] == sorted(time_s for time_s, _ in expected)
    assert sorted(one.memory_bytes for one in result.top) == pytest.approx(
        sorted(memory for _, memory in expected), rel=1e-6
    )
    assert result.smallest is not None
    assert result.smallest.memory_bytes == min(one.memory_bytes for one in result.top)
    assert result.best is result.top[0]
    assert result.why_nothing() == ""


def test_ranking_by_device_time(estimator: Estimator) -> None:
    space = Space(model=TINY, gpus=(1, 2, 4), global_batch=8, gpus_per_node=4, zero=(1,))
    fastest = search(estimator, Question(space=space, top=1)).best
    frugal = search(estimator, Question(space=space, top=500, rank_by="tokens-per-gpu"))
    assert fastest is not None
    assert frugal.best is not None
    rates = [one.tokens_per_s_per_gpu for one in frugal.top]
    assert rates == sorted(rates, reverse=True)
    assert fastest.step_time_s <= frugal.best.step_time_s
    assert frugal.best.tokens_per_s_per_gpu >= fastest.tokens_per_s_per_gpu


def test_nothing_fits(estimator: Estimator) -> None:
    space = Space(model=TINY, gpus=(4,), global_batch=8, gpus_per_node=4)
    result = search(estimator, Question(space=space, gpu_memory_bytes=1000))
    assert result.best is None
    assert result.counts.out_of_memory == result.counts.layouts > 0
    assert result.smallest is not None
    smallest = result.smallest.memory_bytes
    assert result.why_nothing().startswith(
        f"none of {result.counts.layouts:,} layouts on 4 device(s) fits into"
    )
    assert "the smallest needs" in result.why_nothing()
    # With a little more room, just the smallest fit.
    fitting = search(estimator, Question(space=space, gpu_memory_bytes=smallest + 1))
    assert {one.memory_bytes for one in fitting.top} == {smallest}
    # What is reserved is not there: neither for the search nor for the answers that it gives.
    for reserved, fits in ((1000, True), (1001, False)):
        asked = Question(space=space, gpu_memory_bytes=smallest + 1000, reserved_memory_bytes=reserved)
        found = search(estimator, asked)
        assert (found.best is not None) is fits
        assert found.to_dict()["asked"]["reserved_memory_bytes"] == reserved
        if found.best is not None:
            memory = found.best.estimate.memory
            assert (memory.reserved_bytes, memory.margin_bytes, memory.fits) == (1000, 0, True)


def test_no_valid_layout(estimator: Estimator) -> None:
    space = Space(model=TINY, gpus=(7,), global_batch=8, gpus_per_node=4)
    result = search(estimator, Question(space=space))
    assert (result.best, result.smallest) == (None, None)
    assert result.why_nothing() == (
        "model tiny has no valid layout on 7 device(s) "
        "(global_batch is 8, expected a multiple of dp (7); pp is 7, expected from 1 to 6 for 6 layers)"
    )
    limited = Space(
        model=TINY, gpus=(4,), global_batch=8, gpus_per_node=4, pp=NumberSet.parse("3"), tp=(1, 2)
    )
    assert search(estimator, Question(space=limited)).why_nothing() == (
        "model tiny has no valid layout on 4 device(s) with pp 3, tp (1, 2) "
        "(pp · tp · dp · cp is 4, dp · micro_batch · micro_batches 8)"
    )
    of_experts = Space(model=TINY, gpus=(4,), global_batch=8, gpus_per_node=4, ep=NumberSet.parse("2"))
    assert search(estimator, Question(space=of_experts)).why_nothing() == (
        "model tiny has no valid layout on 4 device(s) with ep 2 "
        "(the model has no experts; pp · tp · dp · cp is 4, dp · micro_batch · micro_batches 8)"
    )


def test_what_the_bundle_has_no_answer_to(
    make_bundle: Callable[..., Path], linear_model: Callable[..., bytes]
) -> None:
    space = Space(model=TINY, gpus=(4,), global_batch=8, gpus_per_node=4)
    path = make_bundle(without=("all_reduce", "reduce_scatter"))
    result = search(Estimator.load(path), Question(space=space))
    assert f"bundle {path} has no regressor for all_reduce (once)" in result.problems
    assert result.counts.unanswered > 0
    assert {(one.parallelism.tp, one.parallelism.dp) for one in result.top} == {(1, 1)}
    path = make_bundle(without=("gelu",), name="nothing.kcast")
    result = search(Estimator.load(path), Question(space=space))
    assert result.counts.unanswered == result.counts.layouts
    assert result.why_nothing() == (
        "every layout needs operators that the bundle cannot answer: "
        f"bundle {path} has no regressor for gelu (forward); bundle {path} has no regressor for gelu (backward)"
    )
    # A time below zero for large micro-batches alone.
    broken = linear_model((-1, 0, 0), 3.5)
    key = "gelu", Direction.FORWARD
    partly = search(Estimator.load(make_bundle({key: broken}, name="partly.kcast")), Question(space=space))
    assert {one.parallelism.micro_batch for one in partly.top} <= {1, 2}
    assert partly.counts.unanswered > 0
    assert [problem for problem in partly.problems if "gelu (forward) answers -0.5" in problem]


def test_warnings_come_with_every_answer(make_bundle: Callable[..., Path]) -> None:
    estimator = Estimator.load(make_bundle(largest=10))
    space = Space(model=TINY, gpus=(2,), global_batch=2, gpus_per_node=2)
    result = search(estimator, Question(space=space))
    assert result.best is not None
    assert result.best.to_dict()["warnings"] == result.best.estimate.to_dict()["warnings"]
    assert all(one.estimate.warnings for one in (*result.top, *result.front))


def test_memory_of_the_answers_is_that_of_their_estimates(estimator: Estimator) -> None:
    space = Space(model=TINY, gpus=(8,), global_batch=16, gpus_per_node=4)
    result = search(estimator, Question(space=space, top=50))
    for one in result.top:
        assert one.memory_bytes == pytest.approx(one.estimate.memory.largest_bytes, rel=1e-6)
        assert one.estimate.cluster == Cluster(gpus_per_node=4)


def test_more_chunks_than_are_simulated(estimator: Estimator) -> None:
    model = ModelConfig(
        name="deep", hidden_size=8, sequence_length=4, attention_heads=2, vocabulary_size=9, layers=1500
    )
    space = Space(
        model=model,
        gpus=(1200,),
        global_batch=2400,
        gpus_per_node=4,
        pp=(400, 1200),
        micro_batches=(400, 800),
        virtual_stages=(2, 3),
        schedules=("1f1b", "interleaved"),
        recompute=("none",),
        zero=(1,),
    )
    simulated = search(estimator, Question(space=space, top=1000))
    assert {one.parallelism.chunks for one in simulated.top} == {400, 800}
    assert simulated.refusals.by_field["pp"].example == (
        "pp · virtual_stages is 1200, expected at most 1024 with timeline simulate"
    )
    closed = search(estimator, Question(space=space, top=1000, timeline="closed-form"))
    assert {one.parallelism.chunks for one in closed.top} == {400, 800, 1200}


def test_progress_reaches_its_end(estimator: Estimator) -> None:
    space = Space(model=TINY, gpus=(4,), global_batch=8, gpus_per_node=4)
    units = len(list(space.units()))
    assert units > 7
    # A part of three has a third of the units, rounded up.
    for shards in (1, 3):
        seen = list[tuple[int, int, str]]()

        def report(done: int, total: int, what: str, seen: list[tuple[int, int, str]] = seen) -> None:
            seen.append((done, total, what))

        found = sweep(estimator.predictor, Question(space=space), shards=shards, report=report)
        total = -(-units // shards)
        assert seen[-1] == (total, total, f"{found.counts.layouts:,} layouts")
        assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)


def test_an_answer_does_not_depend_on_what_else_is_asked(make_bundle: Callable[..., Path]) -> None:
    # exp(weights · log(features) + …): in float32 the last bits depend on how many rows are computed at once.
    graph = helper.make_graph(
        [
            helper.make_node("Log", ["workload"], ["logs"]),
            helper.make_node("MatMul", ["logs", "weights"], ["log_us"]),
            helper.make_node("Exp", ["log_us"], ["time_us"]),
            helper.make_node("Identity", ["time_us"], ["low_us"]),
            helper.make_node("Identity", ["time_us"], ["high_us"]),
        ],
        "powers",
        [helper.make_tensor_value_info("workload", TensorProto.FLOAT, ["N", 3])],
        [
            helper.make_tensor_value_info(f"{name}_us", TensorProto.FLOAT, ["N", 1])
            for name in ("time", "low", "high")
        ],
        [helper.make_tensor("weights", TensorProto.FLOAT, [3, 1], [1.1, 0.7, 0.9])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    key = "gelu", Direction.FORWARD
    bundle = Estimator.load(make_bundle({key: model.SerializeToString()})).bundle
    vectors = [(b, 7 * b + 3, 11 * b + 64) for b in range(1, 40)]
    together = Predictor(bundle).answers_of(*key, vectors)
    alone = Predictor(bundle)
    assert {vector: alone.answers_of(*key, [vector])[vector] for vector in vectors} == together
