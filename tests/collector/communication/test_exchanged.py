"""kernelcast collect comm: what each process exchanges, and wrong use, without starting processes."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernelcast.cli.collect import collect as collect_group
from kernelcast.collector.communication.comm import collect_comm, what_to_exchange
from kernelcast.collector.communication.timing import CommPoint
from kernelcast.collector.communication.world import World
from kernelcast.collector.plans.plan_ranges import CollectiveRange, Plan
from kernelcast.collector.settings import Settings
from kernelcast.runtime import UsageError
from kernelcast.runtime.operators import OPERATORS
from kernelcast.store import Database
from tests.cli.printed import ended

COLLECTIVES = [op.name for op in OPERATORS.values() if op.is_collective and not op.is_on_request]
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
PATIENCE_S = 3000  # against hanging only
COMM = ("-m", "kernelcast.cli.main", "collect", "comm", "--device", "cpu")


def environment(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    for name, value in zip(VARIABLES, values, strict=False):
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--layouts", "2x1"), "--layouts: 2x1 cannot be formed, found 1 node(s) with 2 process(es) each"),
        (("--plan", "none.toml"), "plan none.toml: no such file"),
        (("--dtype", "int4"), "dtype 'int4' is unknown"),
    ],
)
def test_wrong_use_starts_no_processes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setattr(subprocess, "Popen", None)
    started = ("--procs", "2", "--device", "cpu", "--db", tmp_path / "x.db")
    assert ended("collect", "comm", *started, *arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"kernelcast: error: {message}")
    assert len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("variable", "value"), [("RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")])
def test_two_launchers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    chosen = ["comm", "--procs", "2", "--db", str(tmp_path / "x.db")]
    result = CliRunner().invoke(collect_group, chosen)
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == "--procs is given under torchrun, srun or mpirun, expected one of them"


def test_messages_too_small_for_the_processes(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    environment(monkeypatch, "0", "0", "2048", "2")
    with pytest.raises(
        UsageError, match="smallest message is below 8192 bytes, expected at least an element for each"
    ):
        collect_comm(lambda: Database.open("unused.db"), plan, Settings(device="cpu"))


def exchanged(plan: Plan, layout_names: str) -> list[CommPoint]:
    world = World(rank=0, local_rank=0, size=3, local_size=3)
    return what_to_exchange(plan, world, Settings(device="cpu"), layout_names)[1]


@pytest.mark.parametrize(
    ("named", "measured"),
    [
        (("all_reduce", "all_to_all"), {"all_reduce", "all_to_all"}),
        (("gelu", "all_gather"), {"all_gather"}),
        (("gelu", "rope"), set(COLLECTIVES)),
        ((), set(COLLECTIVES)),
    ],
)
def test_collectives_that_a_plan_names_are_the_only_ones(
    plan: Plan, named: tuple[str, ...], measured: set[str]
) -> None:
    points = exchanged(replace(plan, operators=named), "")
    assert {point.operator for point in points} == measured


def of_single_collectives(plan: Plan, *entries: int) -> Plan:
    own = {"reduce_scatter": (CollectiveRange(entries=entries, processes=(2,)),)}
    return replace(plan, messages=None, collectives=own)


def test_messages_that_are_divided_into_equal_ones_are_one(plan: Plan) -> None:
    points = exchanged(of_single_collectives(plan, 12, 13, 14), "mp2")
    assert [point.vector for point in points] == [(12, 1, 2), (14, 1, 2)]


@pytest.mark.parametrize(
    ("layout_names", "message"),
    [
        ("tp2, mp3", "--layouts: plan tiny has no messages for mp3"),
        ("dp3", "--layouts: plan tiny has no messages for dp3"),
        ("1x3", "--layouts: plan tiny has no messages for 1x3"),
    ],
)
def test_a_layout_without_messages_is_named(plan: Plan, layout_names: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        exchanged(of_single_collectives(plan, 12), layout_names)
    assert str(caught.value) == message


def test_no_messages_for_any_layout(plan: Plan) -> None:
    single = of_single_collectives(plan, 12)
    # Two of three processes are a group as well, by size.
    assert {point.layout.size for point in exchanged(single, "")} == {2}
    with pytest.raises(UsageError, match="plan tiny: it has no messages for groups of 2, 3 processes"):
        exchanged(replace(single, operators=("all_reduce",)), "")


def test_unknown_dtype(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    environment(monkeypatch, "0", "0", "2", "2")
    with pytest.raises(UsageError, match="dtype 'int4' is unknown"):
        collect_comm(lambda: Database.open("unused.db"), plan, Settings(dtype="int4"))
