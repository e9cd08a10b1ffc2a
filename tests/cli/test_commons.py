"""`kernelcast commons`: two sites and a folder between them, as it is typed; and one line for every wrong use."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.cli.commons_bundle import commons_bundle
from kernelcast.runtime import read_bundle
from kernelcast.runtime.bundle.fingerprint import FabricFingerprint
from kernelcast.runtime.operators import OPERATORS
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
    assert "rope" in run(capsys, "report", str(own), "--html", "page.html")
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
