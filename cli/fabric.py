"""`kernelcast fabric`: list, show, new, add and attach."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from kernelcast.cli import completion, option
from kernelcast.cli.tables import print_table, text_table
from kernelcast.cli.terminal import Shown
from kernelcast.runtime.answers.fabric_choice import measured_fabric_names
from kernelcast.runtime.bundle.file import read_bundle, write_bundle
from kernelcast.runtime.bundle.manifest import described_fabrics, fingerprint_of, with_description
from kernelcast.runtime.errors import DataError, UsageError, error_context, needs_extra, shown
from kernelcast.runtime.hardware.collectives import Setting, collective_us, least_us, ring_bytes, whole_bytes
from kernelcast.runtime.hardware.devices import device
from kernelcast.runtime.hardware.fabric import (
    BETWEEN_KINDS,
    INSIDE_KINDS,
    TOPOLOGIES,
    Fabric,
    fabric_from_values,
    fabric_named,
    fabric_toml,
    read_fabric,
    shipped_fabrics,
)
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.output_file import check_target, write_pieces
from kernelcast.runtime.views.formatting import seconds

FORMAT = "kernelcast.fabric/1"
_OPERATORS = tuple(name for name, row in OPERATORS.items() if row.is_collective)
_LAYOUT = re.compile(r"([0-9]{1,7}) ?[x×] ?([0-9]{1,7})")
_SIZES = "1MiB,32MiB,256MiB,1GiB"

_fabric_argument = click.argument("name", metavar="NAME|FILE", shell_complete=completion.fabric_names)


@click.group()
def fabric() -> None:
    """Describe networks: links inside a node and network cards between nodes.

    A description predicts collectives that were never measured. predict, search, walltime and serve take it as
    --fabric.

    \b
    kernelcast fabric list
    kernelcast fabric show h100-3200g
    kernelcast fabric new ours --gpus-per-node 8 --inside NVSwitch --inside-gb-per-s 450 --cards 8 \\
      --gbit-per-s 400 -o ours.toml
    kernelcast fabric add ours.toml --db bench.db
    kernelcast fabric attach ours.toml --bundle h100.kcast -o h100-described.kcast
    """


@fabric.command("list", short_help="List the descriptions that ship.")
@option.json
def list_() -> Shown:
    """List the descriptions that ship with kernelcast.

    \b
    kernelcast fabric list
    """
    found = [fabric_named(name) for name in shipped_fabrics()]

    def show() -> None:
        rows = [(one.name, str(one.devices_per_node), *_levels(one)) for one in found]
        click.echo(text_table(("name", "devices per node", "inside", "between"), rows))
        click.echo(f"\nMeasured collectives: {', '.join(measured_fabric_names())}.")

    return Shown([one.to_dict() for one in found], show)


@fabric.command(short_help="Show a fabric and times of collectives on it.")
@_fabric_argument
@option.choice(_OPERATORS, "--operator", "operators", "Only this collective; repeatable.", multiple=True)
@option.text("--layouts", "Nodes × devices per node, such as 1x8,10x8.", default="", metavar="LIST")
@option.text("--size", "sizes", "Message sizes.", default=_SIZES, metavar="LIST")
@option.json
def show(name: str, operators: tuple[str, ...], layouts: str, sizes: str) -> Shown:
    """Show a fabric and times of collectives on it by layout and message size.

    NAME is a description that ships; FILE is a description (.toml) or a bundle that holds one. Columns: range, from the
    uncertainty of the efficiency; wire, the least time at the full link rate; bus, nccl-tests' bus bandwidth. Sizes are
    of whole messages: for an all-gather, all shards together.

    \b
    kernelcast fabric show h100-3200g --layouts 1x8,10x8 --size 256MiB --operator all_reduce
    """
    fabric = _found(name)
    messages = [option.parse_size(text, name="--size") for text in sizes.split(",")]
    asked = [_setting(fabric, text) for text in layouts.split(",")] if layouts else _usual(fabric)
    wanted = operators or _OPERATORS
    rows = [_row(one, setting, size) for one in wanted for setting in asked for size in messages]
    return Shown(
        {"format": FORMAT, "fabric": fabric.to_dict(), "times": rows}, lambda: _show_times(fabric, rows)
    )


def _show_times(fabric: Fabric, rows: list[dict[str, Any]]) -> None:
    click.echo(fabric_toml(fabric))
    print_table(
        rows,
        ("collective", lambda row: row["operator"]),
        ("layout", lambda row: f"{row['nodes']} × {row['gpus_per_node']}"),
        ("message", lambda row: _size(row["message_bytes"])),
        ("time", lambda row: seconds(row["time_us"] / 1e6)),
        ("range", lambda row: f"{seconds(row['low_us'] / 1e6)} to {seconds(row['high_us'] / 1e6)}"),
        ("wire", lambda row: seconds(row["least_us"] / 1e6)),
        ("bus", lambda row: f"{row['bus_gb_per_s']:.4g} GB/s"),
    )


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
    return _described(name)


def _described(name: str) -> Fabric:
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
        **values_of(setting, "nodes", "gpus_per_node"),
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


_LINK_OPTIONS: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "inside_gb_per_s": ("inside", {"type": float}, "Rate of all links of a device, one direction."),
    "inside_latency_us": ("inside", {"type": float}, "Latency of one step of a collective inside a node."),
    "inside_efficiency": ("inside", {"type": float}, "Fraction of the rate that large messages reach."),
    "in_switch_reduction": ("inside", {"is_flag": True, "default": None}, "The switch reduces (NVLS)."),
    "between": ("between", {"type": click.Choice(BETWEEN_KINDS)}, "Network.  [default: InfiniBand]"),
    "cards": ("between", {"type": int}, "Network cards per node."),
    "gbit_per_s": ("between", {"type": float}, "Rate of a card, one direction."),
    "between_latency_us": ("between", {"type": float}, "Latency of one step of a collective between nodes."),
    "between_efficiency": ("between", {"type": float}, "Fraction of the rate that large messages reach."),
    "topology": ("between", {"type": click.Choice(TOPOLOGIES)}, "Topology between cards.  [default: rails]"),
    "in_network_reduction": ("between", {"is_flag": True, "default": None}, "The network reduces (SHARP)."),
}
"""Options of a description's tables `inside` and `between`; the option `between` is the field `kind` there."""


def _link_options(function: option.F) -> option.F:
    for name, (table, kind, help_text) in reversed(list(_LINK_OPTIONS.items())):
        field = "kind" if name == table else name.removeprefix(f"{table}_")
        words = (f"--{name.replace('_', '-')}", f"{table}__{field}", help_text)
        function = option.text(*words, **kind)(function)
    return function


@fabric.command(short_help="Write a description from options.")
@click.argument("name")
@option.count("--gpus-per-node", "devices_per_node", "Devices per node.", required=True)
@option.text("--source", "Source of the numbers.", default="")
@option.choice(list(INSIDE_KINDS), "--inside", "inside__kind", "Links inside a node.")
@option.text(
    "--hardware",
    "device_name",
    "Use the published link rate of this device.",
    metavar="NAME",
    shell_complete=completion.hardware_names,
)
@_link_options
@option.path("-o", "--output", "File to write.  [default: print it]")
def new(
    *,
    name: str,
    devices_per_node: int,
    source: str,
    device_name: str | None,
    output: Path | None,
    **given: Any,
) -> None:
    """Write the description of a fabric as a small TOML file.

    Defaults of latencies and efficiencies come from measured fabrics of the same kind.

    \b
    kernelcast fabric new ours --gpus-per-node 8 --inside NVSwitch --inside-gb-per-s 450 --cards 8 \\
      --gbit-per-s 400 -o ours.toml
    """
    values: dict[str, Any] = {"name": name, "devices_per_node": devices_per_node}
    if source:
        values["source"] = source
    tables: dict[str, dict[str, Any]] = {"inside": {}, "between": {}}
    for name_given, value in given.items():
        table, _, field = name_given.partition("__")
        if value is not None:
            tables[table][field] = value
    if device_name is not None:
        tables["inside"].setdefault("gb_per_s", _link_gb_per_s(device_name))
    if devices_per_node > 1 and "kind" not in tables["inside"]:
        raise UsageError(f"--inside is not given, expected one of {', '.join(INSIDE_KINDS)}")
    if tables["between"]:
        tables["between"].setdefault("kind", BETWEEN_KINDS[0])
    values |= {table: fields for table, fields in tables.items() if fields}
    with error_context(kind=UsageError):
        found = fabric_from_values(values, where="fabric")
    if output is None:
        click.echo(fabric_toml(found), nl=False)
        return
    check_target(output, "--output")
    write_pieces(output, [fabric_toml(found)])
    click.echo(f"{output}: {found.description}")


def _link_gb_per_s(name: str) -> float:
    links = device(name).links
    if not links:
        raise UsageError(f"--hardware {name}: its links are not known, expected --inside-gb-per-s")
    return links[0].bytes_per_s / 1e9


@fabric.command(short_help="Store a description in a database.")
@_fabric_argument
@option.database("Database to write; created if missing.")
def add(name: str, database_path: Path) -> None:
    """Store a description in a database. Adding it again changes nothing.

    The description is then merged and exported with the database. train puts it into bundles if exactly one description
    has as many devices per node as the measured fabric. It predicts layouts that were not measured.

    \b
    kernelcast fabric add ours.toml --db bench.db
    """
    with needs_extra("fabric add", "store"):
        from kernelcast.store import Database
    found = _described(name)
    fingerprint = fingerprint_of(found)
    with Database.open(database_path, create=True) as database:
        is_new = database.add_fabric(fingerprint)
    there = "added" if is_new else "already there"
    click.echo(f"{database_path}: {found.description}: {there} as {fingerprint.digest[:12]}")


@fabric.command(short_help="Put a description into a bundle.")
@_fabric_argument
@option.text("--bundle", "Bundle of regressors (.kcast).", required=True, metavar="FILE")
@option.path("-o", "--output", "Bundle to write.", required=True)
def attach(name: str, bundle: str, output: Path) -> None:
    """Put a description into a bundle, to predict layouts that were not measured.

    Regressors do not change. The description replaces the bundle's earlier one.

    \b
    kernelcast fabric attach ours.toml --bundle h100.kcast -o h100-described.kcast
    """
    found, read = _described(name), read_bundle(bundle)
    digest = write_bundle(output, with_description(read.manifest, found), read.files)
    click.echo(f"{output}: {found.description} (SHA-256 {digest[:12]})")
