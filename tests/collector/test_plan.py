"""Plans: the one that ships, the points that a plan means, and files that are no plan."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.collector.plan import Messages, Plan, compute_points, load_plan
from kernelcast.runtime import DataError, KernelcastError, UsageError
from kernelcast.runtime.operators import OPERATORS, Direction, OperatorClass

COMPUTE = [op.name for op in OPERATORS.values() if op.operator_class is not OperatorClass.COMMUNICATION]


def test_the_quick_plan_samples_every_compute_operator() -> None:
    quick = load_plan("quick")
    assert quick.name == "quick"
    counts = Counter(point.operator.name for point in compute_points(quick))
    assert set(counts) == set(COMPUTE)
    assert min(counts.values()) >= 8  # as many as a regressor needs
    assert max(counts.values()) <= quick.shapes_per_operator


def test_the_quick_plan_sends_from_4_kib_to_64_mib() -> None:
    sizes = load_plan("quick").messages.sizes_bytes()
    assert (sizes[0], sizes[-1], len(sizes)) == (4 * 2**10, 64 * 2**20, 15)


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
        assert point.operator.flops(Direction.FORWARD, point.vector) <= plan.most_gflop * 1e9
        assert point.operator.moved_bytes(Direction.FORWARD, point.vector, 1) <= plan.most_elements


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


@pytest.mark.parametrize("name", ["mp_all_reduce", "conv2d"])
def test_an_operator_that_is_not_measured_alone(plan: Plan, name: str) -> None:
    with pytest.raises(UsageError, match=f"operator '{name}' cannot be measured alone; expected one of emb"):
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
            "speed is unknown; known are messages, most_elements, most_gflop",
        ),
        ("seed = 3", "", "seed is missing"),
        ("seed = 3", "seed = -1", "seed is -1, expected a whole number from 0"),
        ("seed = 3", "seed = true", "seed is True, expected a whole number from 0"),
        ("seed = 3", "seed = 3.0", "seed is 3.0, expected a whole number from 0"),
        ("seed = 3", f"seed = {10**30}", f"seed is {10**30}, expected a whole number from 0"),
        ("per_operator = 2", "per_operator = 0", "shapes_per_operator is 0, expected a whole number from 1"),
        ("most_gflop = 1.0", "most_gflop = nan", "most_gflop is nan, expected a number above 0"),
        ("most_gflop = 1.0", "most_gflop = inf", "most_gflop is inf, expected a number above 0"),
        ("most_gflop = 1.0", 'most_gflop = "1"', "most_gflop is '1', expected a number above 0"),
        ("[ranges]", "[ranks]", "ranks is unknown; known are"),
        ("[ranges]", "[ranges.inner]", "ranges.inner is unknown; known are encoders, head_size"),
        ("head_size = [8, 16]", "", "ranges.head_size is missing"),
        ("head_size = [8, 16]", "head_size = 8", "ranges.head_size is 8, expected a list of whole numbers"),
        ("head_size = [8, 16]", "head_size = []", "ranges.head_size is [], expected a list of whole numbers"),
        ("head_size = [8, 16]", "head_size = [0]", "ranges.head_size is [0], expected a list of whole num"),
        ("largest_bytes = 16384", "largest_bytes = 1.5", "messages.largest_bytes is 1.5, expected a whole"),
        (
            "largest_bytes = 16384",
            "largest_bytes = 4095",
            "messages.smallest_bytes is 4096, expected at most messages.largest_bytes (4095)",
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
    ("content", "message"), [(b"seed = = 3", "not TOML"), (b"\xff\xfe", "not TOML"), (None, "cannot be read")]
)
def test_what_is_no_toml(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        load_plan(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["slow", "none.toml", "plans/quick", "x" * 5000])
def test_a_plan_that_is_not_there(name: str) -> None:
    with pytest.raises(
        KernelcastError,
        match="no such file, expected a TOML file or one of the plans that ship"
        r" \(quick\)|cannot be read \(File name too long\)",
    ):
        load_plan(name)
