"""`kernelcast import`: what it prints and stores, and how it fails."""

import json
from pathlib import Path

import pytest

from kernelcast.cli.main import VERBS
from kernelcast.store import Database
from tests.cli.printed import ended

pytestmark = pytest.mark.usefixtures("wide")

MADE = Path(__file__).resolve().parents[1] / "data" / "importers"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    return ended("import", *arguments), *capsys.readouterr()


def test_readable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = tmp_path / "bench.db"
    code, out, err = run(capsys, "nccl-tests", MADE / "two_nodes.log", "--db", database)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["operator", "role", "direction", "dtype", "samples"]
    assert lines[2].split() == ["all_gather", "once", "float32", "2"]
    assert "left out: 1 rows of empty messages" in lines
    assert lines[-1] == f"{database}: 12 samples added from 1 file(s)"
    code, out, _ = run(capsys, "nccl-tests", MADE / "two_nodes.log", "--db", database)
    assert out.splitlines()[-1] == f"{database}: 0 samples added from 1 file(s), 12 already there"


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("estimate-train-time", MADE / "Example", "--db", tmp_path / "a.db", "--json")
    code, out, _ = run(capsys, *arguments, "--licence", "MIT", "--site", "Example")
    assert code == 0
    document = json.loads(out)
    assert document["format"] == "kernelcast.imported/1"
    assert (document["added"], document["already_there"], document["files"]) == (20, 0, 12)
    qkv = {"operator": "gemm", "role": "qkv", "direction": "forward", "dtype": "float16", "count": 2}
    assert qkv in document["samples"]
    assert document["left_out"]["of optimizer: no operator for it (older format)"] == 1
    assert document["malformed"] == []
    with Database.open(tmp_path / "a.db", read_only=True) as database:
        assert {(r.source.licence, r.site) for r in database.run_list()} == {("MIT", "Example")}


def test_options_describe_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "all.toml").write_text('format = "kernelcast.import/1"\n[rows]\nvariant = "graph"\n')
    code, _, err = run(
        capsys, "csv", MADE / "times.csv", "--db", tmp_path / "a.db", "--device-name", "Mine",
        "--gpu-memory", "48GiB", "--gpus-per-node", 2, "--link", "PCIe 4", "--nic", "100 Gb/s", "--torch", "2.8.0",
        "--driver", "570.1", "--cuda", "12.6", "--nccl", "2.27.3", "--reference", "a report",
        "--describe", tmp_path / "all.toml",
    )  # fmt: skip
    assert (code, err) == (0, "")
    with Database.open(tmp_path / "a.db", read_only=True) as database:
        (device,) = database.hardware_list()
        (fabric,) = database.fabric_list()
        (versions,) = database.software_list()
        assert device.description == "Mine, 48 GiB"
        assert fabric.fingerprint.links == ("PCIe 4",)
        assert fabric.fingerprint.nics == ("100 Gb/s",)
        assert versions.description == "torch 2.8.0, CUDA 12.6, driver 570.1, NCCL 2.27.3"
        assert {s.variant for s in database.read_samples()} == {"graph"}


def test_malformed_lines_are_shown_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.csv"
    bad = "gelu,forward\n" * 25
    path.write_text("operator,dtype,entries,nodes,gpus_per_node,time_us\n" + bad)
    with path.open("a") as stream:
        stream.write("all_reduce,float16,64,1,2,9.5\n")
    options = ("--db", tmp_path / "a.db", "--device-name", "Mine", "--gpus-per-node", "2")
    code, out, err = run(capsys, "csv", path, *options)
    assert code == 0
    assert err.splitlines()[0] == f"skipped: {path}:2: found 2 cells, expected 6 columns"
    assert err.splitlines()[-1] == "skipped: 5 more malformed lines"
    assert out.splitlines()[-1].endswith("1 samples added from 1 file(s), 25 malformed lines skipped")
    code, out, err = run(capsys, "csv", path, "--strict", "--db", tmp_path / "b.db", "--device-name", "Mine")
    assert (code, out) == (1, "")
    assert err == (f"kernelcast: error: {path}:2: found 2 cells, expected 6 columns; nothing was imported\n")
    assert not (tmp_path / "b.db").exists()


def test_one_variant_of_several_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("nccl-tests", MADE / "two_nodes.log", "--db", tmp_path / "a.db")
    code, out, _ = run(capsys, *arguments, "--variant", "in-place")
    assert code == 0
    assert "left out: 1 rows of all_gather measured out-of-place: not a chosen variant" in out.splitlines()
    with Database.open(tmp_path / "a.db", read_only=True) as database:
        found = {(s.operator, s.variant) for s in database.read_samples()}
    assert ("all_gather", "in-place") in found
    assert not any(variant == "out-of-place" for _, variant in found)
    code, out, err = run(capsys, *arguments, "--variant", "by-mail")
    assert (code, out) == (2, "")
    assert "variant: nothing was measured 'by-mail', found in-place; " in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("aiconfigurator", str(MADE / "times.csv")), 1, "times.csv: is not a Parquet file"),
        (("aiconfigurator", "none.parquet"), 1, "none.parquet: no such file"),
        (("simumax", str(MADE / "times.csv")), 1, "times.csv: is not JSON"),
        (("liger", str(MADE / "times.csv")), 1, "is not a table of Liger-Kernel"),
        (("liger", "a.csv", "--commit", "main"), 2, "commit: found 'main', expected 7 to 40 hex"),
        (("csv", "none.csv", "--device-name", "x"), 1, "none.csv: no such file"),
        (("nccl-tests", "none.log"), 1, "none.log: no such file"),
        (("estimate-train-time", "none"), 1, "none: no such folder"),
        (("csv", str(MADE / "two_nodes.log"), "--device-name", "x"), 1, "is not a kernelcast.csv/1"),
        (("nccl-tests", str(MADE / "times.csv")), 1, "is not a log of nccl-tests"),
        (("estimate-train-time", str(MADE / "times.csv")), 1, "is not a folder"),
        (("csv", str(MADE / "times.csv"), "--describe", "none.toml"), 1, "none.toml: no such file"),
        (("csv",), 2, "Missing argument 'PATH...'"),
        (("nccl-tests", "x.log", "--collective", "gossip"), 2, "'gossip' is not one of"),
        (("nccl-tests", str(MADE / "two_nodes.log"), "--as-dtype", "half"), 2, "as-dtype: found 'half'"),
        (("csv", "x.csv", "--gpus-per-node", "0"), 2, "0 is not in the range"),
    ],
)
def test_what_goes_wrong_is_one_line(
    arguments: tuple[str, ...], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, out, err = run(capsys, *arguments, "--db", tmp_path / "a.db")
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert message in err
    assert not (tmp_path / "a.db").exists()


def test_a_missing_package_is_of_the_store() -> None:
    assert VERBS["import"].extra == "store"
