"""`kernelcast fabric list` and `kernelcast fabric show`."""

import re
from typing import Any

import click
import numpy as np

from kernelcast.cli import completion
from kernelcast.cli.options import RenamedOption, json_option
from kernelcast.cli.sizes import parse_size
from kernelcast.cli.tables import table_of, text_table
from kernelcast.cli.terminal import print_json
from kernelcast.runtime.answers.fabric_choice import measured_fabric_names
from kernelcast.runtime.bundle.described_fabric import described_fabrics
from kernelcast.runtime.bundle.file import read_bundle
from kernelcast.runtime.errors import DataError, UsageError, shown
from kernelcast.runtime.hardware.collectives import Setting, collective_us, least_us, ring_bytes, whole_bytes
from kernelcast.runtime.hardware.fabric import Fabric
from kernelcast.runtime.hardware.fabric_file import (
    fabric_named,
    fabric_toml,
    read_fabric,
    shipped_fabrics,
)
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.views.formatting import seconds

FORMAT = "kernelcast.fabric/1"
_OPERATORS = tuple(name for name, row in OPERATORS.items() if row.is_collective)
_LAYOUT = re.compile(r"([0-9]{1,7}) ?[x×] ?([0-9]{1,7})")
_SIZES = "1MiB,32MiB,256MiB,1GiB"


@click.command("list", short_help="List the descriptions that ship.")
@json_option
def list_(as_json: bool) -> None:
    """List the descriptions that ship with kernelcast.

    \b
    kernelcast fabric list
    """
    found = [fabric_named(name) for name in shipped_fabrics()]
    if as_json:
        print_json([one.to_dict() for one in found])
        return
    rows = [(one.name, str(one.devices_per_node), *_levels(one)) for one in found]
    click.echo(text_table(("name", "devices per node", "inside", "between"), rows))
    click.echo(f"\nMeasured collectives: {', '.join(measured_fabric_names())}.")


@click.command(short_help="Show a fabric, and times of collectives on it.")
@click.argument("name", metavar="NAME|FILE", shell_complete=completion.fabric_names)
@click.option(
    "--operator",
    "operators",
    multiple=True,
    type=click.Choice(_OPERATORS),
    help="Only this collective; may be given several times.",
)
@click.option(
    "--layouts",
    cls=RenamedOption,
    old=["--layout"],
    default="",
    metavar="LIST",
    help="Nodes × devices per node, such as 1x8,10x8.",
)
@click.option("--size", "sizes", default=_SIZES, show_default=True, metavar="LIST", help="Whole messages.")
@json_option
def show(name: str, operators: tuple[str, ...], layouts: str, sizes: str, as_json: bool) -> None:
    """Show a fabric, and times of collectives on it by layout and size.

    NAME is a description that ships, FILE a description (.toml) or a bundle that holds one. The range is that of the
    efficiency; "wire" is what nothing can be faster than; the bus bandwidth is nccl-tests'. Sizes are those of the
    whole message: an all-gather's is that of all shards.

    \b
    kernelcast fabric show h100-3200g --layouts 1x8,10x8 --size 256MiB --operator all_reduce
    """
    fabric = _found(name)
    messages = [parse_size(text, name="--size") for text in sizes.split(",")]
    asked = [_setting(fabric, text) for text in layouts.split(",")] if layouts else _usual(fabric)
    wanted = operators or _OPERATORS
    rows = [_row(one, setting, size) for one in wanted for setting in asked for size in messages]
    if as_json:
        print_json({"format": FORMAT, "fabric": fabric.to_dict(), "times": rows})
        return
    click.echo(fabric_toml(fabric))
    table = table_of(
        rows,
        ("collective", lambda row: row["operator"]),
        ("layout", lambda row: f"{row['nodes']} × {row['gpus_per_node']}"),
        ("message", lambda row: _size(row["message_bytes"])),
        ("time", lambda row: seconds(row["time_us"] / 1e6)),
        ("range", lambda row: f"{seconds(row['low_us'] / 1e6)} to {seconds(row['high_us'] / 1e6)}"),
        ("wire", lambda row: seconds(row["least_us"] / 1e6)),
        ("bus", lambda row: f"{row['bus_gb_per_s']:.4g} GB/s"),
    )
    click.echo(table)


def _size(size_bytes: int) -> str:
    if size_bytes >= 2**20:
        return f"{size_bytes / 2**20:,.4g} MiB"
    return f"{size_bytes / 2**10:,.4g} KiB"


def _found(name: str) -> Fabric:
    if name.endswith(".kcast"):
        described = described_fabrics(read_bundle(name).manifest.fabric, where=f"bundle {name}")
        if not described:
            raise DataError(f"bundle {name}: holds no description of a fabric, expected one")
        return described[0]
    return read_fabric(name) if "/" in name or name.endswith(".toml") else fabric_named(name)


def _setting(fabric: Fabric, text: str) -> Setting:
    match = _LAYOUT.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--layouts is {shown(text)}, expected NODESxDEVICES such as 10x8")
    return Setting(fabric=fabric, nodes=int(match[1]), gpus_per_node=int(match[2]))


def _usual(fabric: Fabric) -> list[Setting]:
    devices = fabric.devices_per_node
    layouts = [(1, devices)] if devices > 1 else []
    if fabric.between is not None:
        layouts += [(2, 1), (2, devices), (16, devices)] if devices > 1 else [(2, 1), (16, 1)]
    return [Setting(fabric=fabric, nodes=nodes, gpus_per_node=gpus) for nodes, gpus in layouts]


def _row(operator: str, setting: Setting, message_bytes: int) -> dict[str, Any]:
    size = np.array([message_bytes / whole_bytes(operator, 1.0, setting.processes)])
    usual, high, low = (
        float(collective_us(operator, size, setting, quality=quality)[0]) for quality in (0.0, -1.0, 1.0)
    )
    return {
        "operator": operator,
        "nodes": setting.nodes,
        "gpus_per_node": setting.gpus_per_node,
        "message_bytes": message_bytes,
        "time_us": usual,
        "low_us": low,
        "high_us": high,
        "least_us": float(least_us(operator, size, setting)[0]),
        "bus_gb_per_s": float(ring_bytes(operator, size, setting.processes)[0]) / usual / 1e3,
    }


def _levels(fabric: Fabric) -> tuple[str, str]:
    inside, between = fabric.inside, fabric.between
    return (
        "-" if inside is None else f"{inside.kind} {inside.bytes_per_s / 1e9:g} GB/s",
        "-" if between is None else f"{between.cards} × {between.bytes_per_s * 8e-9:g} Gbit/s {between.kind}",
    )
