"""Suggestions: misspelled names are found, and no name of another meaning is ever suggested."""

import pytest

from kernelcast.runtime.errors import nearest_names
from kernelcast.runtime.request.fields import DEGREES, REQUEST

OPTIONS = [field.option for field in REQUEST.values()]


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("--micro-bacth", "--micro-batch"),
        ("--mirco-batch", "--micro-batch"),
        ("--micro-batch-size", "--micro-batch"),
        ("--global-batch-size", "--global-batch"),
        ("--global_batch", "--global-batch"),
        ("--globalbatch", "--global-batch"),
        ("--sequence-lenght", "--sequence-length"),
        ("--sequence-parallelism", "--sequence-parallel"),
        ("--gpu-per-node", "--gpus-per-node"),
        ("--shcedule", "--schedule"),
        ("--layer-count", "--layer-counts"),
        ("--SCHEDULES", "--schedule"),
    ],
)
def test_a_slip_is_understood(slip: str, meant: str) -> None:
    assert nearest_names(slip, OPTIONS)[0] == meant


@pytest.mark.parametrize(
    "name",
    [
        "--pipeline-parallel",
        "--context-parallel",
        "--expert-parallel",
        "--model-parallel",
        "--mp",
        "--sp",
        "--tpp",
        "--context-length",
        "--model",
        "--z",
        "--batch-size",
        "--" + "tp" * 5000,
        "",
    ],
)
def test_another_meaning_is_not_suggested(name: str) -> None:
    assert nearest_names(name, OPTIONS) == []


@pytest.mark.parametrize("degree", DEGREES)
def test_a_degree_is_never_taken_for_another(degree: str) -> None:
    others = [option for option in OPTIONS if option != f"--{degree}"]
    assert nearest_names(f"--{degree}", others) == []
