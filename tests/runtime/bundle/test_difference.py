"""What two bundles differ in, and why a regressor changed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import read_bundle
from kernelcast.runtime.bundle.difference import SettingDifference, compare_bundles
from kernelcast.runtime.bundle.file import Bundle, Manifest, RegressorEntry, write_bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, SoftwareFingerprint
from kernelcast.runtime.operators import Direction

Make = Callable[..., Any]
FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD


@pytest.fixture
def written(tmp_path: Path, manifest: Make, regressor: Make) -> Make:
    """Write a bundle of gelu, rope and softmax, forward, entries changed as told: `written("a.kcast", gelu={...})`."""

    def write(
        name: str, *, without: str = "", settings: dict[str, Any] | None = None, **changes: Any
    ) -> Bundle:
        models, entries = {}, []
        for operator in ("gelu", "rope", "softmax", "swiglu"):
            if operator in without.split():
                continue
            model = changes.get(operator, {}).pop("model", b"some bytes")
            entry: RegressorEntry = replace(
                regressor((operator, FORWARD), model), **changes.get(operator, {})
            )
            entries.append(entry)
            models[entry.file] = model
        whole: Manifest = replace(manifest(entries), **(settings or {}))
        write_bundle(tmp_path / name, whole, models)
        return read_bundle(tmp_path / name)

    return write


def test_a_bundle_does_not_differ_from_itself(written: Make) -> None:
    found = compare_bundles(written("a.kcast"), written("b.kcast"))
    assert found.same_bytes
    assert (found.settings, found.added, found.removed, found.changed, found.unchanged) == ((), (), (), (), 4)


def test_regressors_added_removed_and_changed(written: Make) -> None:
    a = written("a.kcast", without="softmax")
    b = written(
        "b.kcast",
        without="swiglu",
        gelu={"table_digest": "aa", "rows": 9, "model": b"others"},
        rope={"recipe_digest": "bb"},
    )
    found = compare_bundles(a, b)
    assert not found.same_bytes
    assert [entry.operator for entry in found.added] == ["softmax"]
    assert [entry.operator for entry in found.removed] == ["swiglu"]
    gelu, rope = found.changed
    assert (gelu.a.rows, gelu.b.rows) == (1, 9)
    assert (gelu.rows_differ, gelu.recipe_differs) == (True, False)
    assert gelu.fields == ("sha256", "size_bytes", "rows", "table_digest")
    assert (rope.rows_differ, rope.recipe_differs, rope.fields) == (False, True, ("recipe_digest",))
    assert found.unchanged == 0
    mirrored = compare_bundles(b, a)
    assert (mirrored.added, mirrored.removed) == (found.removed, found.added)
    values = found.to_dict()
    assert values["changed"][0]["operator"] == "gelu"
    assert values["changed"][0]["b"]["rows"] == 9
    assert [entry["operator"] for entry in values["added"]] == ["softmax"]


def test_hardware_and_settings(written: Make) -> None:
    cpu = ComputeFingerprint(kind="cpu", device_name="Some CPU", cores=2, threads=1)
    # Described alike: the difference is one of instruction sets.
    other = replace(cpu, instruction_sets=("avx2",))
    a = written("a.kcast", settings={"compute": (cpu,), "seed": 1})
    b = written(
        "b.kcast",
        settings={"compute": (other,), "seed": 2, "software": (SoftwareFingerprint(torch="2.13.0"),)},
    )
    assert list(compare_bundles(a, b).settings) == [
        SettingDifference(name="seed", a="1", b="2"),
        SettingDifference(
            name="compute",
            a=f"Some CPU, 2 cores, 1 thread(s) per process ({cpu.digest[:12]})",
            b=f"Some CPU, 2 cores, 1 thread(s) per process ({other.digest[:12]})",
        ),
        SettingDifference(name="software", a="none", b="torch 2.13.0"),
    ]
