"""The demo's TOML file: the one that ships, and slips that are named before anything is measured."""

from pathlib import Path

import pytest

import kernelcast.demo.config as module
from kernelcast.collector.plans.plan_file import load_plan
from kernelcast.demo.config import DemoConfig
from kernelcast.runtime import DataError, UsageError
from kernelcast.runtime.errors import KernelcastError
from kernelcast.runtime.request.fields import REQUEST

TINY_PLAN = (Path(__file__).parent.parent / "data" / "plans" / "tiny.toml").read_text()
SHIPPED = (Path(module.__file__).parent / "demo.toml").read_text()


def load(path: Path | None) -> DemoConfig:
    return DemoConfig.load(path, dtype="float32")


def test_the_one_that_ships() -> None:
    config = load(None)
    assert load_plan(config.plan).name == "quick"
    layouts = [job.parallelism for job in config.runs.jobs]
    assert [(layout.pp, layout.tp, layout.dp) for layout in layouts] == [(1, 1, 1), (2, 1, 1)]
    assert {job.model.layers for job in config.runs.jobs} == {7}
    assert config.steps >= 10


def test_a_copy_of_it_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SHIPPED)
    assert load(path) == load(None)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seed = 20", "seed = 20\nspeed = 1", "field 'speed' is unknown"),
        ("seed = 20", "seed = -1", "seed is -1, expected"),
        ("seed = 20", "seed = 2.5", "seed is 2.5, expected"),
        ("seed = 20", f"seed = 0x{'9' * 5000}", "seed is a number too long to show, expected"),
        ("seed = 20", f'seed = 20\n"{"a" * 5000}" = 1', f"field '{'a' * 79} is unknown, known are"),
        ("steps = 24", "", "steps is missing, expected a whole number"),
        ("steps = 24", "steps = 0", "steps is 0, expected 1 to "),
        ("steps = 24", "steps = true", "steps is true, expected a whole number"),
        ('plan = "quick"', "plan = 7", "plan is 7, expected a text"),
        ('plan = "quick"', "", "plan is missing, expected a text"),
        ("[defaults]", "[default]", "field 'default' is unknown (did you mean defaults?)"),
        ("rounds = 2", "rounds = 0", "rounds is 0, expected"),
        ("warm_up_steps = 3", "warm_up_steps = -3", "warm_up_steps is -3, expected"),
        ("micro_batch = 2", 'micro_batch = "2"', "run 1: micro_batch is '2', expected"),
        ("micro_batches = 4", "micro_batches = 1", "run 2: micro_batches is 1, real steps over 2"),
        ("pp = 1", "pp = 0", "run 1: pp is 0, expected"),
        ("pp = 2", "pp = 1", "runs holds small-gpt (1-1-1) twice, expected each configuration once"),
        ("pp = 2", "pp = 8", "run 2: pp is 8, expected from 1 to 7 for 7 layers"),
        (
            "[[runs]]\npp = 1\n\n[[runs]]\npp = 2\n",
            "",
            "runs is missing, expected at least one table [[runs]]",
        ),
        ("layers = 7", "", "models.'small-gpt': field layers is missing"),
        ("layers = 7", "layer = 7", "models.'small-gpt': field 'layer' is unknown (did you mean layers?)"),
        (
            "attention_heads = 4",
            "attention_heads = 3",
            "models.'small-gpt': hidden_size is 256, expected a mul",
        ),
        (
            '"flash"',
            '"fused_softmax"',
            "run 1: model small-gpt: attention is fused_softmax, real steps train",
        ),
    ],
)
def test_a_slip_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SHIPPED
    path = tmp_path / "mine.toml"
    path.write_text(SHIPPED.replace(old, new))
    with pytest.raises(UsageError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 200 + sum(len(field) + 2 for field in REQUEST)


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
        DataError, match=rf"mine\.toml: {message}, expected a demo configuration \(TOML\)$"
    ) as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            "slow",
            "plan slow: no such file, expected a TOML file or one of the plans that ship (known are modern, ",
        ),
        ("a\\u0000b", r"plan 'a\x00b': cannot be read (embedded null byte), expected a TOML file or one of"),
        (
            "p" * 5000,
            f"plan ...{'p' * 255}: cannot be read (File name too long), expected a TOML file or one of",
        ),
        ("wrong.toml", "plan {folder}/wrong.toml: seed is -1, expected a whole number from 0"),
    ],
)
def test_a_wrong_plan_names_the_configuration(tmp_path: Path, plan: str, message: str) -> None:
    (tmp_path / "wrong.toml").write_text(TINY_PLAN.replace("seed = 3", "seed = -1"))
    path = tmp_path / "mine.toml"
    path.write_text(SHIPPED.replace('"quick"', f'"{plan}"'))
    with pytest.raises(KernelcastError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: {message.replace('{folder}', str(tmp_path))}")
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.toml: no such file, expected a demo configuration"):
        load(tmp_path / "none.toml")


def test_a_plan_beside_the_configuration_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(__file__).parent.parent.parent / "docs" / "small"
    monkeypatch.chdir(tmp_path)
    assert load(folder / "demo.toml").plan == str(folder / "tiny-plan.toml")
