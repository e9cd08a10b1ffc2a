"""`kernelcast train`: what it prints, as text, as JSON and as a page, and how it fails."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernelcast.cli.train import train
from kernelcast.runtime import DataError, UsageError, read_bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, SoftwareFingerprint
from kernelcast.runtime.operators import Direction
from kernelcast.runtime.views.formatting import amount, percent
from kernelcast.store import Database, Run, Sample
from kernelcast.train import selection
from tests.cli.printed import ended, without_next

pytestmark = pytest.mark.usefixtures("wide")

COMPUTE = ComputeFingerprint(kind="cpu", device_name="Example CPU", cores=2, threads=1)
ROOT = Path(__file__).parent.parent.parent
PUBLISHED = ROOT / "tests" / "data" / "importers" / "Example"
SOFTWARE = SoftwareFingerprint(torch="2.13.0")


@pytest.fixture(autouse=True)
def one_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """One quick candidate: what is tested here is the command."""
    found = selection.all_candidates()
    monkeypatch.setattr(
        selection,
        "all_candidates",
        lambda: found._replace(every=[c for c in found.every if c.form == "roofline"][1:2]),
    )


def measured(
    path: Path,
    *,
    compute: ComputeFingerprint = COMPUTE,
    quiet: bool = True,
    operator: str = "gelu",
    role: str = "",
    dtype: str = "float32",
    started_at: str = "2026-01-31T08:15:00Z",
) -> Path:
    """Add gelu or another operator (10 workloads, forward and backward) and rope (3) as measured on `compute`."""
    run = Run(
        started_at=started_at,
        kernelcast_version="0.1.0",
        command="collect compute",
        compute_id=compute.digest,
        software_id=SOFTWARE.digest,
    )
    many = [
        (operator, direction, (4, 128, 64 * i))
        for direction in (Direction.FORWARD, Direction.BACKWARD)
        for i in range(1, 11)
    ]
    rope = [("rope", Direction.FORWARD, (4, 128, 8, 8, 32 * i)) for i in range(1, 4)]
    samples = []
    for name, direction, vector in [*many, *rope]:
        time_us = 10 + vector[-1] / 4
        sample = Sample(
            run_id=run.id,
            operator=name,
            role=role if name == operator else "",
            direction=direction,
            dtype=dtype,
            vector=vector,
            time_us=1.1 * time_us,
            quiet_us=time_us if quiet else None,
            measured_at="2026-01-31T08:16:00Z",
        )
        samples.append(sample)
    with Database.open(path, create=True) as database:
        database.add_run(run, compute, None, SOFTWARE)
        database.add_samples(samples)
    return path


@pytest.fixture
def database_path(tmp_path: Path) -> Path:
    """A database of one device."""
    return measured(tmp_path / "bench.db")


def run(database_path: Path, *arguments: str) -> Result:
    output = database_path.with_name("here.kcast")
    return CliRunner().invoke(train, ["--db", str(database_path), "-o", str(output), *arguments])


def test_readable(database_path: Path) -> None:
    result = run(database_path)
    assert result.exit_code == 0
    output = database_path.with_name("here.kcast")
    entries = read_bundle(output).manifest.regressors
    head, rule, *lines = without_next(result.stdout).splitlines()
    # The reference has no column.
    assert head.split() == [
        "operator", "role", "direction", "rows", "algorithm", "form", "error", "extrapolated", "size", "range",
    ]  # fmt: skip
    assert set(rule) == {"-", " "}
    for line, entry in zip(lines[:2], entries, strict=True):
        error, size = percent(entry.validation_error), amount(entry.size_bytes, "B")
        beyond = percent(entry.extrapolation_error)
        assert entry.extrapolation_error is not None
        beyond = percent(entry.extrapolation_error)
        assert " ".join(line.split()) == (
            f"gelu Glue {entry.direction} 10 xgboost roofline {error} {beyond} {size} 4 × 128 × 64–640"
        )
    mean = percent(sum(entry.validation_error for entry in entries) / 2)
    beyond = percent(sum(entry.extrapolation_error or 0 for entry in entries) / 2)
    size = amount(sum(entry.size_bytes for entry in entries), "B")
    beyond = percent(sum(entry.extrapolation_error or 0 for entry in entries) / 2)
    assert lines[2:] == [
        "left out: rope (forward): 3 distinct workloads, expected 8 or more",
        f"mean error on extrapolated sizes: {beyond}",
        f"{output}: 2 regressors, {size}, mean validation error {mean}",
    ]
    assert result.stderr == "regressors: 2 of 2\n"


def test_json(database_path: Path) -> None:
    result = run(database_path, "--json", "--seed", "7")
    values = json.loads(result.stdout)
    bundle = read_bundle(database_path.with_name("here.kcast"))
    assert bundle.manifest.seed == 7
    assert values["format"] == "kernelcast.training/2"
    assert values["bundle"] == str(bundle.path)
    assert values["bundle_digest"] == bundle.digest
    entries = bundle.manifest.regressors
    assert values["mean_validation_error"] == sum(entry.validation_error for entry in entries) / 2
    assert values["mean_collective_error"] is None
    assert values["mean_reference_error"] is None
    assert list(values)[-1] == "operators"
    for found, entry in zip(values["operators"], entries, strict=True):
        expected = {
            "operator": "gelu",
            "direction": entry.direction.value,
            "rows": 10,
            "error": entry.validation_error,
            "roles": [
                {
                    "role": "",
                    "name": "Glue",
                    "rows": 10,
                    "error": entry.validation_error,
                    "reference_error": None,
                }
            ],
            "coverage": None,
            "size_bytes": entry.size_bytes,
            "algorithm": "xgboost",
            "form": "roofline",
            "training_range": {"b": [4, 4], "l": [128, 128], "width": [64, 640]},
            "fitted": True,
            "layouts": [],
        }
        assert expected.items() <= found.items()
    reason = "3 distinct workloads, expected 8 or more"
    assert values["skipped"] == [{"operator": "rope", "direction": "forward", "reason": reason}]


def test_a_reference_stands_beside_the_errors(tmp_path: Path) -> None:
    # The published errors are of float16, and have linear1 (gemm as qkv) forward and backward as a whole.
    database_path = measured(tmp_path / "bench.db", operator="gemm", role="qkv", dtype="float16")
    result = run(database_path, "--compare-with", str(PUBLISHED))
    assert result.exit_code == 0
    head, _, *lines = result.stdout.splitlines()
    assert head.split()[6:8] == ["error", "reference"]
    assert [line.split()[8:10] for line in lines[:2]] == [["2.0", "%"], ["4.0", "%"]]
    assert "mean error of the reference: 3.0 %" in lines
    values = json.loads(run(database_path, "--compare-with", str(PUBLISHED), "--json").stdout)
    assert [role["reference_error"] for operator in values["operators"] for role in operator["roles"]] == [
        0.02,
        0.04,
    ]
    assert values["mean_reference_error"] == pytest.approx(0.03)


def test_a_reference_that_says_nothing_here_is_said(database_path: Path) -> None:
    result = run(database_path, "--compare-with", str(PUBLISHED))
    expected = f"reference {PUBLISHED}: no errors of these operators in float32"
    assert without_next(result.stdout).splitlines()[-1] == expected


def test_a_report(database_path: Path) -> None:
    directory = database_path.parent / "pages" / "here"
    for _ in range(2):
        result = run(database_path, "--report", str(directory))
        assert result.exit_code == 0
        assert without_next(result.stdout).splitlines()[-1] == f"report: {directory / 'index.html'}"
        assert result.stderr.splitlines()[-1] == "report: 2 of 2"
        assert [path.name for path in directory.iterdir()] == ["index.html"]
    assert "Training of here.kcast" in (directory / "index.html").read_text(encoding="utf-8")
    assert json.loads(run(database_path, "--report", str(directory), "--json").stdout)["operators"]


def test_what_is_taken_over_is_said(database_path: Path) -> None:
    directory = database_path.parent / "pages"
    run(database_path)
    earlier = database_path.with_name("here.kcast").rename(database_path.with_name("earlier.kcast"))
    result = run(database_path, "--from", str(earlier), "--report", str(directory))
    assert "here.kcast: 2 regressors (2 taken over), " in result.stdout
    page = (directory / "index.html").read_text(encoding="utf-8")
    assert page.count("Taken over from an earlier bundle") == 2


def test_the_statistic_is_a_choice(tmp_path: Path) -> None:
    database_path = measured(tmp_path / "bench.db", quiet=False)
    result = run(database_path, "--statistic", "quiet")
    assert isinstance(result.exception, DataError)
    assert "has no quiet time, expected one; train with --statistic middle_five" in str(result.exception)
    assert run(database_path, "--statistic", "middle_five").exit_code == 0
    assert read_bundle(tmp_path / "here.kcast").manifest.statistic == "middle_five"


def test_without_a_choice_it_is_the_one_that_all_samples_have(tmp_path: Path) -> None:
    result = run(measured(tmp_path / "bench.db", quiet=False))
    assert result.exit_code == 0
    count = re.search(r"statistic: middle_five, as (\d+) of (\d+) samples have no repetitions", result.stdout)
    assert count
    assert count[1] == count[2]
    assert read_bundle(tmp_path / "here.kcast").manifest.statistic == "middle_five"


def test_several_devices_are_a_choice(database_path: Path) -> None:
    bigger = replace(COMPUTE, cores=64)
    measured(database_path, compute=bigger)
    result = run(database_path)
    assert isinstance(result.exception, UsageError)
    assert "more than one hardware, choose one with --hardware-id: " in str(result.exception)
    assert not database_path.with_name("here.kcast").exists()
    chosen = ("--hardware-id", bigger.digest[:8], "--software-id", SOFTWARE.digest[:8], "--dtype", "float32")
    assert run(database_path, *chosen).exit_code == 0
    assert read_bundle(database_path.with_name("here.kcast")).manifest.compute == (bigger,)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit status and the one line on standard error."""
    status = ended("train", *arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kernelcast: error: ")
    assert err.count("\n") == 1
    return status, err.removeprefix("kernelcast: error: ").rstrip()


def test_databases_that_cannot_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "here.kcast"
    output.write_bytes(b"an earlier bundle")
    text, empty, new = (tmp_path / name for name in ("notes.db", "empty.db", "new.db"))
    text.write_text("not a database at all, " * 50)
    empty.write_bytes(b"")
    Database.open(new, create=True).close()
    for path, expected in (
        (tmp_path / "none.db", "none.db"),
        (text, "notes.db"),
        (empty, "empty.db"),
        (new, "new.db: no sample with a time in it, expected some (kernelcast collect compute)"),
    ):
        status, message = printed(capsys, "--db", str(path), "-o", str(output))
        assert status == 1
        assert expected in message
    assert output.read_bytes() == b"an earlier bundle"
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--dtype", "float16"], 2, "dtype 'float16' was not measured, found float32"),
        (["--hardware-id", "zz"], 2, "no hardware with a sample starts with 'zz'; known: "),
        (["--fabric-id", "zz"], 2, "no collective has a known fabric, expected no --fabric-id"),
        (["--seed", "-1"], 2, "'--seed': -1 is not in the range"),
        (["--statistic", "mean"], 2, "'mean' is not one of 'quiet', 'middle_five'"),
        (["--report", "bench.db"], 1, "report bench.db: cannot be written (bench.db is not a folder)"),
        (
            ["--report", "bench.db/a/b"],
            1,
            "report bench.db/a/b: cannot be written (bench.db is not a folder)",
        ),
        (["--compare-with", "none"], 1, "none: no such folder; expected one with operator/ and nccl/ in it"),
        (["-o", "none/here.kcast"], 1, "bundle none/here.kcast: cannot be written (no folder none)"),
        (["-o", "."], 2, "File '.' is a directory"),
        (["-o", "bench.db"], 2, "bundle bench.db: is the database, expected another file"),
    ],
)
def test_errors_are_one_line_and_an_exit_code(
    database_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(database_path.parent)
    before = database_path.read_bytes()
    found, line = printed(capsys, "--db", "bench.db", "-o", "here.kcast", *arguments)
    assert found == status
    assert message in line
    assert sorted(path.name for path in database_path.parent.iterdir() if "db-" not in path.name) == [
        "bench.db"
    ]
    assert database_path.read_bytes() == before


@pytest.mark.parametrize("missing", ["--db", "-o"])
def test_database_and_output_are_required(missing: str) -> None:
    arguments = [part for option in {"--db", "-o"} - {missing} for part in (option, "file")]
    result = CliRunner().invoke(train, arguments)
    assert result.exit_code == 2
    assert "Missing option" in result.output


@pytest.mark.parametrize(("jobs", "status"), [("0", 1), ("3", 1), ("-1", 2)])
def test_any_number_of_jobs_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], jobs: str, status: int
) -> None:
    missing = tmp_path / "none.db"
    assert ended("train", "--db", missing, "-o", tmp_path / "new.kcast", "--jobs", jobs) == status
    assert ("no such database" if status == 1 else "--jobs") in capsys.readouterr().err
