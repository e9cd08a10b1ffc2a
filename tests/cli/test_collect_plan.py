"""`kernelcast collect plan` and `collect compute --budget`: what they print, and what they leave alone."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernelcast.cli.collect import collect
from kernelcast.cli.collect_plan import share
from kernelcast.cli.fields import read_prior
from kernelcast.cli.train import train
from kernelcast.collector.benches import Bench, Place, Point
from kernelcast.collector.measuring import measurer
from kernelcast.collector.measuring.harness import Effort, measure
from kernelcast.collector.measuring.load import BurstLoad
from kernelcast.runtime import DataError, UsageError, read_bundle
from kernelcast.runtime.operators import Direction
from kernelcast.sampling import collect as sampled
from kernelcast.sampling import cost
from kernelcast.store import Database, Repetition
from kernelcast.train.fit import train_bundle
from tests.cli.printed import without_next

pytestmark = pytest.mark.usefixtures("wide", "small_caches")

PLAN = Path(__file__).parent.parent / "data" / "plans" / "tiny.toml"
TWO = ("--operator", "gelu", "--operator", "layer_norm")
# The rates of this device, probed by the first test that needs them.
PROBES = {name: cache(getattr(cost, name)) for name in ("_rates", "_overhead_s")}


@pytest.fixture(autouse=True)
def ten_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about which points are measured: ten repetitions of each will do."""
    quick = Effort(warm_up_iterations=1, most_blocks=1, most_in_block=10)

    def measure_quickly(
        bench: Bench,
        place: Place,
        directions: Sequence[Direction],
        effort: Effort,
        load: BurstLoad | None = None,
    ) -> Mapping[Direction, list[Repetition]]:
        return measure(bench, place, directions, quick, load)

    monkeypatch.setattr(measurer, "measure", measure_quickly)
    for name, probe in PROBES.items():
        monkeypatch.setattr(cost, name, probe)


def invoke(verb: str, *arguments: str) -> Result:
    options = ["--plan", str(PLAN), "--device", "cpu"]
    return CliRunner().invoke(collect, [verb, *options, *arguments])


def test_a_plan_in_numbers(tmp_path: Path) -> None:
    found = invoke("plan", *TWO)
    assert found.exit_code == 0
    header, _, *rows, total, last = found.stdout.splitlines()
    assert header.split() == ["operator", "role", "points", "fit", "measured", "to", "measure", "time"]
    assert [row.split()[:5] for row in rows] == [[name, "2", "2", "0", "2"] for name in TWO[3::-2]]
    assert total.split()[:5] == ["total", "4", "4", "0", "4"]
    assert re.fullmatch(
        r"load: burst; memory: [\d.]+ GiB; time estimated from probe kernels: [\d,]+ GFLOP/s, [\d,.]+ GB/s",
        last,
    )
    assert not list(tmp_path.iterdir())


def test_what_is_measured_already(tmp_path: Path) -> None:
    path = tmp_path / "bench.db"
    assert invoke("compute", "--db", str(path), "--operator", "gelu").exit_code == 0
    before = path.read_bytes()
    document = json.loads(invoke("plan", *TWO, "--db", str(path), "--json").stdout)
    assert document["format"] == "kernelcast.plan/1"
    assert (document["plan"], document["device"], document["dtype"]) == ("tiny", "cpu", "float32")
    counts = {o["operator"]: (o["points"], o["measured"], o["to_measure"]) for o in document["operators"]}
    assert counts == {"gelu": (2, 2, 0), "layer_norm": (2, 0, 2)}
    assert document["seconds"] == pytest.approx(sum(o["seconds"] for o in document["operators"]), abs=0.2)
    assert document["operators"][0]["seconds"] > 0
    assert path.read_bytes() == before


def test_memory_that_is_too_small() -> None:
    document = json.loads(invoke("plan", *TWO, "--gpu-memory", "1073B", "--json").stdout)
    assert document["memory_bytes"] == 1073
    assert all(o["fitting"] == o["to_measure"] == o["seconds"] == 0 for o in document["operators"])


def test_memory_without_a_unit_is_refused() -> None:
    error = CliRunner().invoke(collect, ["plan", "--plan", "quick", "--gpu-memory", "80"]).exception
    assert isinstance(error, UsageError)
    assert str(error).startswith(
        "--gpu-memory is '80' without a unit, expected one of B, kB, MB, GB, TB, KiB, "
    )


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    assert isinstance(invoke("plan", *TWO, "--db", str(path)).exception, DataError)
    assert not path.exists()


@pytest.mark.slow
def test_a_budget_measures_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "bench.db"
    first = invoke("compute", "--db", str(path), *TWO, "--target", "99%")
    assert first.exit_code == 0, first.output
    assert first.stdout.splitlines()[0].split() == ["operator", "workloads", "estimated", "error"]
    assert "20 measured" in first.stdout
    assert re.search(r"mean estimated error [\d.]+ % after \d+ s", first.stdout)
    again = invoke("compute", "--db", str(path), *TWO, "--budget", "1h")
    # All 8 and 12 shapes are stored.
    assert without_next(again.stdout).splitlines()[-1] == f"{path}: 0 measured, 20 already there"
    with Database.open(path, read_only=True) as database:
        assert len({(row.operator, row.vector) for row in database.read_samples()}) == 20


def test_a_budget_too_small_says_what_is_needed(tmp_path: Path) -> None:
    found = invoke("compute", "--db", str(tmp_path / "bench.db"), *TWO, "--budget", "0.01s")
    assert found.exit_code == 0
    assert re.search(
        r"^note: 0 s is too short to measure every operator: .* needs about [\d.]+ (s|min|h)$",
        found.stderr,
        re.MULTILINE,
    )


def test_what_is_there_is_no_failure_when_all_else_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(point: Point, place: Place) -> Bench:
        raise RuntimeError("no kernel image")

    path = tmp_path / "bench.db"
    assert invoke("compute", "--db", str(path), "--operator", "gelu", "--target", "99%").exit_code == 0
    monkeypatch.setattr(measurer, "BENCHES", {**measurer.BENCHES, "layer_norm": broken})
    again = invoke("compute", "--db", str(path), *TWO, "--budget", "1h")
    assert again.exit_code == 0, again.output
    assert without_next(again.stdout).splitlines()[-1] == f"{path}: 0 measured, 12 already there, 8 failed"
    alone = invoke("compute", "--db", str(path), "--operator", "layer_norm", "--budget", "1h")
    assert isinstance(alone.exception, DataError)
    assert str(alone.exception).endswith("nothing measured, all points failed; their reasons are stored")


def test_operators_too_large_for_the_memory_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bench.db"
    monkeypatch.setattr(sampled, "device_memory_bytes", lambda device: 2**13)
    some = invoke("compute", "--db", str(path), *TWO, "--target", "99%")
    assert some.exit_code == 0, some.output
    assert "note: no shape of gelu fits in 0.0 GiB" in some.stderr.splitlines()
    assert without_next(some.stdout).splitlines()[-1] == f"{path}: 1 measured"
    none = invoke("compute", "--db", str(path), "--operator", "gelu", "--budget", "1h")
    assert isinstance(none.exception, DataError)
    assert str(none.exception) == "plan tiny: no shape of gelu fits in 0.0 GiB"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "soon"), "--budget is 'soon', expected a time up to 30d"),
        (("--budget", "0s"), "--budget is '0s', expected a time up to 30d"),
        (("--budget", "31d"), "--budget is '31d', expected a time up to 30d"),
        (("--target", "0"), "--target is '0', expected an error below 100 %"),
        (("--target", "100%"), "--target is '100%', expected an error below 100 %"),
        (("--budget", "1m", "--again"), "--budget and --target go with neither --again nor --procs-per-node"),
        (("--budget", "1m", "--dtype", "int8"), "dtype 'int8' is unknown"),
        (("--budget", "1m", "--operator", "conv"), "operator 'conv' is unknown; known are emb"),
    ],
)
def test_wrong_use_makes_no_database(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    path = tmp_path / "bench.db"
    found = invoke("compute", "--db", str(path), *arguments)
    assert isinstance(found.exception, UsageError)
    assert str(found.exception).startswith(message)
    assert not path.exists()


def test_durations_and_shares() -> None:
    assert [share(text) for text in ("5%", "0.05", "12.5%")] == pytest.approx([0.05, 0.05, 0.125])


@pytest.mark.usefixtures("few_candidates")
@pytest.mark.slow
def test_few_points_beside_a_prior(tmp_path: Path) -> None:
    """A bundle of one thread of this CPU is the prior of two; what it lacks is measured as for a first fit."""
    assert invoke("compute", "--db", str(tmp_path / "one.db"), *TWO).exit_code == 0
    with Database.open(tmp_path / "one.db") as database:
        train_bundle(database, tmp_path / "one.kcast", prior=read_prior("a100-sxm"))
    prior = ("--prior", str(tmp_path / "one.kcast"), "--points", "3", "--threads", "2", *TWO)
    plan = json.loads(invoke("plan", *prior, "--operator", "bias_add", "--json").stdout)
    assert {one["operator"]: one["to_measure"] for one in plan["operators"]} == {
        "gelu": 3,
        "layer_norm": 3,
        "bias_add": 12,
    }
    few = tmp_path / "few.db"
    first = invoke("compute", "--db", str(few), *prior)
    assert (first.exit_code, without_next(first.stdout)) == (0, f"{few}: 6 measured\n")
    # The same points again: a collection can be resumed.
    assert (
        without_next(invoke("compute", "--db", str(few), *prior).stdout)
        == f"{few}: 0 measured, 6 already there\n"
    )
    trained = CliRunner().invoke(
        train, ["--db", str(few), "-o", str(tmp_path / "two.kcast"), "--prior", str(tmp_path / "one.kcast")]
    )
    assert trained.exit_code == 0, trained.output
    entries = read_bundle(tmp_path / "two.kcast").entries
    points = {key[0]: entry.transfer.correction for key, entry in entries.items() if entry.transfer}
    assert {name for name, correction in points.items() if correction} == {"gelu", "layer_norm"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--points", "5", "--prior", "a100-sxm", "--budget", "5m"), "--points goes with neither --budget"),
        (("--points", "5", "--prior", "a1000"), "a1000"),
        (("--points", "5"), "--points is given without --prior, expected both or neither"),
        (("--prior", "a100-sxm"), "--prior is given without --points, expected both or neither"),
        (("--points", "5", "--prior", "none.kcast"), "none.kcast"),
    ],
)
def test_a_prior_that_cannot_be_used_makes_no_database(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    found = invoke("compute", "--db", str(tmp_path / "bench.db"), *arguments)
    assert isinstance(found.exception, UsageError | DataError)
    assert message in str(found.exception)
    assert not list(tmp_path.iterdir())


MODEL = Path(__file__).parent.parent / "data" / "plans" / "small_model.toml"


def for_models(*arguments: str) -> Result:
    return CliRunner().invoke(collect, ["plan", "--for", str(MODEL), *arguments])


def test_a_plan_for_a_model_is_a_file_that_measures_it(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    found = for_models("--layouts", "tp2", "--device", "cpu", "--operator", "rope", "--json", "-o", str(path))
    assert found.exit_code == 0, found.output
    asked = json.loads(found.stdout)
    read = CliRunner().invoke(
        collect, ["plan", "--plan", str(path), "--device", "cpu", "--operator", "rope", "--json"]
    )
    again = json.loads(read.stdout)
    assert [o["points"] for o in again["operators"]] == [o["points"] for o in asked["operators"]]
    assert asked["operators"][0]["points"] >= 8


def test_the_time_on_a_device_that_is_not_here() -> None:
    operators = ("--operator", "gemm", "--operator", "adam")
    found = {}
    for name in ("h100-sxm", "a100-sxm"):
        document = json.loads(for_models("--hardware", name, *operators, "--json").stdout)
        assert document["source"].startswith("operators of NVIDIA ")
        assert document["dtype"] in ("bfloat16", "float16")
        assert document["memory_bytes"] >= 40 * 2**30
        found[name] = document["seconds"]
    assert all(seconds > 1 for seconds in found.values())
