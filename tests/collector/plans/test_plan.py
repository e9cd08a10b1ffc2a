"""Plans: the ones that ship, and the points that a plan means."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.collector.benches import Point
from kernelcast.collector.plans import workloads as module
from kernelcast.collector.plans.plan import compute_points, distinct_points, planned_operators
from kernelcast.collector.plans.plan_file import load_plan
from kernelcast.collector.plans.plan_ranges import Messages, Plan
from kernelcast.collector.plans.workloads import columns_of, workloads
from kernelcast.runtime import UsageError
from kernelcast.runtime.operators import OPERATORS, Operator
from kernelcast.runtime.operators.elementwise import elementwise

COMPUTE = [op.name for op in OPERATORS.values() if not (op.is_collective or op.is_on_request)]
COLUMNS = [column for name in COMPUTE for column in columns_of(name, load_plan("quick"))]


def distinct(plan: Plan, name: str) -> list[Point]:
    return distinct_points(plan, planned_operators(plan, (name,)))[name]


@cache
def quick_points() -> list[Point]:
    return compute_points(load_plan("quick"))


def of_role(points: list[Point], operator: str, role: str = "") -> list[Point]:
    return [point for point in points if (point.operator, point.role) == (operator, role)]


def test_the_quick_plan_samples_every_compute_operator() -> None:
    quick = load_plan("quick")
    assert quick.name == "quick"
    counts = Counter((point.operator, point.role) for point in quick_points())
    assert set(counts) == set(COLUMNS)
    assert min(counts.values()) >= 8  # a regressor needs 8
    assert max(counts.values()) == quick.shapes_per_operator


@given(st.sampled_from(["quick", "modern", "paper"]), st.data())
def test_shapes_known_from_other_sizes_are_those_of_the_sizes(name: str, data: st.DataObject) -> None:
    plan = load_plan(name)
    columns = [column for op in planned_operators(plan) for column in columns_of(op.name, plan)]
    before, then = (
        {axis: data.draw(st.sampled_from(values), axis) for axis, values in plan.axes().items()}
        for _ in range(2)
    )
    for axis in data.draw(st.sets(st.sampled_from(sorted(before)), min_size=len(before) - 2)):
        then[axis] = before[axis]
    workloads(plan, before, columns)
    known = workloads(plan, then, columns)
    module._shapes.cache_clear()
    assert workloads(plan, then, columns) == known
    module._shapes.cache_clear()


def test_message_sizes_double_up_to_the_largest() -> None:
    assert Messages(smallest_bytes=12, largest_bytes=96).sizes_bytes() == [12, 24, 48, 96]
    assert Messages(smallest_bytes=12, largest_bytes=95).sizes_bytes() == [12, 24, 48]
    assert Messages(smallest_bytes=12, largest_bytes=12).sizes_bytes() == [12]


def test_another_seed_means_other_points(plan: Plan) -> None:
    other = compute_points(replace(plan, seed=plan.seed + 1))
    assert [point.vector for point in other] != [point.vector for point in compute_points(plan)]


def test_a_workload_of_two_roles_is_measured_once() -> None:
    points = quick_points()
    keys = [(point.operator, point.vector) for point in points]
    assert len(set(keys)) == len(keys)
    for point in points:
        assert len(point.vector) == len(point.law.features)
        assert point.role in point.law.roles
    # Queries, keys and values of tp 2 are as wide as the hidden size: Linear1 and Linear2 then are one product.
    plan = replace(load_plan("quick"), shapes_per_operator=0)
    every = compute_points(replace(plan, ranges=replace(plan.ranges, queries_per_kv_head=(2,))), ("gemm",))
    assert len({point.vector for point in every}) == len(every)


def test_operators_and_roles_take_turns(plan: Plan) -> None:
    points = compute_points(plan)
    assert [(point.operator, point.role) for point in points[: len(COLUMNS)]] == COLUMNS
    assert set(Counter((point.operator, point.role) for point in points).values()) <= {1, 2}


def test_a_new_operator_leaves_the_points_of_the_others(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    before = compute_points(plan)
    new = elementwise("squared_relu", "", "", OPERATORS["gelu"].features, forward=(2, 2), backward=(2, 3))
    table: Mapping[str, Operator] = MappingProxyType({"squared_relu": new, **OPERATORS})
    for name in ("kernelcast.collector.plans.workloads", "kernelcast.collector.plans.plan"):
        monkeypatch.setattr(f"{name}.OPERATORS", table)
    module._sources.cache_clear()
    try:
        after = compute_points(plan)
    finally:
        module._sources.cache_clear()
    assert [point for point in after if point.operator != "squared_relu"] == before
    # No layer calls it yet: it is measured where the operators with its features are.
    added = [point.vector for point in after if point.operator == "squared_relu"]
    widths = {point.vector for name in ("gelu", "swiglu") for point in distinct(plan, name)}
    assert len(added) == plan.shapes_per_operator
    assert set(added) <= widths


def test_limits_hold() -> None:
    plan = load_plan("quick")
    for point in quick_points():
        op = point.law
        if op.per_update:
            assert op.named(point.vector)["parameters"] <= plan.most_parameters
            continue
        named = op.named(point.vector)
        tokens = prod(named[name] for name in ("b", "l", "m", "tokens", "rows") if name in named)
        assert tokens <= plan.most_tokens
        assert op.flops(op.directions[0], point.vector) <= plan.most_gflop * 1e9
        assert op.moved_bytes(op.directions[0], point.vector, 1) <= plan.most_elements


def test_only_the_operators_asked_for(plan: Plan) -> None:
    points = compute_points(plan, ("gelu", "rope"))
    assert [point.operator for point in points] == ["gelu", "rope"] * 2
    # The points belong to the whole plan: measured with or without the choice, they are the same.
    everything = compute_points(plan)
    assert all(point in everything for point in points)


def test_biases_are_planned_at_every_linears_width(plan: Plan) -> None:
    everything = {point.vector for point in distinct(plan, "bias_add")}
    roles = ("qkv", "attention_output", "mlp_up", "mlp_gate_up", "mlp_down")
    products = [point for point in distinct(plan, "gemm") if point.role in roles]
    assert {point.role for point in products} == set(roles)
    assert {(m, n) for m, _, n in (point.vector for point in products)} <= everything
    thinned = [point.vector[1] for point in compute_points(load_plan("quick"), ("bias_add",))]
    assert min(thinned) < 512 < max(thinned)


def test_models_like_llama_can_be_said(plan_file: Path, tmp_path: Path) -> None:
    text = plan_file.read_text().replace("mlp_ratio = [4]", "mlp_ratio = [2.6875]\nqueries_per_kv_head = [2]")
    path = tmp_path / "mine.toml"
    path.write_text(
        text.replace("seed = 3", 'seed = 3\noperators = ["rms_norm", "swiglu", "gemm"]').replace(
            "shapes_per_operator = 2", ""
        )
    )
    points = compute_points(load_plan(str(path)))
    assert {point.operator for point in points} == {"rms_norm", "swiglu", "gemm"}
    # 2.6875 · 32 is 86 columns, 43 on each of two devices; no combination is missing.
    assert {point.vector[2] for point in of_role(points, "swiglu")} == {43, 86, 172}
    up = {point.vector[1:] for point in of_role(points, "gemm", "mlp_up")}
    gate_up = {point.vector[1:] for point in of_role(points, "gemm", "mlp_gate_up")}
    assert up == {(32, 43), (32, 86), (64, 86), (64, 172)}
    assert gate_up == {(32, 172), (64, 344), (32, 86)}  # (64, 172) is the undivided projection up
    # A head of keys and one of values for two of queries: as wide together.
    assert {(d, n) for _, d, n in (point.vector for point in of_role(points, "gemm", "qkv"))} == {
        (d, 2 * d // tp) for d in (32, 64) for tp in (1, 2)
    }


@pytest.mark.parametrize("asked", [("gelu",), ("rope", "gelu")])
def test_every_operator_that_a_plan_lacks_is_named(plan: Plan, asked: tuple[str, ...]) -> None:
    few = replace(plan, operators=("rope", "swiglu", "all_reduce"))
    with pytest.raises(UsageError) as caught:
        compute_points(few, asked)
    assert str(caught.value) == "plan tiny: its operators lack gelu; expected some of swiglu, rope"


def test_a_plan_of_collectives_alone(plan: Plan) -> None:
    with pytest.raises(
        UsageError, match="plan tiny: its operators are collectives, which `collect comm` meas"
    ):
        compute_points(replace(plan, operators=("all_reduce",)))


@pytest.mark.parametrize("asked", [2000, 2**40])
def test_more_shapes_asked_than_there_are(asked: int) -> None:
    quick = load_plan("quick")
    points = compute_points(replace(quick, shapes_per_operator=asked), ("gelu",))
    vectors = [point.vector for point in points]
    assert len(vectors) == 286
    assert set(vectors) == {point.vector for point in distinct(quick, "gelu")}
    # A wish for more begins with what fewer are.
    fewer = compute_points(replace(quick, shapes_per_operator=100), ("gelu",))
    assert points[:100] == fewer


def test_many_shapes_asked_of_ranges_that_hold_none(plan: Plan) -> None:
    impossible = replace(plan, shapes_per_operator=2**40, ranges=replace(plan.ranges, head_size=(7,)))
    with pytest.raises(UsageError, match="plan tiny: its ranges hold no shape of gelu within"):
        compute_points(impossible, ("gelu",))


def test_every_shape_of_the_ranges(plan: Plan) -> None:
    everything = distinct_points(plan, planned_operators(plan))
    vectors = sorted(point.vector for point in everything["layer_norm"])
    assert vectors == [(b, l, d) for b in (1, 2) for l in (8, 16) for d in (32, 64)]  # noqa: E741
    for point in compute_points(plan):
        assert point.vector in {p.vector for p in everything[point.operator]}
    assert distinct(plan, "rope") == distinct(plan, "rope")
    # Interrupted early, a run has small and large sizes.
    assert [p.vector for p in everything["layer_norm"]] != vectors


@pytest.mark.slow
class TestThePaperPlan:
    """Tables VI and VII, counted apart from the code that expands them."""

    MP, B, H = (1, 2, 4, 8, 16), (4, 8), range(16, 81, 8)
    L, D = range(1024, 5121, 512), range(2048, 8193, 512)

    @pytest.fixture
    def paper(self) -> Plan:
        return load_plan("paper")

    def vectors(self, paper: Plan, name: str, role: str = "") -> set[tuple[int, ...]]:
        points = of_role(distinct(paper, name), name, role)
        assert len({point.vector for point in points}) == len(points)
        return {point.vector for point in points}

    def test_rope_and_flash_attention(self, paper: Plan) -> None:
        combinations = [(tp, h, d) for tp in self.MP for h in self.H for d in self.D if d % h == 0 == h % tp]
        assert (
            len(combinations) * len(self.B) * len(self.L) == 4860
        )  # as many rows as the authors' RoPE file has
        heads = [(h // tp, h // tp, d // h) for tp, h, d in combinations]
        expected = {(b, length, *of) for of in heads for b in self.B for length in self.L}
        assert self.vectors(paper, "rope") == self.vectors(paper, "flash_attention") == expected
        assert (8, 2048, 8, 8, 96) in expected  # GPT-20B: h 64, d 6144, tp 8

    def test_linears_norms_and_the_vocabulary(self, paper: Plan) -> None:
        assert self.vectors(paper, "layer_norm") == set(product(self.B, self.L, self.D))
        tokens = {b * l for b in self.B for l in self.L}  # noqa: E741
        up = {(m, d, 4 * d // tp) for m in tokens for d in self.D for tp in self.MP}
        found = {point.vector: point.role for point in distinct(paper, "gemm")}
        assert up <= set(found)  # shapes shared with other roles included
        assert {vector for vector, role in found.items() if role == "mlp_up"} <= up
        padded = [-(-50257 // (128 * tp)) * 128 for tp in self.MP]  # v/tp
        assert padded[:2] == [50304, 25216]
        entropy = {(b, l, v) for b in self.B for l in self.L for v in padded}  # noqa: E741
        assert self.vectors(paper, "cross_entropy") == entropy

    def test_the_collectives(self, paper: Plan) -> None:
        for name, ranges in (
            (
                "all_reduce",
                (range(20_971_520, 134_217_729, 65_536), range(134_217_728, 1_199_817_729, 2_400_000)),
            ),
            ("all_gather", (range(134_217_728, 599_817_729, 2_400_000),)),
            ("point_to_point", (range(2_097_152, 134_217_729, 65_536),)),
        ):
            expected = sorted({entries for one in ranges for entries in one})
            for processes in (2, 4, 8, 16):
                found = paper.entries(name, processes=processes, element_bytes=2)
                measured = processes == 2 or (processes < 16 and name != "point_to_point")
                assert found == (expected if measured else [])

    def test_nothing_else(self, paper: Plan) -> None:
        assert paper.entries("reduce_scatter", processes=2, element_bytes=2) == []
        assert len(compute_points(paper, ("gelu", "layer_norm"))) == 810 + 234


def test_what_is_imported_only_is_refused_by_name(plan: Plan) -> None:
    assert "moe" not in {op.name for op in planned_operators(plan)}
    with pytest.raises(UsageError, match=r"^operator 'moe' has no bench, and is imported only; "):
        planned_operators(plan, ("moe",))
    with pytest.raises(UsageError, match=r": operator moe has no bench, and is imported"):
        planned_operators(replace(plan, operators=("gelu", "moe")))


OF_EXPERTS = {"router", "permute", "unpermute", "grouped_gemm"}


def test_operators_of_experts_need_ranges_of_experts(plan: Plan) -> None:
    assert OF_EXPERTS.isdisjoint(op.name for op in planned_operators(plan))
    named = replace(plan, operators=("gelu", "router"))
    for asked in (lambda: planned_operators(plan, ("router",)), lambda: planned_operators(named)):
        with pytest.raises(UsageError, match="it has no models that call router; expected ranges of exp"):
            asked()
    ranges = replace(
        plan.ranges, experts=(4,), experts_per_token=(2,), expert_ratio=(2.0,), expert_parallel=(2,)
    )
    points = compute_points(replace(plan, ranges=ranges), tuple(sorted(OF_EXPERTS)))
    assert {point.operator for point in points} == OF_EXPERTS
    for _, m, k, n in (point.vector for point in points if point.operator == "grouped_gemm"):
        # Two of four experts on a device; gate and up of 2 · hidden each, and back.
        assert n == 4 * k or k == 2 * n
        assert m >= 1


def test_a_plan_with_further_ranges_measures_the_old_operators_at_their_old_sizes_too(plan: Plan) -> None:
    whole = replace(plan, shapes_per_operator=0)
    ranges = replace(plan.ranges, kv_rank=(16,), sliding_window=(4,), context_parallel=(2,))
    before = {(point.operator, point.vector) for point in compute_points(whole, ("gemm", "rms_norm"))}
    found = compute_points(replace(whole, ranges=ranges), ("gemm", "rms_norm", "attention_block"))
    assert before < {(point.operator, point.vector) for point in found}
    blocks = [point.law.named(point.vector) for point in found if point.operator == "attention_block"]
    assert {(one["l_query"], one["l_key"]) for one in blocks} >= {
        (8, 8),
        (4, 2),
        (4, 8),
    }  # window, ring, gather
    assert {"kv_down", "kv_up", "query_up"} <= {point.role for point in found}


def test_some_ranges_of_experts_alone_are_refused(plan: Plan) -> None:
    with pytest.raises(
        UsageError, match="only some of experts, experts_per_token and expert_ratio are given, expected all"
    ):
        replace(plan.ranges, experts=(4,))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("all_reduce", "is a collective, which `collect comm` measures"),
        ("conv2d", "is unknown"),
    ],
)
def test_an_operator_that_is_not_measured_alone(plan: Plan, name: str, what: str) -> None:
    with pytest.raises(UsageError, match=f"operator '{name}' {what}; (known|nearest) "):
        compute_points(plan, ("gelu", name))


def test_of_two_unknown_operators_the_first_one_is_explained(plan: Plan) -> None:
    for named in (("gelux",), ("zzz", "gelux")):
        with pytest.raises(UsageError) as caught:
            compute_points(plan, named)
        assert str(caught.value).startswith("operator 'gelux' is unknown; nearest is gelu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"most_tokens": 1}, "plan tiny: its ranges hold no shape of embedding within most_tokens, most"),
        ({"most_parameters": 9}, r"its ranges hold no shape of adam \(first_stage\) within most_parameters"),
    ],
)
def test_an_operator_without_a_shape_is_no_silent_gap(
    plan: Plan, change: dict[str, int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        compute_points(replace(plan, **change))  # type: ignore[arg-type]


def test_collectives_that_are_named_are_measured_alone(plan: Plan) -> None:
    def planned(plan: Plan, *names: str) -> set[str]:
        return {op.name for op in planned_operators(plan, names, collectives=True)}

    asked = {op.name for op in OPERATORS.values() if op.is_collective and not op.is_on_request}
    assert planned(plan) == asked
    assert planned(plan, "all_to_all") == {"all_to_all"}
    assert planned(replace(plan, operators=("all_to_all", "gelu"))) == {"all_to_all"}


@pytest.mark.parametrize(
    ("name", "what"),
    [("gelu", "is no collective, `collect compute` measures it"), ("broadcast", "is unknown")],
)
def test_an_operator_that_is_no_collective(plan: Plan, name: str, what: str) -> None:
    with pytest.raises(UsageError, match=f"operator '{name}' {what}; (known|nearest) "):
        planned_operators(plan, (name,), collectives=True)
