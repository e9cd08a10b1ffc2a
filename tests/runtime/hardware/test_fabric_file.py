"""Descriptions of fabrics as TOML, line by line, and as fingerprints: read strictly, written in full."""

import tomllib
from pathlib import Path

import pytest

from kernelcast.runtime.bundle.fingerprint import FabricFingerprint
from kernelcast.runtime.bundle.manifest import described_fabrics, fingerprint_of, measured_fabrics
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.hardware.devices import devices
from kernelcast.runtime.hardware.fabric import (
    fabric_from_lines,
    fabric_from_values,
    fabric_lines,
    fabric_named,
    fabric_toml,
    link_defaults,
    read_fabric,
    shipped_fabrics,
)

SMALL = """
name = "small"
devices_per_node = 4
[inside]
kind = "PCIe"
gb_per_s = 32
[between]
kind = "Ethernet"
cards = 2
gbit_per_s = 100
"""


@pytest.mark.parametrize("name", shipped_fabrics())
def test_every_shipped_description_survives_every_form(name: str) -> None:
    fabric = fabric_named(name)
    assert fabric.name == name
    assert fabric.source
    assert fabric_from_values(tomllib.loads(fabric_toml(fabric)), where="here") == fabric
    assert fabric_from_lines(fabric_lines(fabric), where="here") == fabric
    fingerprint = fingerprint_of(fabric)
    again = FabricFingerprint.from_dict(fingerprint.to_dict())
    assert again.digest == fingerprint.digest
    measured = FabricFingerprint(backend="nccl", gpus_per_node=8)
    assert described_fabrics([measured, again], where="here") == (fabric,)
    assert measured_fabrics([measured, again]) == (measured,)
    assert fingerprint.description.startswith(f"{name}, described, ")


@pytest.mark.parametrize("device", ["a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm"])
def test_rates_inside_are_those_of_the_device_table(device: str) -> None:
    for name in shipped_fabrics():
        if name.startswith(device.partition("-")[0]):
            inside = fabric_named(name).inside
            assert inside is not None
            assert inside.bytes_per_s == devices()[device].links[0].bytes_per_s


def test_what_is_not_given_is_as_usual_for_the_kind(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    found = read_fabric(path)
    assert found.inside is not None
    assert found.between is not None
    assert found.inside.bytes_per_s == 32e9
    assert (found.inside.efficiency, *found.inside.efficiency_range) == link_defaults()["PCIe"].efficiency
    assert found.between.bytes_per_s == 12.5e9
    assert found.between.latency_us == link_defaults()["Ethernet"].latency_us
    assert found.between.topology == "rails"


@pytest.mark.parametrize(
    ("change", "to", "expected"),
    [
        ("gb_per_s = 32", "gb_per_s = -1", "inside.gb_per_s is -1.0, expected a rate"),
        ("gb_per_s = 32", 'gb_per_s = "32"', "inside.gb_per_s is '32', expected a number"),
        ("gb_per_s = 32", "gb_per_s = nan", "inside.gb_per_s is nan, expected a rate"),
        ("gb_per_s = 32", "gbps = 32", "inside: field 'gbps' is unknown, known are kind, "),
        ("gb_per_s = 32\n", "", "inside.gb_per_s is missing, expected a number"),
        ("gb_per_s = 32", f"gb_per_s = 1{'0' * 400}", "inside.gb_per_s is inf, expected a rate"),
        ('"PCIe"', '"pcie"', "inside.kind is 'pcie', expected NVSwitch, "),
        ("cards = 2", "cards = 0", "between.cards is 0, expected 1 to 1024"),
        ("cards = 2", "cards = 2.0", "between.cards is 2.0, expected a whole number"),
        ("cards = 2", "cards = true", "between.cards is true, expected a whole number"),
        ("cards = 2", 'cards = 2\ntopology = "ring"', "between.topology is 'ring', expected rails or switch"),
        ("cards = 2", "cards = 2\nefficiency = 1.5", "between.efficiency is '1.5 (0.3 to 1.5)', expected"),
        (
            "cards = 2",
            "cards = 2\nefficiency_range = [0.1]",
            "between.efficiency_range is [0.1], expected a list of 2 numbers",
        ),
        ("devices_per_node = 4", "devices_per_node = 0", "devices_per_node is 0, expected 1 to 1024"),
        ('name = "small"', 'name = "a\\nb"', "name is 'a\\nb', expected a text on one line"),
        ('name = "small"', 'title = "small"', "field 'title' is unknown, known are name, "),
        ('"PCIe"', '"PCIe"\nin_switch_reduction = true', "inside.in_switch_reduction is true, expected only"),
        (
            '"PCIe"',
            '"PCIe"\nin_switch_efficiency = 0.5',
            "inside.in_switch_reduction is false, expected true",
        ),
        ("[inside]", "[[inside]]", "inside is [{'kind': 'PCIe', 'gb_per_s': 32}], expected a table"),
        ("[inside]", "inside", "not TOML ("),
    ],
)
def test_a_wrong_field_is_one_line(change: str, to: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    assert change in SMALL
    path.write_text(SMALL.replace(change, to))
    with pytest.raises(DataError) as refused:
        read_fabric(path)
    message = str(refused.value)
    assert message.startswith(f"fabric file {path}: ")
    assert expected in message
    assert "\n" not in message


def test_several_devices_need_links(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    path.write_text('name = "none"\ndevices_per_node = 8\n')
    with pytest.raises(DataError, match="inside is null, expected a table, as nodes have several devices"):
        read_fabric(path)
    path.write_text('name = "none"\ndevices_per_node = 1\n')
    with pytest.raises(DataError, match="between is null, expected a table, as nodes have one device"):
        read_fabric(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_fabric(tmp_path / "none.toml")
    with pytest.raises(DataError, match="cannot be read"):
        read_fabric(tmp_path)
    (tmp_path / "large.toml").write_text("#" * (1 << 17))
    with pytest.raises(DataError, match="larger than 65536 bytes"):
        read_fabric(tmp_path / "large.toml")
    with pytest.raises(UsageError, match=r"fabric 'nothing' is unknown, known are a100-"):
        fabric_named("nothing")
