"""Signatures by real ssh-keygen (Debian: openssh-client): made, accepted, and refused for every reason there is."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelcast.runtime import DataError, read_bundle
from kernelcast.runtime.bundle.signature import sign_bundle, signature_path, verify_signature

Make = Callable[..., Path]


def make_key(path: Path) -> str:
    """A new key without a passphrase; answers its public half as a list of allowed signers has it."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", path], check=True)
    algorithm, key, _ = path.with_name(path.name + ".pub").read_text().split()
    return f"{algorithm} {key}"


@pytest.fixture
def signed(make_bundle: Make, tmp_path: Path) -> Path:
    """A bundle signed with the key `own`, which `allowed` allows to site-a; `other` is a second key."""
    path = make_bundle()
    (tmp_path / "allowed").write_text(f"site-a {make_key(tmp_path / 'own')}\n")
    make_key(tmp_path / "other")
    assert sign_bundle(path, tmp_path / "own") == path.with_name("test.kcast.sig")
    return path


def refused(path: Path, allowed: Path, message: str, *, signer: str = "") -> None:
    with pytest.raises(DataError, match=message) as caught:
        verify_signature(path, allowed, signer=signer)
    assert str(caught.value).startswith(f"bundle {path}: ")
    assert "\n" not in str(caught.value)


def test_an_allowed_signer_is_accepted(signed: Path, tmp_path: Path) -> None:
    found = verify_signature(signed, tmp_path / "allowed")
    assert (found.signer, found.bundle_digest) == ("site-a", read_bundle(signed).digest)
    assert found.key.startswith("ED25519 key SHA256:")
    assert verify_signature(signed, tmp_path / "allowed", signer="site-a") == found
    # Patterns are OpenSSH's.
    key = (tmp_path / "allowed").read_text().removeprefix("site-a ")
    (tmp_path / "pattern").write_text(f"# ours\n\nsite-* {key}")
    assert verify_signature(signed, tmp_path / "pattern", signer="site-b").signer == "site-b"


def test_a_planted_link_is_not_followed(make_bundle: Make, tmp_path: Path) -> None:
    path, mine = make_bundle(), tmp_path / "mine.db"
    make_key(tmp_path / "own")
    mine.write_text("mine")
    for planted in (
        lambda: signature_path(path).symlink_to(mine),
        lambda: signature_path(path).write_text("mine"),
    ):
        planted()
        with pytest.raises(DataError, match=r"^signature .*test\.kcast\.sig: is (a link|another file)"):
            sign_bundle(path, tmp_path / "own")
        assert mine.read_text() == "mine"
        signature_path(path).unlink()


def test_who_may_sign_is_a_choice_of_the_reader(signed: Path, tmp_path: Path) -> None:
    refused(signed, tmp_path / "allowed", r"does not hold for site-b \(", signer="site-b")
    other = (tmp_path / "other.pub").read_text()
    (tmp_path / "others").write_text(f"site-a {other}site-b {other}")
    refused(signed, tmp_path / "others", r"is by no signer in .*others, expected one of the allowed signers$")
    refused(signed, tmp_path / "others", r"does not hold for site-a \(", signer="site-a")
    own = (tmp_path / "own.pub").read_text()
    (tmp_path / "git").write_text(f'site-a namespaces="git" {own}')
    refused(signed, tmp_path / "git", r"does not hold for site-a \(.*namespace")
    (tmp_path / "late").write_text(f'site-a valid-after="29990101" {own}')
    refused(signed, tmp_path / "late", "is by no signer in|does not hold for site-a")
    (tmp_path / "junk").write_bytes(b"\xff\x00 not a list\n")
    refused(signed, tmp_path / "junk", "is by no signer in")
    refused(signed, tmp_path / "none", r"cannot be verified \(allowed signers .*none: no such file\)$")
    refused(signed, tmp_path, r"cannot be verified \(allowed signers .*: is no regular file\)$")


def test_changed_bundles_and_signatures_are_refused(signed: Path, make_bundle: Make, tmp_path: Path) -> None:
    content, signature = signed.read_bytes(), signature_path(signed).read_bytes()
    make_bundle({"gelu": 11.0})
    refused(signed, tmp_path / "allowed", r"does not hold for site-a \(")
    signed.write_bytes(content)
    verify_signature(signed, tmp_path / "allowed")
    for changed in (b"", b"junk", signature[:60] + b"A" * 9 + signature[69:], signature * 500):
        signature_path(signed).write_bytes(changed)
        refused(
            signed,
            tmp_path / "allowed",
            "is not an SSH signature$|is by no signer in|does not hold|larger than",
        )
    for size_bytes, message in ((1 << 16, "is not an SSH signature$"), ((1 << 16) + 1, "larger than")):
        signature_path(signed).write_bytes(b"-" * size_bytes)
        refused(signed, tmp_path / "allowed", message)
    # Made with the right key, but for another purpose.
    done = subprocess.run(
        ["ssh-keygen", "-Y", "sign", "-f", tmp_path / "own", "-n", "file"],
        input=content,
        capture_output=True,
        check=True,
    )
    signature_path(signed).write_bytes(done.stdout)
    refused(signed, tmp_path / "allowed", r"does not hold for site-a \(")
    signature_path(signed).unlink()
    refused(signed, tmp_path / "allowed", r"sig: no such file, expected one \(kernelcast bundle sign\)$")
    signature_path(signed).mkdir()
    refused(signed, tmp_path / "allowed", r"sig: cannot be read \(is a folder")
    signed.unlink()
    refused(signed, tmp_path / "allowed", "no such file$")


def test_an_earlier_signature_is_replaced(signed: Path, make_bundle: Make, tmp_path: Path) -> None:
    make_bundle({"gelu": 11.0})
    sign_bundle(signed, tmp_path / "own")
    verify_signature(signed, tmp_path / "allowed")
    assert not list(tmp_path.glob(".*.new"))


def test_what_cannot_be_signed_is_one_line(
    signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signature_path(signed).read_bytes()
    (tmp_path / "no-key").write_text("not a key")
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret phrase", "-f", locked], check=True)
    # No one can enter the phrase.
    monkeypatch.setenv("SSH_ASKPASS", "/bin/false")
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    for key, message in (
        ("none", r"cannot be signed \(key .*none: no such file\)$"),
        ("no-key", r"cannot be signed \("),
        ("locked", r"cannot be signed \("),
    ):
        with pytest.raises(DataError, match=message) as caught:
            sign_bundle(signed, tmp_path / key)
        assert "\n" not in str(caught.value)
    damaged = tmp_path / "damaged.kcast"
    damaged.write_bytes(signed.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"damaged\.kcast: "):
        sign_bundle(damaged, tmp_path / "own")
    assert not signature_path(damaged).exists()
    assert signature_path(signed).read_bytes() == before


@pytest.mark.parametrize("name", ["-f.kcast", "a b;$(touch x).kcast", "line\nbreak.kcast", "ä .kcast"])
def test_names_of_files_reach_no_shell_and_no_option(
    signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for old, new in (
        (signed, name),
        (tmp_path / "own", f"{name}.key"),
        (tmp_path / "allowed", f"{name}.list"),
    ):
        shutil.move(old, new)
    sign_bundle(name, f"{name}.key")
    assert verify_signature(name, f"{name}.list").signer == "site-a"
    assert verify_signature(name, f"{name}.list", signer="site-a").signer == "site-a"
    with pytest.raises(DataError, match="does not hold for -site"):
        verify_signature(name, f"{name}.list", signer="-site")
    assert not Path("x").exists()


def test_without_ssh_keygen_the_package_is_named(
    signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    expected = r"ssh-keygen is not installed, expected OpenSSH's \(Debian: openssh-client\)$"
    refused(signed, tmp_path / "allowed", expected)
    with pytest.raises(DataError, match=expected):
        sign_bundle(signed, tmp_path / "own")
    # The file exists, but is not a program.
    (tmp_path / "ssh-keygen").write_text("no program")
    (tmp_path / "ssh-keygen").chmod(0o755)
    refused(signed, tmp_path / "allowed", r"ssh-keygen cannot be run \(")
