"""`kernelcast bundle`: what info, verify, diff and sign print, as text and as JSON, and how they fail."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelcast.runtime import read_bundle
from kernelcast.runtime.bundle.file import write_bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.bundle.regressor_entry import Interval
from kernelcast.runtime.operators import Direction
from tests.cli.printed import ended

pytestmark = pytest.mark.usefixtures("wide")

Make = Callable[..., Any]
Printed = Callable[..., tuple[int, str, str]]
GELU, REDUCE = ("gelu", Direction.FORWARD), ("all_reduce", Direction.ONCE)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """Runs `kernelcast bundle …`: exit status, standard output, standard error."""
    return lambda *arguments: (ended("bundle", *arguments), *capsys.readouterr())


def test_info_lists_what_was_measured_on_another_device(printed: Printed, tmp_path: Path) -> None:
    path = tmp_path / "l40s.kcast"
    assert ended("hardware", "l40s", "-o", path) == 0
    lines = [" ".join(line.split()) for line in printed("info", path)[1].splitlines()]
    rows = [
        f"{one.operator} {one.direction_text} {one.transfer.origin.device}"
        for one in read_bundle(path).manifest.regressors
        if one.transfer is not None
    ]
    assert rows
    assert [row for row in rows if not any(line.startswith(row) for line in lines)] == []


@pytest.fixture
def small(tmp_path: Path, regressor: Make, manifest: Make, linear_model: Make) -> Path:
    """A bundle of two regressors with everything that info shows."""
    gelu, reduce = linear_model((1, 0, 0), 5), linear_model((0, 0, 0), 7)
    entries = [
        replace(
            regressor(GELU, gelu, largest=4096),
            validation_error=0.0123,
            extrapolation_error=0.25,
            interval_coverage=0.905,
            rows=120,
        ),
        replace(
            regressor(REDUCE, reduce, largest=8),
            interval=Interval.of_all(0.5, method="largest_error"),
            layouts=((1, 4), (2, 4)),
        ),
    ]
    whole = replace(
        manifest(entries, fabric=[FabricFingerprint(backend="gloo", gpus_per_node=2)]),
        compute=(ComputeFingerprint(kind="cpu", device_name="Some CPU", cores=2, threads=1),),
        software=(SoftwareFingerprint(torch="2.13.0"),),
    )
    path = tmp_path / "small.kcast"
    write_bundle(path, whole, {entries[0].file: gelu, entries[1].file: reduce})
    return path


def test_info(small: Path, printed: Printed) -> None:
    status, out, err = printed("info", small)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"{small}: kernelcast bundle, 2 regressors, 0.0 MB"
    assert [line.split(maxsplit=1) for line in lines[1:5]] == [
        ["digest", read_bundle(small).digest],
        ["compute", "Some CPU, 2 cores, 1 thread(s) per process"],
        ["fabric", "gloo, 2 device(s) per node (no links known)"],
        ["software", "torch 2.13.0"],
    ]
    heads, _, reduce, gelu = lines[-4:]
    assert heads.split()[:6] == ["operator", "direction", "rows", "algorithm", "form", "error"]
    assert " ".join(gelu.split()) == (
        "gelu forward 120 linear time 1.2 % 90.5 % 100.0 % 25.0 % 0 kB - b 1–4096, l 1–4096, width 1–4096"
    )
    assert " ".join(reduce.split()) == (
        "all_reduce once 1 linear time 0.0 % – ≤ 64.9 % – 0 kB - entries 1–8, nodes 1–8, gpus_per_node 1–8"
    )


def test_info_as_json_is_the_manifest(small: Path, printed: Printed) -> None:
    status, out, _ = printed("info", small, "--json")
    values = json.loads(out)
    manifest = read_bundle(small).manifest.to_dict()
    assert status == 0
    assert values["format"] == "kernelcast.bundle_info/1"
    assert values["bundle_format"] == manifest.pop("format") == "kernelcast.bundle/3"
    assert values["bundle_digest"] == read_bundle(small).digest
    assert {name: values[name] for name in manifest} == manifest


def test_verify_says_what_it_checked(small: Path, printed: Printed) -> None:
    assert printed("verify", small) == (
        0,
        f"{small}: sound: every digest and byte matches the manifest; 2 models load and answer at 20 corners of their "
        f"training ranges\n{small}: not signed\n",
        "",
    )
    assert json.loads(printed("verify", small, "--json")[1]) == {
        "format": "kernelcast.bundle_check/1",
        "bundle": str(small),
        "bundle_digest": read_bundle(small).digest,
        "models": 2,
        "corners": 20,
        "signer": None,
        "key": None,
    }


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(data=st.data())
def test_no_changed_byte_of_a_real_bundle_is_verified(data: st.DataObject, small: Path) -> None:
    content = small.read_bytes()
    position, flip = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(1, 255))
    changed = small.with_name("changed.kcast")
    changed.write_bytes(content[:position] + bytes([content[position] ^ flip]) + content[position + 1 :])
    assert ended("bundle", "verify", changed) == 1


def test_sign_and_verify(small: Path, printed: Printed, tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    allowed = tmp_path / "allowed"
    allowed.write_text(f"site-a {(tmp_path / 'key.pub').read_text()}")
    status, out, err = printed("verify", small, "--allowed-signers", allowed)
    assert (status, out) == (1, "")
    assert err == (
        f"kernelcast: error: bundle {small}: signature {small}.sig: no such file, "
        "expected one (kernelcast bundle sign)\n"
    )
    assert printed("sign", small, "--key", key) == (0, f"{small}.sig: written\n", "")
    assert printed("verify", small)[1].splitlines()[1] == (
        f"{small}: signature not verified (--allowed-signers names the signers to accept)"
    )
    status, out, _ = printed("verify", small, "--allowed-signers", allowed)
    assert status == 0
    assert out.splitlines()[1].startswith(f"{small}: signed by site-a, key ED25519 key SHA256:")
    values = json.loads(printed("verify", small, "--allowed-signers", allowed, "--json")[1])
    assert values["signer"] == "site-a"
    status, out, err = printed("verify", small, "--allowed-signers", allowed, "--signer", "site-b")
    assert (status, out, err.count("\n")) == (1, "", 1)


def test_diff(small: Path, make_bundle: Make, printed: Printed) -> None:
    assert printed("diff", small, small, "--exit-code") == (0, "same bytes\n", "")
    other = make_bundle(without=("rope",))
    status, out, err = printed("diff", small, other)
    assert (status, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == f"differs A ({small}) B ({other})"
    assert "compute Some CPU, 2 cores, 1 thread(s) per process none" in lines
    assert "operator direction why rows A rows B error A error B size A size B" in lines
    assert "gelu forward model 120 1 1.2 % 0.0 % 0 kB 0 kB" in lines
    assert "only in B: gelu (backward), 1 rows, error 0.0 %" in lines
    assert lines[-1].startswith("regressors: 2 changed, 0 only in A, ")
    assert lines[-1].endswith(" only in B, 0 unchanged")
    assert printed("diff", small, other, "--exit-code")[0] == 1
    values = json.loads(printed("diff", small, other, "--json")[1])
    assert values["format"] == "kernelcast.bundle_difference/1"
    assert (values["a"], values["b"], values["same_bytes"]) == (str(small), str(other), False)
    assert [change["operator"] for change in values["changed"]] == ["all_reduce", "gelu"]


@pytest.mark.parametrize("verb", ["info", "verify", "diff", "sign"])
def test_what_is_no_bundle_is_one_line(verb: str, tmp_path: Path, printed: Printed) -> None:
    path = tmp_path / "notes.kcast"
    path.write_text("not a bundle")
    more = {"diff": [path], "sign": ["--key", path]}.get(verb, [])
    expected = f"kernelcast: error: bundle {path}: not a bundle (expected a zip file, 12 bytes found)\n"
    assert printed(verb, path, *more) == (1, "", expected)
    path.unlink()
    assert printed(verb, path, *more) == (1, "", f"kernelcast: error: bundle {path}: no such file\n")
    status, _, err = printed(verb, tmp_path, *more)
    assert (status, err.count("\n")) == (2, 1)
