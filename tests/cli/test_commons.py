"""`kernelcast commons`: two sites and a folder between them, as it is typed; and one line for every wrong use."""

import json
import lzma
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.cli.commons_bundle import commons_bundle
from kernelcast.runtime import read_bundle
from kernelcast.runtime.bundle.fingerprint import FabricFingerprint
from kernelcast.runtime.operators import OPERATORS
from kernelcast.store import Database
from kernelcast.store.steps import FailureLog
from tests.cli.printed import ended
from tests.cli.test_train import COMPUTE, measured

pytestmark = pytest.mark.usefixtures("wide")

SMALL = Path(__file__).parent.parent / "data" / "small.db"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def run(capsys: Capture, *arguments: str, status: int = 0) -> str:
    found = ended("commons", *arguments)
    printed = capsys.readouterr()
    assert found == status, printed
    assert printed.err.count("\n") == (status != 0), printed
    return printed.err if status else printed.out


@pytest.mark.slow
def test_two_sites(capsys: Capture, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "key"], check=True)
    signers = tmp_path / "config" / "kernelcast" / "allowed_signers"
    signers.parent.mkdir(parents=True)
    signers.write_text(f"site-a {Path('key.pub').read_text()}")
    shown = run(capsys, "publish", str(SMALL), "public", "--site", "Site A", "--dry-run")
    assert "would be written: 17 files" in shown
    assert "model names: tiny-gpt" in shown
    assert not Path("public").exists()
    assert "written: 17 files" in run(
        capsys, "publish", str(SMALL), "public", "--site", "Site A", "--key", "key"
    )
    assert "written: 0 files\n" in run(capsys, "publish", str(SMALL), "public", "--key", "key")
    added = run(capsys, "add", "public", "--signer", "site-a")
    assert added.startswith("public: 79 rows, 17 parts, signed by site-a\n")
    assert run(capsys, "add", "public", status=2).endswith("exists already, expected another --name\n")
    [_, _, line] = run(capsys, "list").splitlines()
    assert ["public", "Site", "A", (tmp_path / "public").as_uri(), "signed", "by", "site-a"] == line.split()[
        :7
    ]
    assert "14 sample added" in run(capsys, "pull", "gelu", "--into", "b.db")
    assert "63 sample" in run(capsys, "pull", "--into", "b.db", "--source", "public")
    again = run(capsys, "pull", "--into", "b.db")
    assert again.startswith("public (signed by site-a): nothing new; 1 requests, ")
    # A source that fails does not keep the others, and is said.
    run(capsys, "publish", str(SMALL), "other")
    run(capsys, "add", "other", "--name", "also")
    Path("public", "kernelcast-commons.json").unlink()
    with pytest.raises(AssertionError, match="no such file"):
        run(capsys, "pull", "--into", "c.db")
    assert Path("c.db").exists()
    assert run(capsys, "remove", "public") == "public: removed\n"
    assert not (tmp_path / "config" / "kernelcast" / "commons" / "public").exists()
    assert run(capsys, "pull", "--into", "b.db", "--source", "public", status=2) == (
        "kernelcast: error: source 'public' is unknown, expected also\n"
    )


def test_the_page_of_a_report_lists_what_sources_offer(capsys: Capture, tmp_path: Path) -> None:
    run(capsys, "publish", str(SMALL), "public")
    run(capsys, "add", "public")
    run(capsys, "report", str(SMALL), "--html", "page.html")
    assert "gelu" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_wrong_use(capsys: Capture, tmp_path: Path) -> None:
    assert "names no source, expected one (kernelcast commons add)" in run(
        capsys, "pull", "--into", "b.db", status=2
    )
    assert "no such file" in run(capsys, "add", "nowhere", status=1)
    assert "expected a name of lower-case letters" in run(capsys, "add", "x", "--name", "../x", status=1)
    config = tmp_path / "config" / "kernelcast" / "commons.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    for text, message in (
        ("x = 1", "commons.toml: field 'x' is unknown"),
        ("[[source]]\nname = 'a'", "commons.toml: source[0].address is missing"),
        ("[[source", "commons.toml: not TOML"),
    ):
        config.write_text(text)
        assert message in run(capsys, "list", status=1)


def test_a_device_that_only_a_source_has(
    capsys: Capture,
    few_candidates: object,
    make_bundle: Callable[..., Path],
    linear_model: Callable[..., bytes],
    model_file: Path,
    tmp_path: Path,
) -> None:
    asked = ("--model", str(model_file), "--micro-batch", "1", "--micro-batches", "3")
    measured(tmp_path / "site-a.db", compute=replace(COMPUTE, device_name="NVIDIA H200"))
    run(capsys, "publish", "site-a.db", "a", "--site", "Site A")
    run(capsys, "add", "a")
    found = run(capsys, "search", "h200", "fp32", "gelu").splitlines()
    assert [line.split()[:3] for line in found[2:]] == [["a", "NVIDIA", "H200,"]]
    assert "From sources of measurements" in shown("hardware", capsys=capsys)
    # Trained once, while the rows are the same; without the network then.
    path, origins = commons_bundle("H200-SXM")
    assert "training, once for these rows: Site A (a): 23 rows" in capsys.readouterr().err
    [regressor] = {entry.operator for entry in read_bundle(path).manifest.regressors}
    assert regressor == "gelu"
    assert origins == ["Site A (a): 23 rows, measured 2026-01-31 to 2026-01-31, not signed"]
    Path("a").rename("moved")
    assert commons_bundle("h200") == (path, origins)
    Path("moved").rename("a")
    # Rows of a second source count too, and no longer once it is removed.
    more = measured(
        tmp_path / "site-b.db", compute=replace(COMPUTE, device_name="NVIDIA H200"), operator="swiglu"
    )
    run(capsys, "publish", str(more), "b", "--site", "Site B")
    run(capsys, "add", "b")
    both, origins = commons_bundle("h200")
    assert {entry.operator for entry in read_bundle(both).manifest.regressors} == {"gelu", "swiglu"}
    assert len(origins) == 2
    capsys.readouterr()
    run(capsys, "remove", "b")
    assert commons_bundle("h200")[0] == path
    path.unlink()
    capsys.readouterr()
    assert {entry.operator for entry in read_bundle(commons_bundle("h200")[0]).manifest.regressors} == {
        "gelu"
    }
    capsys.readouterr()
    # A published bundle is taken as it is.
    models = {one.name: linear_model([1e-3] * len(one.features), 1) for one in OPERATORS.values()}
    bundle = make_bundle(
        models,
        compute=[replace(COMPUTE, device_name="Example 9000")],
        fabric=[FabricFingerprint(backend="nccl", gpus_per_node=4)],
    )
    run(capsys, "publish", "site-a.db", "a", "--bundle", str(bundle))
    run(capsys, "publish", "site-a.db", "a")  # and stays
    run(capsys, "pull", "--into", "b.db")
    device = "example 9000"
    printed = shown("predict", "--hardware", device, "--from", "commons", *asked, capsys=capsys)
    assert (
        f"from the commons: Site A (a): bundle of {read_bundle(bundle).manifest.created_at[:10]}, not signed"
        in printed
    )
    document = json.loads(
        shown("predict", "--hardware", device, "--from", "commons", *asked, "--json", capsys=capsys)
    )
    assert document["commons"][0].startswith("Site A (a): bundle of ")
    for words, status, message in (
        (("--hardware", "mi300x", "--from", "commons"), 2, "no source has rows or a bundle of 'mi300x'"),
        (("--bundle", "x.kcast", "--from", "commons"), 2, "--from commons is given without --hardware"),
    ):
        assert ended("predict", *words, *asked) == status
        assert message in capsys.readouterr().err


def shown(*arguments: str, capsys: Capture) -> str:
    capsys.readouterr()
    assert ended(*arguments) == 0
    return capsys.readouterr().out


def test_a_source_is_distrusted_and_what_was_trained_on_it_is_listed(
    capsys: Capture, few_candidates: object, tmp_path: Path
) -> None:
    run(capsys, "publish", str(measured(tmp_path / "a.db")), "a", "--site", "Site A")
    run(capsys, "add", "a")
    own = measured(tmp_path / "own.db", operator="swiglu", started_at="2026-01-31T09:00:00Z")
    shown("train", "--db", str(own), "-o", "before.kcast", capsys=capsys)
    run(capsys, "pull", "--into", str(own))
    shown("train", "--db", str(own), "-o", "after.kcast", capsys=capsys)
    shown("train", "--db", str(own), "-o", "only-own.kcast", "--only-origin", "own", capsys=capsys)
    report = run(capsys, "report", str(own), "--html", "page.html")
    assert "rope" in report
    assert "more that agree" not in report
    assert "Who has measured what" in Path("page.html").read_text()
    printed = run(capsys, "distrust", "a", str(own)).splitlines()
    assert printed[0] == "a: distrusted"
    assert "23 sample" in printed[1]
    after = read_bundle("after.kcast").digest[:12]
    assert [line for line in printed if ": bundle " in line] == [
        f"{own}: bundle {after} of 2026-01-31 was trained on its rows: gelu"
    ]
    assert run(capsys, "distrust", "a", str(own)) == f"a: distrusted\n{own}: nothing was pulled from a\n"
    assert "distrusted" in run(capsys, "list")
    assert "source a is distrusted" in run(capsys, "pull", "--source", "a", "--into", "b.db", status=2)
    assert "no point was measured by two sites" in run(capsys, "report", str(own))


def test_fabrics_stacks_and_failures_are_published_too(
    capsys: Capture, model_file: Path, tmp_path: Path
) -> None:
    shown("fabric", "new", "ours", "--gpus-per-node", "4", "--inside", "NVSwitch", "--inside-gb-per-s", "200",
          "--cards", "4", "--gbit-per-s", "200", "-o", "ours.toml", capsys=capsys)  # fmt: skip
    Path("mine.toml").write_text(
        'name = "mine"\nsoftware = "ours"\nsource = "here"\n[options]\noverlap_gradients = true\n'
    )
    log = FailureLog(
        kind="csv", gpus_per_node=4, node_days=10.0, failures=1, failed_s=(5.0,), ended_s=(9.0,), causes={"gpu": 1},
        file_digest="0" * 64, kernelcast_version="0.1.0",
    )  # fmt: skip
    with Database.open(tmp_path / "a.db", create=True) as database:
        database.add_all([log])
    run(capsys, "publish", "a.db", "a", "--site", "Site A", "--fabric", "ours.toml", "--stack", "mine.toml")
    assert "written: 0 files" in run(capsys, "publish", "a.db", "a")  # and they stay
    run(capsys, "add", "a")
    assert "1 failure_log" in run(capsys, "pull", "--into", "b.db")
    listed = [line.split() for line in run(capsys, "search", "mine").splitlines()]
    assert listed[-1][:5] == ["Site", "A", "(a)", "stack", "mine"]
    assert "Bundles, fabrics and stacks of sources" in shown("hardware", capsys=capsys)
    asked = ("--model", str(model_file), "--dp", "8", "--micro-batch", "1", "--global-batch", "8")
    asked = ("predict", "--hardware", "h100-sxm", *asked)
    taken = ("--fabric", "ours", "--stack", "mine", "--from", "commons")
    found = json.loads(shown(*asked, *taken, "--json", capsys=capsys))
    assert [line.partition(" of ")[0] for line in found["commons"]] == [
        "Site A (a): fabric ours", "Site A (a): stack mine"
    ]  # fmt: skip
    ours = ("--fabric", "ours.toml", "--stack", "mine.toml")
    here = json.loads(shown(*asked, *ours, "--json", capsys=capsys))
    assert found["step_time_s"] == here["step_time_s"]
    assert ended(*asked, "--fabric", "other", "--from", "commons") == 2
    assert "no source has rows or a bundle of 'h100-sxm'" in capsys.readouterr().err
    # What the server replaces is not taken.
    [stack] = (path for path in Path("a", "descriptions").iterdir() if "mine" in path.read_text())
    stack.write_text(stack.read_text().replace("ours", "evil"))
    shutil.rmtree(tmp_path / "cache")
    assert ended(*asked, *taken) == 1
    assert "its SHA-256 is " in capsys.readouterr().err


@pytest.mark.slow(minutes=3)
def test_the_routine_measures_publishes_and_compares_and_nothing_of_users_leaves(
    capsys: Capture, tmp_path: Path
) -> None:
    plan = shutil.copy(SMALL.parent / "plans" / "tiny.toml", tmp_path / "our plan.toml")
    said = run(
        capsys, "routine", "b.db", "pub lic", "--plan", str(plan), "--site", "It's A", "-o", "r.sbatch"
    )
    assert f"17 3 * * 0 cd {tmp_path} && sbatch r.sbatch\n" in said
    environment = os.environ | {"SLURM_ARRAY_TASK_ID": "0", "SLURM_JOB_USER": "somebody"}
    own = "sites.db: no point was measured by two sites"
    for counts in ("measured, 2 not supported", own):
        done = subprocess.run(
            ["bash", "r.sbatch"], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done
        assert counts in done.stdout
        if counts == own:
            assert "written: 0 files" in done.stdout  # the second time all points are known
        else:
            assert "names no source, expected one" in done.stderr
            run(capsys, "add", "pub lic", "--name", "ours")
    assert "ours" in Path("sites.html").read_text()
    index = Path("pub lic", "kernelcast-commons.json").read_text()
    assert json.loads(index)["about"]["site"] == "It's A"
    left = index
    for path in Path("pub lic").glob("parts/*"):
        part = sqlite3.connect(":memory:")
        part.deserialize(lzma.decompress(path.read_bytes()))
        left += "\n".join(part.iterdump())  # bytes of a file have any short name of a host by chance
    own = {socket.gethostname(), str(tmp_path), str(Path.home()), sys.prefix, "our plan.toml"}
    assert [text for text in own if re.search(rf"(?<![\w-]){re.escape(text)}(?![\w-])", left)] == []


def test_the_routine_of_gpus_is_one_array(capsys: Capture) -> None:
    options = ("--dtype", "bfloat16", "--dtype", "float32", "--gpus-per-node", "8", "--key", "k;rm")
    script = run(capsys, "routine", "b.db", "public", *options)
    assert "#SBATCH --array=0-3%1 " in script
    assert "--exclusive --gpus-per-node=8\n" in script
    assert (
        "  2) kernelcast collect comm --procs 8 --dtype bfloat16 --plan quick --device cuda --db b.db"
        in script
    )
    assert "publish b.db public --key 'k;rm'\n" in script
    assert "--dtype is 'int4', expected float32, bfloat16 or float16" in run(
        capsys, "routine", "b.db", "public", "--dtype", "int4", status=2
    )
    assert "not printable" in run(capsys, "routine", "b.db", "public", "--site", "a\nrm x", status=2)
