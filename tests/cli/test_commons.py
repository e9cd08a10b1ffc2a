"""`kernelcast commons`: two sites and a folder between them, as it is typed; and one line for every wrong use."""

import subprocess
from pathlib import Path

import pytest

from tests.cli.printed import ended

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
