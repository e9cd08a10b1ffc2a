"""Plans: the one that ships, the points that a plan means, and files that are no plan."""

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
from kernelcast.runtime import DataError, KernelcastError, UsageError
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
        shape, mp = point.shape, point.shape.tensor_parallel
        assert shape.head_size * shape.attention_heads == shape.hidden_size
        assert not any(
            size % mp
            for size in (shape.attention_heads, shape.mlp_size, shape.vocabulary_size, shape.hidden_size)
        )


def test_only_the_operators_asked_for(plan: Plan) -> None:
    points = compute_points(plan, ("gelu", "rope"))
    assert [point.operator.name for point in points] == ["rope", "gelu"] * 2
    # They are those of the whole plan: what was measured with and without the choice is the same.
    everything = compute_points(plan)
    assert all(point in everything for point in points)


def without_messages(text: str) -> str:
    return text.partition("[messages]")[0]


def test_a_plan_needs_messages_or_collectives(plan_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(without_messages(plan_file.read_text()))
    with pytest.raises(UsageError, match="messages is missing, expected it or collectives"):
        load_plan(str(path))


def test_entries_and_groups_of_single_collectives(plan_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        without_messages(plan_file.read_text())
        + "[collectives.pp_p2p]\nentries = {from = 8, to = 40, step = 16}\nprocesses = {from = 2, to = 4, times = 2}\n"
    )
    plan = load_plan(str(path))
    assert plan.entries("pp_p2p", processes=2, element_bytes=4) == [8, 24, 40]
    assert plan.entries("pp_p2p", processes=4, element_bytes=2) == [8, 24, 40]
    assert plan.entries("pp_p2p", processes=8, element_bytes=4) == []
    assert plan.entries("mp_all_reduce", processes=2, element_bytes=4) == []


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
        combinations = [(mp, h, d) for mp in self.MP for h in self.H for d in self.D if d % h == 0 == h % mp]
        assert (
            len(combinations) * len(self.B) * len(self.L) == 4860
        )  # as many rows as the authors' RoPE file has
        expected = {(b, l, h // mp, d // h) for mp, h, d in combinations for b in self.B for l in self.L}  # noqa: E741
        assert self.vectors(paper, "rope") == self.vectors(paper, "flash_attention") == expected
        assert (8, 2048, 8, 96) in expected  # GPT-20B: h 64, d 6144, mp 8

    def test_linears_norms_and_the_vocabulary(self, paper: Plan) -> None:
        assert self.vectors(paper, "layer_norm") == set(product(self.B, self.L, self.D))
        tokens = {b * l for b in self.B for l in self.L}  # noqa: E741
        up = {(m, d, 4 * d // mp) for m in tokens for d in self.D for mp in self.MP}
        assert self.vectors(paper, "mlp_up_linear") == up
        padded = [-(-50257 // (128 * mp)) * 128 for mp in self.MP]  # v/mp
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


def test_a_plan_file_keeps_its_name_without_its_path(plan_file: Path) -> None:
    plan = load_plan(str(plan_file))
    assert plan.name == "tiny"
    assert plan.ranges.hidden_size == (32, 64)
    assert plan.most_gflop == 1.0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "seed = 3",
            "seed = 3\nspeed = 4",
            "speed is unknown; known are collectives, messages, most_elements, most_gflop",
        ),
        ("seed = 3", "", "seed is missing"),
        ("seed = 3", "seed = -1", "seed is -1, expected a whole number from 0"),
        ("seed = 3", "seed = true", "seed is True, expected a whole number from 0"),
        ("seed = 3", f"seed = 0x{'9' * 5000}", "seed is a number too long to show, expected a whole number"),
        (
            "seed = 3",
            f'seed = 3\n"{"a" * 5000}" = 1',
            f"'{'a' * 79} is unknown; known are collectives, messages",
        ),
        ("seed = 3", "seed = 3\noperators = [[1]]", "operators has [1], expected some of embedding, "),
        ("seed = 3", "seed = 3.0", "seed is 3.0, expected a whole number from 0"),
        ("seed = 3", f"seed = {10**30}", f"seed is {10**30}, expected a whole number from 0"),
        ("per_operator = 2", "per_operator = 0", "shapes_per_operator is 0, expected a whole number from 1"),
        ("most_gflop = 1.0", "most_gflop = nan", "most_gflop is nan, expected a number above 0"),
        ("most_gflop = 1.0", "most_gflop = inf", "most_gflop is inf, expected a number above 0"),
        ("most_gflop = 1.0", 'most_gflop = "1"', "most_gflop is '1', expected a number above 0"),
        ("[ranges]", "[ranks]", "ranks is unknown; known are"),
        ("[ranges]", "[ranges.inner]", "ranges.inner is unknown; known are attention_heads, encoders"),
        (
            "head_size = [8, 16]",
            "",
            "ranges has neither of head_size and attention_heads, expected one of them",
        ),
        ("head_size = [8, 16]", "head_size = 8", "ranges.head_size is 8, expected a list of whole numbers"),
        ("head_size = [8, 16]", "head_size = []", "ranges.head_size is [], expected a list of whole numbers"),
        ("head_size = [8, 16]", "head_size = [0]", "ranges.head_size is [0], expected a list of whole num"),
        ("largest_bytes = 16384", "largest_bytes = 1.5", "messages.largest_bytes is 1.5, expected a whole"),
        (
            "largest_bytes = 16384",
            "largest_bytes = 4095",
            "messages.smallest_bytes is 4096, expected at most messages.largest_bytes (4095)",
        ),
        (
            "head_size = [8, 16]",
            "head_size = [8]\nattention_heads = [4]",
            "ranges has both of head_size and att",
        ),
        (
            "mlp_ratio = [4]",
            "mlp_ratio = [-1.5]",
            "ranges.mlp_ratio is [-1.5], expected a list of numbers above",
        ),
        (
            "head_size = [8, 16]",
            "head_size = [8.0]",
            "ranges.head_size is [8.0], expected a list of whole num",
        ),
        (
            "head_size = [8, 16]",
            "head_size = {from = 8, to = 16}",
            "ranges.head_size is {'from': 8, 'to': 16}, exp",
        ),
        (
            "head_size = [8, 16]",
            "head_size = {from = 8, to = 4, step = 1}",
            "ranges.head_size is {'from': 8, 'to': 4, 'step': 1}, expected from at most to",
        ),
        (
            "head_size = [8, 16]",
            "head_size = {from = 8, to = 16, times = 1}",
            "ranges.head_size is {'from': 8, 'to': 16, 'times': 1}, expected from at most to, and times above 1",
        ),
        (
            "head_size = [8, 16]",
            "head_size = {from = 1, to = 1000000, step = 1}",
            "ranges.head_size means more than 100,000 numbers",
        ),
        ("seed = 3", 'seed = 3\noperators = ["conv"]', "operators has 'conv', expected some of embedding"),
        ("seed = 3", "seed = 3\noperators = []", "operators is [], expected a list of operators"),
        ("seed = 3", "seed = 3\npadded_vocabulary = 1", "padded_vocabulary is 1, expected true or false"),
        (
            "[messages]",
            "[collectives.gelu]\nentries = [1]\nprocesses = [2]\n[messages]",
            "collectives.gelu is unknown; known are mp_all_reduce",
        ),
        ("[messages]", "[collectives]\npp_p2p = 3\n[messages]", "collectives.pp_p2p is 3, expected a table"),
        (
            "[messages]",
            "[collectives.pp_p2p]\nentries = [1]\nprocesses = [2]\n[messages]",
            "both messages and collectives are given, expected one of them",
        ),
    ],
)
def test_a_slip_is_named(plan_file: Path, tmp_path: Path, old: str, new: str, message: str) -> None:
    text = plan_file.read_text()
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(UsageError) as caught:
        load_plan(str(path))
    assert str(caught.value).startswith(f"plan {path}: {message}")
    assert "\n" not in str(caught.value)


def test_a_table_that_is_none(plan_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("messages = 3\n" + plan_file.read_text().partition("[messages]")[0])
    with pytest.raises(UsageError, match=r"messages is 3, expected a table \[messages\]"):
        load_plan(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"seed = = 3", r"not TOML \(.+\)"),
        (b"\xff\xfe", r"not TOML \(.+\)"),
        (b"a = " + b"[" * 20_000, r"not TOML \(.*recursion.*\)"),
        (b"seed = " + b"9" * 5000, r"not TOML \(Exceeds the limit .+\)"),
        (None, r"cannot be read \(Is a directory\)"),
    ],
)
def test_what_is_no_toml(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(
        DataError, match=f"{message}, expected a TOML file or one of the plans that"
    ) as caught:
        load_plan(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["slow", "none.toml", "plans/quick", "x" * 5000, "x/" * 1000, "a\0b"])
def test_a_plan_that_is_not_there(name: str) -> None:
    with pytest.raises(
        KernelcastError,
        match="no such file, expected a TOML file or one of the plans that ship"
        r" \((\w+, )*paper, quick(, \w+)*\)|cannot be read \((File name too long|embedded null byte)\), expected a",
    ) as caught:
        load_plan(name)
    assert len(str(caught.value)) < 400
