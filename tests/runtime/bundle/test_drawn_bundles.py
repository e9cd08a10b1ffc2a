"""Manifests, stacks, logs of memory and drawn corrections, read, changed and compared: `drawn_bundles.txt`.

WRITE_DRAWN_BUNDLES=1 pytest THIS_FILE writes it again.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from kernelcast.runtime import KernelcastError
from kernelcast.runtime.bundle.calibration import CLASSES, Calibration, CalibrationRun, CalibrationUse
from kernelcast.runtime.bundle.difference import compare_bundles
from kernelcast.runtime.bundle.file import Manifest, bundle_of, read_bundle
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.bundle.transfer import Correction, Likeness, Transfer
from kernelcast.runtime.estimate.step_spread import own_spread, spread_of
from kernelcast.runtime.hardware.devices import device
from kernelcast.runtime.hardware.limits import Rates
from kernelcast.runtime.memory.snapshot import read_snapshot
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.stack import read_stack, shipped_stacks, stack_named, stack_toml

TEXT = Path(__file__).with_name("drawn_bundles.txt")
VALUES: list[Any] = [
    0,
    1,
    -1,
    2,
    0.5,
    1e9,
    "x",
    "",
    None,
    True,
    [],
    [1.0],
    {},
    "float32",
    "1970-01-01T00:00:00+00:00",
]
OF_RANK_0 = (
    "mem-allocated-gigabytes: 1.5 | mem-max-allocated-gigabytes: 2.25 | mem-max-reserved-gigabytes: 2.5"
)
LOG = f"""[Rank 3] (after 2 iterations) memory (MB) | allocated: 5.5 | max allocated: 57.25 | max reserved: 60.0
[Rank 0] (after 2 iterations) memory (GB) | {OF_RANK_0}
Theoretical memory footprints: weight and optimizer=120.5 MB, activation=3.25 GB, total=4.0 GB
"""
SNAPSHOT = {"segments": [
    {"device": 0, "total_size": 4096, "blocks": [{"size": 1024, "state": "active_allocated"}, {"size": 512, "state":
     "inactive"}, {"size": 256, "state": "active_pending_free"}]},
    {"device": 1, "total_size": 8192, "blocks": [{"size": 2048, "state": "active_allocated"}]}],
    "device_traces": [[{"action": "alloc", "size": 100}, {"action": "free_completed", "size": 300}], [
        {"action": "alloc", "size": 64}]]}  # fmt: skip


def said(read: Callable[[], Any], folder: Path) -> str:
    try:
        found = str(read())
    except KernelcastError as error:
        found = f"{type(error).__name__}: {error}"
    return re.sub(r"\d\.\d{5,}", lambda one: f"{float(one[0]):.5g}", found.replace(str(folder), "HERE"))


def places(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to every plain value."""
    inside = (
        values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    )
    for key, value in inside:
        yield (*path, key)
        yield from places(value, (*path, key))


def changed(random: Random, document: Any) -> tuple[str, Any]:
    """A document with one value replaced, gone or new."""
    other = json.loads(json.dumps(document))
    path = random.choice([*places(document)])
    inside = other
    for key in path[:-1]:
        inside = inside[key]
    kind = random.random()
    if kind < 0.15:
        del inside[path[-1]]
    elif kind < 0.2 and isinstance(inside, dict):
        inside["new"] = 1
    else:
        now = inside[path[-1]]
        number = [now * 2, -now, now + 1] if type(now) in (int, float) else []
        inside[path[-1]] = random.choice([*VALUES, *number, *number, *number])
    after = inside.get(path[-1], "gone") if isinstance(inside, dict) else inside
    return f"{'.'.join(map(str, path))} {json.dumps(after)[:60]}", other


def calibration(random: Random) -> Calibration:
    count = random.randint(1, 3)
    runs = tuple(
        CalibrationRun(label=f"run {one}", measured_s=random.random() + 0.1, error_before=random.uniform(-0.3, 0.3),
                       error_left_out=random.choice([None, random.uniform(-0.2, 0.2)]), error_after=0.01)
        for one in range(random.randint(1, 4))
    )  # fmt: skip
    shared = random.choice([0.0, 0.1])
    return Calibration(
        timeline=random.choice(["simulate", "closed-form"]), source="steps of a site", source_digest="ab12",
        measured_at="2026-01-01T00:00:00+00:00", kernelcast_version="0.1.0", parameters=count, runs=runs, residual=0.05,
        prior=0.5, log_factors=tuple(shared or random.uniform(-0.4, 0.4) for _ in CLASSES),
        log_spread=tuple(tuple(random.uniform(0, 0.2) for _ in range(count)) for _ in CLASSES),
    )  # fmt: skip


def of_manifests(manifest: Manifest, folder: Path) -> Iterator[str]:
    random = Random(21)
    document = json.loads(manifest.to_json())
    whole = bundle_of(folder / "a.kcast", "a", manifest, {})
    for _ in range(260):
        what, values = changed(random, document)

        def read() -> str:
            other = Manifest.from_dict(values)  # noqa: B023
            found = compare_bundles(whole, bundle_of(folder / "b.kcast", "b", other, {})).to_dict()
            changes = [
                [one[name] for name in ("operator", "fields", "rows_differ", "recipe_differs")]
                for one in found["changed"]
            ]
            new = [one["operator"] for one in (*found["removed"], *found["added"])]
            return f"{found['settings']} {changes} {new} {other.loads}"

        yield f"{what}: {said(read, folder)}"[:600]


def of_calibrations(manifest: Manifest, folder: Path) -> Iterator[str]:
    random = Random(22)
    for _ in range(24):
        own, wanted, instead = calibration(random), random.random() < 0.7, random.choice(["", "", "stack x"])
        used = CalibrationUse.of(own, timeline="simulate", wanted=wanted, instead=instead)
        yield f"{own} | helps {own.helps} | {said(lambda: dict(own.intervals), folder)}"  # noqa: B023
        logs = [round(own.log_factor(one), 5) for one in ("gemm", "gelu", "all_reduce", "adam")]
        yield f"  {used.applied} {used.reason!r} {used.summary} {logs}"
        what, values = changed(random, own.to_dict())
        yield f"  {what}: {said(lambda: Calibration.from_dict(values), folder)}"[:400]  # noqa: B023
        one, two = (
            bundle_of(folder / "a", name, replace(manifest, calibration=of), {})
            for name, of in (("a", own), ("b", None))
        )
        yield f"  {compare_bundles(one, two).to_dict()['settings']}"


def of_transfers() -> Iterator[str]:
    random = Random(23)
    names = ("a100-sxm", "h100-sxm", "h200-sxm", "gh200", "a100-sxm-40gb", "mi300x")
    for place in range(40):
        origin, target = (Rates.of(device(one), "bfloat16") for one in random.sample(names, 2))
        assert origin
        assert target
        operator = random.choice(["gemm", "gelu", "flash_attention", "adam", "residual_add"])
        direction = random.choice(sorted(OPERATORS[operator].costs))
        vectors = [
            [random.choice([1, 8, 64, 512, 4096]) for _ in OPERATORS[operator].features] for _ in range(3)
        ]
        knots = tuple(tuple(random.uniform(-1, 8) for _ in range(2 + len(vectors[0]))) for _ in range(3))
        correction = Correction(
            knots=knots, weights=(0.1, -0.2, 0.05), likeness=Likeness(value=random.choice([0.003, 0.5]))
        )
        if place % 3 == 0:
            correction = replace(correction, earlier=correction, weights=(0.3, 0.0, -0.1))
        own = Transfer(
            origin=origin, target=target, log_half_width=0.4, correction=correction if place % 2 else None
        )
        key, times_us = (operator, Direction(direction)), np.array([5.0, 80.0, 3000.0])
        found = [
            own.factors(key, vectors, 2),
            own.carried_us(key, vectors, times_us, 2),
            *own.log_half_widths(key, vectors, 2),
        ]
        times = [" ".join(f"{one:.5g}" for one in row) for row in found]
        yield f"{operator} {direction} {origin.device} {target.device} {own.is_foreign}: {times}"


def of_fingerprints() -> Iterator[str]:
    random = Random(24)
    texts, numbers = ["", "cpu", "cuda", "12.8", "HIP 6", "described", "nccl"], [0, 1, 4, 80]
    for kind in (ComputeFingerprint, FabricFingerprint, SoftwareFingerprint):
        for _ in range(16):
            values: dict[str, Any] = {}
            for field in fields(kind):
                types = str(field.type)
                value: Any = random.choice(numbers if "int" in types else texts)
                if "tuple" in types:
                    value = random.choice([(), ('name = "x"', "b"), ("NVLink 4",)])
                elif "bool" in types:
                    value = random.random() < 0.5
                values[field.name] = value
            one = kind(**values)
            yield f"{kind.__name__}: {one.description!r} {one.digest} {sorted(one.to_dict())[0]}"


def of_stacks(folder: Path) -> Iterator[str]:
    random, path = Random(25), folder / "stack.toml"
    for name in shipped_stacks():
        own = stack_named(name)
        factors = [own.factor_of(one) for one in ("gemm", "softmax", "all_reduce", "adam")]
        yield f"{own} {own.spread} {own.exposed_spread} {factors}"
        yield f"  {own.fill({'reduce_dtype': 'same'})} {own}"
        lines = stack_toml(own).splitlines()
        for _ in range(12):
            row = random.randrange(len(lines))
            key, _, value = lines[row].partition(" = ")
            wrong = random.choice(
                [f"{key} = 2.5", f"{key} = 'x'", "", f"new = {value}", f"{key} = []", f"{key} = -1"]
            )
            path.write_text("\n".join([*lines[:row], wrong, *lines[row + 1 :]]))
            yield f"  {wrong}: {said(lambda: str(read_stack(path)), folder)}"[:300]


def of_memory(folder: Path) -> Iterator[str]:
    random, path = Random(26), folder / "memory"
    for place in range(60):
        if place % 2:
            what, document = changed(random, SNAPSHOT) if place > 1 else ("", SNAPSHOT)
            text = json.dumps(document)
        else:
            numbers = [*re.finditer(r"[\d.]+|[A-Za-z-]+", LOG)]
            one, what = (
                random.choice(numbers),
                random.choice(["7", "1e3", "MB", "GB", "activation", "", "total"]),
            )
            text = LOG[: one.start()] + what + LOG[one.end() :] if place else LOG
            what = f"{one[0]} → {what}"
        path.write_text(text)
        yield f"{what}: {said(lambda: read_snapshot(path), folder)}"[:230]
    for gpus in (1, 8, 64, 500, 16_384):
        runs = [
            [1 + random.random() ** 4 for _ in range(random.choice([3, 200]))]
            for _ in range(random.randint(1, 3))
        ]
        for found in (spread_of(gpus), spread_of(gpus, without=("NVIDIA",)), own_spread(runs, gpus)):
            steps = [found.of_steps(*one) for one in ((1, 0.9), (1, 0.99), (100, 0.5), (100, 0.99), (7, 0.9))]
            yield said(lambda: (found.to_dict(), steps), folder)  # noqa: B023


def test_drawn_bundles(make_bundle: Callable[..., Path], tmp_path: Path) -> None:
    gpu = ComputeFingerprint(kind="cuda", device_name="NVIDIA H100 80GB HBM3", memory_gib=80)
    manifest = read_bundle(make_bundle(compute=[gpu], without=[*list(OPERATORS)[6:]])).manifest
    manifest = replace(manifest, calibration=calibration(Random(20)))
    printed = "\n".join((*of_manifests(manifest, tmp_path), *of_calibrations(manifest, tmp_path), *of_transfers(),
                         *of_fingerprints(), *of_stacks(tmp_path), *of_memory(tmp_path))) + "\n"  # fmt: skip
    if "WRITE_DRAWN_BUNDLES" in os.environ:
        TEXT.write_text(printed, encoding="utf-8")
    assert printed == TEXT.read_text(encoding="utf-8")
