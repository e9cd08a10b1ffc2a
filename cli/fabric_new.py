"""`kernelcast fabric new`: a description from options."""

from pathlib import Path
from typing import Any

import click

from kernelcast.cli import completion
from kernelcast.cli.options import PATH, RenamedOption
from kernelcast.runtime.errors import UsageError, error_context
from kernelcast.runtime.hardware.devices import device
from kernelcast.runtime.hardware.fabric import BETWEEN_KINDS, INSIDE_KINDS, TOPOLOGIES
from kernelcast.runtime.hardware.fabric_file import fabric_from_values, fabric_toml
from kernelcast.runtime.output_file import check_target, write_pieces


@click.command(short_help="Describe a fabric in a small TOML file.")
@click.argument("name")
@click.option(
    "--gpus-per-node",
    "devices_per_node",
    cls=RenamedOption,
    old=["--devices-per-node"],
    type=click.IntRange(min=1),
    required=True,
    help="Devices of a node.",
)
@click.option("--source", default="", help="Where the numbers come from.")
@click.option("--inside", "inside_kind", type=click.Choice(list(INSIDE_KINDS)), help="Links inside a node.")
@click.option(
    "--hardware",
    "device_name",
    cls=RenamedOption,
    old=["--device"],
    metavar="NAME",
    shell_complete=completion.hardware_names,
    help="Take the links' rate of this device's published one.",
)
@click.option("--inside-gb-per-s", type=float, help="Rate of a device's links together, one direction.")
@click.option("--inside-latency-us", type=float, help="Latency of a step inside a node.")
@click.option("--inside-efficiency", type=float, help="Share of the rate that large messages reach.")
@click.option(
    "--in-switch-reduction", is_flag=True, default=None, help="The switch adds up all-reduces (NVLS)."
)
@click.option(
    "--between", "between_kind", type=click.Choice(BETWEEN_KINDS), help="Network.  [default: InfiniBand]"
)
@click.option("--cards", type=int, help="Network cards of a node.")
@click.option("--gbit-per-s", type=float, help="Rate of a card, one direction.")
@click.option("--between-latency-us", type=float, help="Latency of a step between nodes.")
@click.option("--between-efficiency", type=float, help="Share of the rate that large messages reach.")
@click.option("--topology", type=click.Choice(TOPOLOGIES), help="Which cards reach which.  [default: rails]")
@click.option(
    "--in-network-reduction", is_flag=True, default=None, help="The network adds up all-reduces (SHARP)."
)
@click.option("-o", "--output", type=PATH, metavar="FILE", help="[default: print it]")
def new(
    *,
    name: str,
    devices_per_node: int,
    source: str,
    device_name: str | None,
    output: Path | None,
    **given: Any,
) -> None:
    """Describe a fabric in a small TOML file. Latencies and efficiencies that are not given are those of measured
    fabrics of the same kind.

    \b
    kernelcast fabric new ours --gpus-per-node 8 --inside NVSwitch --inside-gb-per-s 450 --cards 8 \\
      --gbit-per-s 400 -o ours.toml
    """
    values: dict[str, Any] = {"name": name, "devices_per_node": devices_per_node}
    if source:
        values["source"] = source
    inside = _table(
        given,
        kind="inside_kind",
        gb_per_s="inside_gb_per_s",
        latency_us="inside_latency_us",
        efficiency="inside_efficiency",
        in_switch_reduction="in_switch_reduction",
    )
    if device_name is not None:
        inside.setdefault("gb_per_s", _link_gb_per_s(device_name))
    between = _table(
        given,
        kind="between_kind",
        cards="cards",
        gbit_per_s="gbit_per_s",
        latency_us="between_latency_us",
        efficiency="between_efficiency",
        topology="topology",
        in_network_reduction="in_network_reduction",
    )
    if devices_per_node > 1 and "kind" not in inside:
        raise UsageError(f"--inside is not given, expected one of {', '.join(INSIDE_KINDS)}")
    if between:
        between.setdefault("kind", BETWEEN_KINDS[0])
    values |= {table: fields for table, fields in (("inside", inside), ("between", between)) if fields}
    with error_context(kind=UsageError):
        found = fabric_from_values(values, where="fabric")
    if output is None:
        click.echo(fabric_toml(found), nl=False)
        return
    check_target(output, "--output")
    write_pieces(output, [fabric_toml(found)])
    click.echo(f"{output}: {found.description}")


def _table(given: dict[str, Any], **names: str) -> dict[str, Any]:
    return {field: given[name] for field, name in names.items() if given[name] is not None}


def _link_gb_per_s(name: str) -> float:
    links = device(name).links
    if not links:
        raise UsageError(f"--hardware {name}: no links are known of it, expected --inside-gb-per-s")
    return links[0].bytes_per_s / 1e9
