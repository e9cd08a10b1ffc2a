"""The table of published peaks."""

import pytest

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.devices import device, device_named, devices

WANTED = [
    "v100-sxm2-32gb",
    "a100-sxm-40gb",
    "a100-sxm",
    "a100-pcie-40gb",
    "a100-pcie",
    "h100-sxm",
    "h100-pcie",
    "h100-nvl",
    "h200-sxm",
    "gh200",
    "b200-sxm",
    "gb200",
    "l40s",
    "mi210",
    "mi250x",
    "mi300x",
    "mi325x",
]


@pytest.mark.parametrize("name", WANTED)
def test_every_device_has_its_peaks_and_their_source(name: str) -> None:
    found = device(name)
    assert found.source
    assert found.links
    assert found.memory_bytes >= 16 << 30
    assert 5e11 < found.memory_bytes_per_s < 1e13
    assert 1 << 20 < found.cache_bytes < 1 << 29
    assert 200 < found.power_w < 2000
    assert 1e14 < (found.peak_flops_per_s("float16") or 0) < 1e16
    assert all(1e10 <= link.bytes_per_s < found.memory_bytes_per_s for link in found.links)


def test_precisions_double_as_they_halve() -> None:
    for found in devices().values():
        half, quarter = found.peak_flops_per_s("bfloat16"), found.peak_flops_per_s("float8_e4m3fn")
        if half and quarter:
            assert quarter == pytest.approx(2 * half, rel=0.02)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-sxm"),
        ("NVIDIAA100-SXM4-80GB", "a100-sxm"),
        ("A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("h100 sxm", "h100-sxm"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("Tesla V100-DGXS-32GB", "v100-sxm2-32gb"),
        ("NVIDIA A100-PG509-200", "a100-sxm-40gb"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_names_of_drivers_and_files_are_known(name: str, expected: str) -> None:
    found = device_named(name)
    assert found is not None
    assert found.name == expected


def test_the_number_in_the_name_of_a_grace_hopper_is_not_its_memory() -> None:
    assert device("NVIDIA GH200 120GB").memory_bytes == 96 << 30


def test_float32_products_may_be_computed_in_tf32() -> None:
    found = device("h100-sxm")
    assert found.peak_flops_per_s("float32") == pytest.approx(66.9e12)
    assert found.most_flops_per_s("float32") == pytest.approx(494.7e12)


def test_an_unknown_device_is_refused_by_name() -> None:
    assert device_named("NVIDIA A1000") is None
    with pytest.raises(UsageError, match=r"^device 'NVIDIA A1000' is unknown, (known|nearest) are "):
        device("NVIDIA A1000")
