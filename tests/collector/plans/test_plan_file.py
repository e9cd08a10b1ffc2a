"""Plan files: what they can say, and files that are no plan, each named in one line."""

from pathlib import Path

import pytest

from kernelcast.collector.plans.plan_file import load_plan
from kernelcast.runtime import DataError, KernelcastError, UsageError


def without_messages(text: str) -> str:
    return text.partition("[messages]")[0]


def test_a_plan_needs_messages_or_collectives(plan_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(without_messages(plan_file.read_text()))
    with pytest.raises(UsageError, match="neither messages nor collectives are given"):
        load_plan(str(path))


def test_entries_and_groups_of_single_collectives(plan_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        without_messages(plan_file.read_text())
        + "[collectives.point_to_point]\nentries = {from = 8, to = 40, step = 16}\n"
        + "processes = {from = 2, to = 4, times = 2}\n"
        + "[[collectives.all_gather]]\nentries = [8, 16]\nprocesses = [2]\n"
        + "[[collectives.all_gather]]\nentries = [4, 8]\nprocesses = [2, 4]\n"
    )
    plan = load_plan(str(path))
    assert plan.entries("point_to_point", processes=2, element_bytes=4) == [8, 24, 40]
    assert plan.entries("point_to_point", processes=4, element_bytes=2) == [8, 24, 40]
    assert plan.entries("point_to_point", processes=8, element_bytes=4) == []
    assert plan.entries("all_reduce", processes=2, element_bytes=4) == []
    assert plan.entries("all_gather", processes=2, element_bytes=4) == [4, 8, 16]
    assert plan.entries("all_gather", processes=4, element_bytes=4) == [4, 8]


def test_layers_of_a_stage_were_called_encoders(plan_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(plan_file.read_text().replace("layers = ", "encoders = "))
    assert load_plan(str(path)).ranges == load_plan(str(plan_file)).ranges
    path.write_text(plan_file.read_text().replace("layers = ", "encoders = [3]\nlayers = "))
    with pytest.raises(UsageError, match="layers and encoders are both given, expected only layers"):
        load_plan(str(path))


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
            "field 'speed' is unknown (did you mean seed?)",
        ),
        ("seed = 3", "", "seed is missing"),
        ("seed = 3", "seed = -1", "seed is -1, expected a whole number from 0"),
        ("seed = 3", "seed = true", "seed is true, expected a whole number"),
        ("seed = 3", f"seed = 0x{'9' * 5000}", "seed is a number too long to show, expected a whole number"),
        (
            "seed = 3",
            f'seed = 3\n"{"a" * 5000}" = 1',
            f"field '{'a' * 79} is unknown, known are shapes_per_operator, seed",
        ),
        ("seed = 3", "seed = 3\noperators = [[1]]", "operators[0] is [1], expected a text"),
        ("seed = 3", "seed = 3.0", "seed is 3.0, expected a whole number"),
        ("seed = 3", f"seed = {10**30}", f"seed is {10**30}, expected a whole number from 0"),
        (
            "per_operator = 2",
            "per_operator = -1",
            "shapes_per_operator is -1, expected a whole number from 0",
        ),
        ("most_gflop = 1.0", "most_gflop = nan", "most_gflop is nan, expected a number above 0"),
        ("most_gflop = 1.0", "most_gflop = 0", "most_gflop is 0.0, expected a number above 0"),
        ("most_gflop = 1.0", 'most_gflop = "1"', "most_gflop is '1', expected a number"),
        ("[ranges]", "[ranks]", "field 'ranks' is unknown, known are"),
        ("[ranges]", "[ranges.inner]", "ranges: field 'inner' is unknown, known are tensor_parallel"),
        (
            "head_size = [8, 16]",
            "",
            "ranges: neither head_size nor attention_heads is given, expected one of them",
        ),
        ("head_size = [8, 16]", "head_size = 8", "ranges.head_size is 8, expected a list of whole numbers"),
        ("head_size = [8, 16]", "head_size = []", "ranges.head_size is [], expected at least one value"),
        ("head_size = [8, 16]", "head_size = [0]", "ranges.head_size is (0,), expected whole numbers from 1"),
        ("largest_bytes = 16384", "largest_bytes = 1.5", "messages.largest_bytes is 1.5, expected a whole"),
        (
            "largest_bytes = 16384",
            "largest_bytes = 4095",
            "messages.smallest_bytes is 4096, expected at most largest_bytes (4095)",
        ),
        (
            "head_size = [8, 16]",
            "head_size = [8]\nattention_heads = [4]",
            "ranges: head_size and attention_heads are b",
        ),
        (
            "mlp_ratio = [4]",
            "mlp_ratio = [-1.5]",
            "ranges.mlp_ratio is (-1.5,), expected numbers above 0",
        ),
        (
            "head_size = [8, 16]",
            "head_size = [8.0]",
            "ranges.head_size[0] is 8.0, expected a whole number",
        ),
        (
            "head_size = [8, 16]",
            "head_size = {from = 8, to = 16}",
            "ranges.head_size is {'from': 8, 'to': 16}, exp",
        ),
        (
            "head_size = [8, 16]",
            "head_size = {from = 0, to = 4, step = 1}",
            "ranges.head_size is {'from': 0, 'to': 4, 'step': 1}, expected whole numbers from 1 as from, to and step",
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
            "ranges.head_size is {'from': 1, 'to': 1000000, 'step': 1}, expected at most 100,000",
        ),
        ("seed = 3", 'seed = 3\noperators = ["conv"]', "operators is 'conv', expected embedding"),
        ("seed = 3", "seed = 3\noperators = []", "operators is [], expected at least one value"),
        ("seed = 3", 'seed = 3\nload = "full"', "load is 'full', expected burst or sustained"),
        ("seed = 3", 'seed = 3\nload = ""', "load is '', expected burst or sustained"),
        (
            "[messages]",
            "[collectives.gelu]\nentries = [1]\nprocesses = [2]\n[messages]",
            "collectives is 'gelu', expected all_reduce, ",
        ),
        (
            "[messages]",
            "[collectives]\nall_gather = 3\n[messages]",
            "collectives.all_gather[0] is 3, expected a table",
        ),
        (
            "[messages]",
            "[collectives]\nall_gather = [3]\n[messages]",
            "collectives.all_gather[0] is 3, expected a t",
        ),
        (
            "[messages]",
            "[collectives]\nall_gather = []\n[messages]",
            "collectives.all_gather is [], expected at least one value",
        ),
        (
            "[messages]",
            "[collectives.all_gather]\nentries = [1]\nprocesses = [2]\n[messages]",
            "messages and collectives are both given, expected one of them",
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
    with pytest.raises(UsageError, match="messages is 3, expected a table"):
        load_plan(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"seed = = 3", r"not TOML \(.+\)"),
        (b"\xff\xfe", r"not TOML \(.+\)"),
        (b"a = " + b"[" * 20_000, r"not TOML \(.*recursion.*\)"),
        (b"seed = " + b"9" * 5000, r"not TOML \(Exceeds the limit .+\)"),
        (None, r"cannot be read \(is a folder, expected a regular file\)"),
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
        r" \((known are )?(\w+, )*paper, quick(, \w+)*\)"
        r"|cannot be read \((File name too long|embedded null byte)\), expected a",
    ) as caught:
        load_plan(name)
    assert len(str(caught.value)) < 400
