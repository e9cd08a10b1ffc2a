"""`kernelcast probe`: readable, as JSON, and the same both ways."""

import json
import re
from functools import cache

import pytest
from click.testing import CliRunner

from kernelcast.cli.probe import probe
from kernelcast.runtime import UsageError
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint

pytestmark = pytest.mark.usefixtures("wide")

KINDS = {"compute": ComputeFingerprint, "fabric": FabricFingerprint, "software": SoftwareFingerprint}


@cache
def invoke(*arguments: str, asked: int = 1) -> str:
    """What is printed; the same asked again is measured once."""
    result = CliRunner().invoke(probe, ["--device", "cpu", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_json_holds_fingerprints_that_read_back() -> None:
    document = json.loads(invoke("--json"))
    assert list(document) == ["format", *KINDS, "peaks"]
    assert document["format"] == "kernelcast.fingerprints/1"
    for name, kind in KINDS.items():
        part = document[name]
        assert set(part) == {"digest", "description", "fields"}
        fingerprint = kind.from_dict(part["fields"])
        assert fingerprint.digest == part["digest"]
        assert fingerprint.description == part["description"]
    again = json.loads(invoke("--json", asked=2))
    peaks = document.pop("peaks")
    assert set(peaks["flops_per_s"]) == set(again.pop("peaks")["flops_per_s"]) == {"float32", "bfloat16"}
    assert all(1e7 < rate < 1e15 for rate in peaks["flops_per_s"].values())
    assert 1e7 < peaks["memory_bytes_per_s"] < 1e13
    # Fingerprints do not depend on what was measured.
    assert document == again


def test_readable_says_the_same() -> None:
    document, text = json.loads(invoke("--json")), invoke()
    lines = text.splitlines()
    heads = [line for line in lines if not line.startswith(" ")]
    assert heads[:-1] == [
        f"{name:9} {document[name]['digest']}  {document[name]['description']}" for name in KINDS
    ]
    assert re.fullmatch(
        r"measured  GEMMs [\d.]+ .?FLOP/s float32, [\d.]+ .?FLOP/s bfloat16; copies [\d.]+ .?B/s",
        heads[-1],
    )
    fields = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines if line.startswith("  ")}
    assert fields["device_name"] == document["compute"]["fields"]["device_name"]
    assert fields["caches"] == ", ".join(document["compute"]["fields"]["caches"])
    assert fields["threads"] == "1"
    # What does not apply to a CPU is left out.
    assert "compute_capability" not in fields
    assert "nccl" not in fields


def test_threads_are_asked_for() -> None:
    one, two = json.loads(invoke("--json")), json.loads(invoke("--json", "--threads", "2"))
    assert one["compute"]["fields"]["threads"] == 1
    assert two["compute"]["fields"]["threads"] == 2
    assert one["compute"]["digest"] != two["compute"]["digest"]
    assert one["software"] == two["software"]


def test_unknown_device() -> None:
    result = CliRunner().invoke(probe, ["--device", "tpu"])
    assert isinstance(result.exception, UsageError)
    with pytest.raises(UsageError, match="device 'tpu' is unknown"):
        raise result.exception
