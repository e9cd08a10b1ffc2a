"""Plans: the ones that ship, and the points that a plan means."""

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from kernelcast.collector.plans.plan import (
    Messages,
    Plan,
    compute_points,
    distinct_points,
    load_plan,
    planned_operators,
)
from kernelcast.runtime import UsageError
from kernelcast.runtime.operators import OPERATORS, OperatorClass

COMPUTE = [op.name for op in OPERATORS.values() if op.operator_class is not OperatorClass.COMMUNICATION]


def test_the_quick_plan_samples_every_compute_operator() -> None:
    quick = load_plan("quick")
    assert quick.name == "quick"
    counts = Counter(point.operator.name for point in compute_points(quick))
    assert set(counts) == set(COMPUTE)
    assert min(counts.values()) >= 8  # as many as a regressor needs
    assert max(counts.values()) <= quick.shapes_per_operator


def test_the_quick_plan_sends_from_4_kib_to_64_mib() -> None:
    plan = load_plan("quick")
    entries = plan.entries("mp_all_reduce", processes=2, element_bytes=4)
    assert (entries[0], entries[-1], len(entries)) == (2**10, 16 * 2**20, 15)
    assert plan.entries("dp_all_gather", processes=8, element_bytes=4) == entries


def test_message_sizes_double_up_to_the_largest() -> None:
    assert Messages(smallest_bytes=12, largest_bytes=96).sizes_bytes() == [12, 24, 48, 96]
    assert Messages(smallest_bytes=12, largest_bytes=95).sizes_bytes() == [12, 24, 48]
    assert Messages(smallest_bytes=12, largest_bytes=12).sizes_bytes() == [12]


def test_the_same_plan_means_the_same_points(plan: Plan) -> None:
    assert compute_points(plan) == compute_points(plan)
    other = compute_points(replace(plan, seed=plan.seed + 1))
    assert [point.vector for point in other] != [point.vector for point in compute_points(plan)]


def test_points_are_distinct_and_their_vectors_those_of_their_shapes() -> None:
    points = compute_points(load_plan("quick"))
    keys = [(point.operator.name, point.vector) for point in points]
    assert len(set(keys)) == len(keys)
    assert all(point.vector == point.operator.workload(point.shape) for point in points)


def test_operators_take_turns(plan: Plan) -> None:
    names = [point.operator.name for point in compute_points(plan)]
    assert names == COMPUTE * plan.shapes_per_operator


def test_limits_hold() -> None:
    plan = load_plan("quick")
    for point in compute_points(plan):
        if point.operator.operator_class is OperatorClass.OPTIMIZER:
            assert point.vector[0] == point.shape.stage_parameters <= plan.most_parameters
            continue
        assert point.shape.tokens <= plan.most_tokens
        assert point.operator.flops(point.operator.directions[0], point.vector) <= plan.most_gflop * 1e9
        assert point.operator.moved_bytes(point.operator.directions[0], point.vector, 1) <= plan.most_elements


def test_shapes_divide() -> None:
    for point in compute_points(load_plan("quick")):
        shape, tp = point.shape, point.shape.tensor_parallel
        assert shape.head_size * shape.attention_heads == shape.hidden_size
        assert not any(
            size % tp
            for size in (shape.attention_heads, shape.mlp_size, shape.vocabulary_size, shape.hidden_size)
        )


def test_only_the_operators_asked_for(plan: Plan) -> None:
    points = compute_points(plan, ("gelu", "rope"))
    assert [point.operator.name for point in points] == ["rope", "gelu"] * 2
    # They are those of the whole plan: what was measured with and without the choice is the same.
    everything = compute_points(plan)
    assert all(point in everything for point in points)


def test_biases_are_planned_at_every_linears_width(plan: Plan) -> None:
    (bias_add,) = planned_operators(plan, ("bias_add",))
    everything = {point.vector for point in distinct_points(plan, bias_add)}
    (product,) = planned_operators(plan, ("qkv_linear",))
    for point in distinct_points(plan, product):
        s = point.shape
        asked = (s.hidden_size, s.qkv_width // s.tensor_parallel, s.local_mlp_size)
        assert {(s.tokens, width) for width in asked} <= everything
    thinned = [point.vector[1] for point in compute_points(load_plan("quick"), ("bias_add",))]
    assert min(thinned) < 256 < max(thinned)


def test_models_like_llama_can_be_said(plan_file: Path, tmp_path: Path) -> None:
    text = plan_file.read_text().replace("mlp_ratio = [4]", "mlp_ratio = [2.6875]\nqueries_per_kv_head = [2]")
    path = tmp_path / "mine.toml"
    path.write_text(
        text.replace("seed = 3", 'seed = 3\noperators = ["rms_norm", "swiglu", "qkv_linear"]').replace(
            "shapes_per_operator = 2", ""
        )
    )
    points = compute_points(load_plan(str(path)))
    assert {point.operator.name for point in points} == {"rms_norm", "swiglu", "qkv_linear"}
    for point in points:
        shape = point.shape
        assert shape.mlp_size == 2.6875 * shape.hidden_size
        assert shape.attention_heads == 2 * shape.kv_heads
        assert shape.qkv_width == 2 * shape.hidden_size
        assert shape.kv_heads % shape.tensor_parallel == 0
    # 2.6875 · 32 is 86 columns, 43 on each of two devices; every combination is there.
    widths = {point.vector[2] for point in points if point.operator.name == "swiglu"}
    assert widths == {43, 86, 172}


@pytest.mark.parametrize("asked", [("gelu",), ("rope", "gelu")])
def test_every_operator_that_a_plan_lacks_is_named(plan: Plan, asked: tuple[str, ...]) -> None:
    few = replace(plan, operators=("rope", "swiglu", "mp_all_reduce"))
    with pytest.raises(UsageError) as caught:
        compute_points(few, asked)
    assert str(caught.value) == "plan tiny: its operators lack gelu; expected some of rope, swiglu"


def test_a_plan_of_collectives_alone(plan: Plan) -> None:
    with pytest.raises(
        UsageError, match="plan tiny: its operators are collectives, which `collect comm` meas"
    ):
        compute_points(replace(plan, operators=("mp_all_reduce",)))


@pytest.mark.parametrize("asked", [2000, 2**40])
def test_more_shapes_asked_than_there_are(asked: int) -> None:
    quick = load_plan("quick")
    points = compute_points(replace(quick, shapes_per_operator=asked), ("gelu",))
    vectors = [point.vector for point in points]
    assert len(vectors) == 286
    assert set(vectors) == {point.vector for point in distinct_points(quick, OPERATORS["gelu"])}
    # A wish for more begins with what fewer are.
    fewer = compute_points(replace(quick, shapes_per_operator=100), ("gelu",))
    assert points[:100] == fewer


def test_many_shapes_asked_of_ranges_that_hold_none(plan: Plan) -> None:
    impossible = replace(plan, shapes_per_operator=2**40, ranges=replace(plan.ranges, head_size=(7,)))
    with pytest.raises(UsageError, match="plan tiny: its ranges hold no shape of gelu within"):
        compute_points(impossible, ("gelu",))


def test_every_shape_of_the_ranges(plan: Plan) -> None:
    everything = {op.name: distinct_points(plan, op) for op in planned_operators(plan)}
    vectors = sorted(point.vector for point in everything["layer_norm"])
    assert vectors == [(b, l, d) for b in (1, 2) for l in (8, 16) for d in (32, 64)]  # noqa: E741
    for point in compute_points(plan):
        assert point.vector in {p.vector for p in everything[point.operator.name]}
    assert distinct_points(plan, OPERATORS["rope"]) == distinct_points(plan, OPERATORS["rope"])
    assert [p.vector for p in everything["layer_norm"]] != vectors  # interrupted, some of all sizes are there


class TestThePaperPlan:
    """Tables VI and VII, counted apart from the code that expands them."""

    MP, B, H = (1, 2, 4, 8, 16), (4, 8), range(16, 81, 8)
    L, D = range(1024, 5121, 512), range(2048, 8193, 512)

    @pytest.fixture
    def paper(self) -> Plan:
        return load_plan("paper")

    def vectors(self, paper: Plan, name: str) -> set[tuple[int, ...]]:
        points = distinct_points(paper, OPERATORS[name])
        assert len({point.vector for point in points}) == len(points)
        return {point.vector for point in points}

    def test_rope_and_flash_attention(self, paper: Plan) -> None:
        combinations = [(tp, h, d) for tp in self.MP for h in self.H for d in self.D if d % h == 0 == h % tp]
        assert (
            len(combinations) * len(self.B) * len(self.L) == 4860
        )  # as many rows as the authors' RoPE file has
        expected = {(b, l, h // tp, d // h) for tp, h, d in combinations for b in self.B for l in self.L}  # noqa: E741
        assert self.vectors(paper, "rope") == self.vectors(paper, "flash_attention") == expected
        assert (8, 2048, 8, 96) in expected  # GPT-20B: h 64, d 6144, tp 8

    def test_linears_norms_and_the_vocabulary(self, paper: Plan) -> None:
        assert self.vectors(paper, "layer_norm") == set(product(self.B, self.L, self.D))
        tokens = {b * l for b in self.B for l in self.L}  # noqa: E741
        up = {(m, d, 4 * d // tp) for m in tokens for d in self.D for tp in self.MP}
        assert self.vectors(paper, "mlp_up_linear") == up
        padded = [-(-50257 // (128 * tp)) * 128 for tp in self.MP]  # v/tp
        assert padded[:2] == [50304, 25216]
        entropy = {(b, l, v) for b in self.B for l in self.L for v in padded}  # noqa: E741
        assert self.vectors(paper, "cross_entropy") == entropy

    def test_the_collectives(self, paper: Plan) -> None:
        for name, first, last, step, groups in (
            ("mp_all_reduce", 20_971_520, 134_217_728, 65_536, (2, 4, 8)),
            ("dp_all_reduce", 134_217_728, 1_199_817_728, 2_400_000, (2, 4, 8)),
            ("dp_all_gather", 134_217_728, 599_817_728, 2_400_000, (2, 4, 8)),
            ("pp_p2p", 2_097_152, 134_217_728, 65_536, (2,)),
        ):
            for processes in (2, 4, 8, 16):
                found = paper.entries(name, processes=processes, element_bytes=2)
                expected = range(first, last + 1, step) if processes in groups else range(0)
                assert found == list(expected)

    def test_nothing_else(self, paper: Plan) -> None:
        assert paper.entries("mp_all_gather", processes=2, element_bytes=2) == []
        assert len(compute_points(paper, ("gelu", "layer_norm"))) == 810 + 234


@pytest.mark.parametrize(
    ("name", "what"),
    [("mp_all_reduce", "is a collective, which `collect comm` measures"), ("conv2d", "is unknown")],
)
def test_an_operator_that_is_not_measured_alone(plan: Plan, name: str, what: str) -> None:
    with pytest.raises(UsageError, match=f"operator '{name}' {what}; expected one of emb"):
        compute_points(plan, ("gelu", name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"most_tokens": 1}, "plan tiny: its ranges hold no shape of embedding within most_tokens, most"),
        ({"most_parameters": 9}, "its ranges hold no shape of optimizer_first_stage within most_parameters"),
    ],
)
def test_an_operator_without_a_shape_is_no_silent_gap(
    plan: Plan, change: dict[str, int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        compute_points(replace(plan, **change))  # type: ignore[arg-type]
