"""Times of collectives on shipped and drawn fabrics, bounds, devices and kernels: `drawn_fabrics.txt`, to five digits.

WRITE_DRAWN_FABRICS=1 pytest THIS_FILE writes it again.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from kernelcast.runtime import KernelcastError
from kernelcast.runtime.hardware import attention_kernels, limits
from kernelcast.runtime.hardware.collectives import Setting, collective_us, least_us
from kernelcast.runtime.hardware.correction import corrected, rows_by_layout
from kernelcast.runtime.hardware.devices import devices
from kernelcast.runtime.hardware.fabric import (
    BETWEEN_KINDS,
    INSIDE_KINDS,
    Fabric,
    fabric_from_lines,
    fabric_from_values,
    fabric_lines,
    fabric_named,
    fabric_toml,
    host_link,
    node_of,
    shipped_fabrics,
)
from kernelcast.runtime.operators import OPERATORS, Direction

TEXT = Path(__file__).with_name("drawn_fabrics.txt")
COLLECTIVES = [name for name, operator in OPERATORS.items() if operator.is_collective]
SIZES = np.array([1.0, 2e4, 3e6, 5e8])
LAYOUTS = [(1, 2), (1, 4), (1, 8), (2, 1), (2, 4), (4, 8), (64, 8), (16, 1), (1, 64)]
DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float4_e2m1fn_x2", "int8")


def short(values: Any) -> str:
    flat = np.asarray(values, dtype=np.float64).ravel()
    return " ".join(f"{one:.5g}" for one in flat)


def drawn_fabric(random: Random) -> dict[str, Any]:
    """Values of a description: links by their rates alone, or with all else; some are refused."""
    kind = random.choice([*INSIDE_KINDS, "NVSwitch", "NVSwitch", *BETWEEN_KINDS[:1]])
    inside: dict[str, Any] = {"kind": kind, "gb_per_s": random.choice([25.0, 200.0, 900.0])}
    between: dict[str, Any] = {
        "kind": random.choice(BETWEEN_KINDS),
        "cards": random.choice([1, 2, 8]),
        "gbit_per_s": 200.0,
    }
    for table in (inside, between):
        if random.random() < 0.4:
            table |= {"latency_us": random.choice([0.5, 9.0]), "startup_us": random.choice([0.0, 40.0])}
        if random.random() < 0.4:
            table["efficiency"] = random.choice([0.3, 0.7, 0.97, 0.99, 1.2])
    inside["in_switch_reduction"] = kind == "NVSwitch" and random.random() < 0.6
    if random.random() < (0.5 if inside["in_switch_reduction"] else 0.1):
        inside["in_switch_efficiency"] = 0.4
    between["topology"] = random.choice(["rails", "rails", "switch", "switch", "rails", "star"])
    between["in_network_reduction"] = random.random() < 0.3
    found: dict[str, Any] = {
        "name": "drawn",
        "devices_per_node": random.choice([1, 2, 4, 8, 72]),
        "source": "a draw",
    }
    if random.random() < 0.9:
        found["inside"] = inside
    if random.random() < 0.9:
        found["between"] = between
    return found


def of_fabric(fabric: Fabric, random: Random) -> Iterator[str]:
    yield f"*** {fabric.description}"
    lines = fabric_lines(fabric)
    assert fabric_from_lines(lines, where="") == fabric
    if fabric.name == "drawn":
        yield fabric_toml(fabric)
    for nodes, gpus in LAYOUTS:
        try:
            setting = Setting(
                fabric=fabric, nodes=nodes, gpus_per_node=gpus, groups=random.choice([1, 1, 2, 8])
            )
        except KernelcastError as error:
            yield f"  {nodes} × {gpus}: {error}"
            continue
        yield f"  {nodes} × {gpus} of {setting.groups}: cards {setting.cards:g} to {setting.most_cards:g}"
        for name in COLLECTIVES if fabric.name == "drawn" else random.sample(COLLECTIVES, 2):
            quality = random.choice([0.0, -1.0, 0.5])
            try:
                times_us = collective_us(name, SIZES, setting, quality=quality)
                yield f"    {name} at {quality:g}: {short(times_us)}; least {short(least_us(name, SIZES, setting))}"
            except KernelcastError as error:
                yield f"    {name}: {error}"


def of_correction(fabric: Fabric, random: Random) -> Iterator[str]:
    """What rows that take some factor longer make of a description, also of layouts without any."""
    name = random.choice([one for one in COLLECTIVES if one != "send"])
    rows = []
    factor = random.choice([0.5, 1.7, 3.0])
    for nodes, gpus in random.sample(LAYOUTS, 4):
        try:
            setting = Setting(fabric=fabric, nodes=nodes, gpus_per_node=gpus)
            times_us = collective_us(name, SIZES[1:], setting)
        except KernelcastError:
            times_us = np.full(3, 100.0)
        rows += [(nodes, gpus, size, factor * random.uniform(0.9, 1.1) * time_us)
                 for size, time_us in zip(SIZES[1:], times_us, strict=True)]  # fmt: skip
    known = corrected(fabric, name, rows_by_layout([*rows, *rows[:2]]))
    yield f"  corrected {name} by {[one.layout for one in known.rows]}: {known.correction}"
    for nodes, gpus in LAYOUTS:
        try:
            setting = Setting(fabric=fabric, nodes=nodes, gpus_per_node=gpus)
        except KernelcastError:
            continue
        nearest = known.nearest(nodes, gpus)
        near = None if nearest is None else nearest.layout
        times_us = known.time_us(SIZES, setting, quality=0.3)
        yield f"    {nodes} × {gpus} {near} {known.is_corrected(setting)}: {short(times_us)}"


def of_fabrics() -> Iterator[str]:
    random = Random(2)
    for name in shipped_fabrics():
        yield from of_fabric(fabric_named(name), random)
    for _ in range(40):
        values = drawn_fabric(random)
        try:
            fabric = fabric_from_values(values, where="drawn.toml")
        except KernelcastError as error:
            yield f"{values}: {error}"
            continue
        yield from of_fabric(fabric, random)
        yield from of_correction(fabric, random)


def of_devices() -> Iterator[str]:
    random = Random(1)
    for name, device in devices().items():
        node, link = node_of(device.name, 8), host_link(device.name)
        peaks = {one: (device.peak_flops_per_s(one), device.most_flops_per_s(one)) for one in DTYPES}
        origins = [getattr(limits.sustained_origin(device, one), "name", None) for one in DTYPES]
        rates = [
            limits.sustained_flops_per_s(device, one, watts) or 0.0
            for one in DTYPES
            for watts in (0.0, 300.0)
        ]
        yield f"{name}: {peaks} {getattr(node, 'inside', None)} {link} {origins} {short(rates)}"
        chips = [one for one, other in devices().items() if device.is_chip_of(other)]
        yield f"  scale {limits.clock_scale(device, 250.0):.5g}, chips {chips}"
        for operator in random.sample(sorted(OPERATORS), 8):
            row = OPERATORS[operator]
            direction = random.choice(sorted(row.costs))
            vector = tuple(random.choice([1, 64, 4096]) for _ in row.features)
            if row.is_collective:
                vector = (1 << 24, *random.choice([(1, 8), (4, 8), (2, 1)]))
            cards = limits.node_bytes_per_s(["400 Gb/s InfiniBand ×8", "100 Gb/s RoCE"])
            found = limits.limits(
                row, direction, vector, dtype="bfloat16", element_bytes=2, device=device, node_bytes_per_s=cards
            )  # fmt: skip
            said = [
                (f"{one.least_us:.5g}", one.what, one.why_impossible(0.9 * one.least_us)) for one in found
            ]
            yield f"  {operator} {direction} {vector}: {said}"
    several = (["200Gb/s"], ["56 Gbps ×2"], ["fast"], [], ["100 Mb/s", "x"], ["1.5 Gbit/s y ×3"])
    yield str([limits.node_bytes_per_s(one) for one in several])


def of_kernels() -> Iterator[str]:
    for architecture in sorted({one.architecture for one in devices().values()}):
        kernels = attention_kernels.kernels_on(architecture)
        yield f"{architecture}: {kernels}"
        for of in kernels:
            for direction in (Direction.FORWARD, Direction.BACKWARD):
                most = [
                    attention_kernels.highest_flops_per_s(architecture, direction, size, of)
                    for size in (64, 96, 256)
                ]
                yield f"  {of} {direction} {most}"
                for over in kernels:
                    asked = ((64, 0), (128, 3000), (200, 10**6))
                    found = (
                        attention_kernels.time_ratio(architecture, direction, *one, of=of, over=over)
                        for one in asked
                    )
                    ratios = [one and (round(one.factor, 5), round(one.log_half_width, 5)) for one in found]
                    yield f"    over {over}: {ratios}"
    yield str(
        [attention_kernels.measured_kernels(name) for name in ("h100-sxm", "b200-sxm", "a100-sxm", "nothing")]
    )


def test_drawn_fabrics() -> None:
    printed = "\n".join((*of_fabrics(), *of_devices(), *of_kernels())) + "\n"
    if "WRITE_DRAWN_FABRICS" in os.environ:
        TEXT.write_text(printed, encoding="utf-8")
    assert printed == TEXT.read_text(encoding="utf-8")
