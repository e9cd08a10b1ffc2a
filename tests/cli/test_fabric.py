"""`kernelcast fabric`, and --fabric of the commands that predict."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernelcast.cli.main import kernelcast
from kernelcast.runtime import DataError, UsageError
from kernelcast.runtime.bundle.file import read_bundle
from kernelcast.runtime.bundle.fingerprint import FabricFingerprint
from kernelcast.runtime.bundle.manifest import described_fabrics, measured_fabrics
from kernelcast.runtime.hardware.fabric import fabric_named, read_fabric, shipped_fabrics
from kernelcast.store import Database, merge_databases

pytestmark = pytest.mark.usefixtures("wide")

Make = Callable[..., Path]
SIZES = "hidden_size = 8\nsequence_length = 4\nattention_heads = 8\nlayers = 4\nvocabulary_size = 100\n"
NEW = (
    "fabric new ours --gpus-per-node 8 --inside NVSwitch --hardware h100-sxm --in-switch-reduction --cards 8 "
    "--gbit-per-s 400 --between RoCE --source here"
)


def run(command: str, *more: str) -> Result:
    return CliRunner().invoke(kernelcast, [*command.split(), *more])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a model file; no site file."""
    (tmp_path / "tiny.toml").write_text(SIZES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNELCAST_SITE", "")
    return tmp_path


def test_list() -> None:
    lines = run("fabric list").output.splitlines()
    *listed, empty, measured = lines[2:]
    assert [line.split()[0] for line in listed] == list(shipped_fabrics())
    assert (empty, measured) == ("", "Measured collectives: perlmutter-measured, vista-measured.")
    found = json.loads(run("fabric list --json").output)
    assert [one["name"] for one in found] == list(shipped_fabrics())


def test_show() -> None:
    text = run("fabric show h100-3200g --layouts 1x8,10x8 --size 256MiB --operator all_reduce").output
    assert 'name = "h100-3200g"' in text
    assert "all_reduce  10 × 8  256 MiB" in text
    values = json.loads(run("fabric show h100-3200g --layouts 10x8 --size 32KiB,1GiB --json").output)
    assert values["format"] == "kernelcast.fabric/1"
    assert values["fabric"]["inside"]["gb_per_s"] == 450
    for row in values["times"]:
        assert row["least_us"] <= row["low_us"] <= row["time_us"] <= row["high_us"]
    assert run("fabric show vista").exit_code == 0
    assert run("fabric show a100-nvswitch").exit_code == 0


@pytest.mark.parametrize(
    ("command", "kind", "expected"),
    [
        ("fabric show nothing", UsageError, "fabric 'nothing' is unknown"),
        ("fabric show none.toml", DataError, "fabric file none.toml: no such file"),
        ("fabric show h100-3200g --layouts 1x16", UsageError, "has more devices per node than its 8"),
        ("fabric show h100-3200g --size 0", UsageError, "--size is '0' without a unit, expected one of"),
        (
            f"{NEW} --inside-efficiency 2",
            UsageError,
            "inside.efficiency is '2 (0.62 to 2)', expected 0.0001 to 1",
        ),
        (
            "fabric new a --gpus-per-node 8 --inside PCIe --hardware nothing",
            UsageError,
            "device 'nothing' is",
        ),
        (f"{NEW} -o none/x.toml", UsageError, "no such folder none"),
    ],
)
def test_what_is_refused_is_one_line(command: str, kind: type[Exception], expected: str) -> None:
    result = run(command)
    assert isinstance(result.exception, kind)
    assert expected in str(result.exception)
    assert "\n" not in str(result.exception)


def test_a_new_description_is_the_printed_one(folder: Path) -> None:
    printed = run(NEW).output
    assert run(f"{NEW} -o ours.toml").output.startswith(
        "ours.toml: ours: 8 devices per node, NVSwitch at 450 GB/s"
    )
    assert (folder / "ours.toml").read_text() == printed
    found = read_fabric("ours.toml")
    assert found.inside is not None
    assert found.inside.bytes_per_s == 450e9
    assert found.between is not None
    assert found.between.kind == "RoCE"


def test_a_description_survives_a_database_its_merge_and_its_export(folder: Path) -> None:
    for _ in range(2):
        assert run("fabric add h100-3200g --db one.db").exit_code == 0
    run(f"{NEW} -o ours.toml")
    run("fabric add ours.toml --db two.db")
    merge_databases([folder / "two.db"], into=folder / "one.db")
    assert run("db export one.db shared.db").exit_code == 0
    assert run("db check shared.db").exit_code == 0
    with Database.open("shared.db", read_only=True) as database:
        fingerprints = [row.fingerprint for row in database.fabric_list()]
    assert set(described_fabrics(fingerprints, where="shared.db")) == {
        fabric_named("h100-3200g"),
        read_fabric("ours.toml"),
    }


def test_a_description_is_attached_to_a_bundle_without_training(folder: Path, make_bundle: Make) -> None:
    before = read_bundle(make_bundle(fabric=[FabricFingerprint(backend="nccl", gpus_per_node=8)]))
    for name in ("a100-1600g", "h100-3200g"):
        attached = run(f"fabric attach {name} --bundle test.kcast -o described.kcast")
        assert attached.output.startswith(f"described.kcast: {name}: 8 devices per node")
    after = read_bundle("described.kcast")
    assert after.files == before.files
    assert measured_fabrics(after.manifest.fabric) == before.manifest.fabric
    assert described_fabrics(after.manifest.fabric, where="here") == (fabric_named("h100-3200g"),)
    run("fabric attach a100-1600g --bundle described.kcast -o again.kcast")
    again = read_bundle("again.kcast").manifest.fabric
    assert described_fabrics(again, where="here") == (fabric_named("a100-1600g"),)
    refused = run("fabric attach perlmutter --bundle test.kcast -o none.kcast").exception
    assert str(refused) == "fabric perlmutter has nodes of 4, expected 8, as the bundle was measured"
    assert not (folder / "none.kcast").exists()
    shown = run("fabric show described.kcast --layouts 1x8 --size 1GiB")
    assert 'name = "h100-3200g"' in shown.output


def test_commands_that_predict_take_a_fabric(make_bundle: Make) -> None:
    make_bundle()
    always = "--bundle test.kcast --model tiny.toml --micro-batch 1 --micro-batches 2 --tp 8 --dp 2"
    plain = json.loads(run(f"predict {always} --gpus-per-node 8 --json").output)
    described = json.loads(run(f"predict {always} --fabric h100-3200g --json").output)
    assert plain["provenance"]["collectives"] is None
    assert described["provenance"]["collectives"]["name"] == "h100-3200g"
    assert described["cluster"] == {"gpus_per_node": 8, "source": "fabric"}
    assert described["step_time_s"] != plain["step_time_s"]
    assert "\nfabric    h100-3200g: 8 devices per node" in run(f"predict {always} --fabric h100-3200g").output

    search = (
        "search --bundle test.kcast --model tiny.toml --gpus 16 --global-batch 4 --fabric h100-3200g --json"
    )
    found = json.loads(run(search).output)
    assert found["asked"]["fabric"] == "h100-3200g"
    assert found["asked"]["gpus_per_node"] == 8
    assert found["provenance"]["collectives"]["name"] == "h100-3200g"

    job = f"walltime {always} --steps 10 --fabric h100-3200g --format json"
    limits = json.loads(run(job).stdout)
    assert limits["provenance"]["collectives"]["name"] == "h100-3200g"
    assert limits["step_time_s"] == described["step_time_s"]


def test_a_bundle_of_collectives_stands_beside_one_of_compute(make_bundle: Make) -> None:
    make_bundle(without=["all_reduce", "all_gather", "reduce_scatter"], name="compute.kcast")
    make_bundle({"all_reduce": 77.0}, name="network.kcast")
    always = (
        "--bundle compute.kcast --model tiny.toml --micro-batch 1 --micro-batches 2 --tp 2 --gpus-per-node 2"
    )
    assert isinstance(run(f"predict {always}").exception, DataError)
    values = json.loads(run(f"predict {always} --fabric network.kcast --json").output)
    assert {row["time_us"] for row in values["operators"] if row["operator"] == "all_reduce"} == {77.0}
    assert isinstance(run(f"predict {always} --fabric compute.kcast").exception, DataError)


def test_explanations_of_a_fabrics_answers_are_refused(make_bundle: Make) -> None:
    make_bundle()
    always = "--bundle test.kcast --model tiny.toml --micro-batch 1 --micro-batches 2 --tp 8"
    refused = run(f"predict {always} --fabric h100-nvswitch --explain all_reduce").exception
    assert str(refused).startswith("operator all_reduce was answered by fabric h100-nvswitch")
    assert run(f"predict {always} --fabric h100-nvswitch --explain gemm").exit_code == 0


def test_a_job_names_its_fabric(folder: Path, make_bundle: Make) -> None:
    make_bundle()
    run(f"{NEW} -o ours.toml")
    (folder / "jobs").mkdir()
    (folder / "jobs" / "train.sbatch").write_text(
        "#!/bin/bash\n#KERNELCAST bundle=../test.kcast model=../tiny.toml tp=8 dp=2 micro_batch=1 micro_batches=2\n"
        "#KERNELCAST steps=10 fabric=../ours.toml\n"
    )
    values = json.loads(run("walltime jobs/train.sbatch --format json").stdout)
    assert values["provenance"]["collectives"]["name"] == "ours"
    named = (folder / "jobs" / "train.sbatch").read_text().replace("../ours.toml", "nothing")
    (folder / "jobs" / "named.sbatch").write_text(named)
    refused = run("walltime jobs/named.sbatch").exception
    assert str(refused).startswith("jobs/named.sbatch line 3: fabric 'nothing' is unknown")


def test_an_untrusted_script_names_no_file(make_bundle: Make) -> None:
    make_bundle()
    script = (
        "#!/bin/bash\n#KERNELCAST model=llama-2-7b micro_batch=1 micro_batches=1 steps=1 fabric=/etc/x.toml\n"
    )
    result = CliRunner().invoke(
        kernelcast, ["walltime", "-", "--untrusted", "--bundle", "test.kcast"], input=script
    )
    assert "fabric is '/etc/x.toml', expected a fabric's name, not a path" in str(result.exception)
