"""Errors as data: the field, where it stands, what was found and expected; the line follows from them."""

import copy
import pickle

import pytest

from kernelcast.runtime.errors import DataError, KernelcastError, UsageError, error_context
from kernelcast.runtime.request.field_types import option_name


def test_the_line_follows_from_the_data() -> None:
    error = UsageError(field="tp", found=3, expected="a divisor of 8").at("stages", 2).within("file a.toml")
    assert (error.field, error.path, error.found, error.expected) == (
        "stages",
        "stages[2].tp",
        3,
        "a divisor of 8",
    )
    assert str(error) == "file a.toml: stages[2].tp is 3, expected a divisor of 8"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UsageError(field="tp", expected="a number"), "tp is missing, expected a number"),
        (UsageError(field="tp", found=None, expected="a number"), "tp is null, expected a number"),
        (UsageError(field="zero", found=True, expected="a number"), "zero is true, expected a number"),
        (UsageError(found=[], expected="a table"), "the value is [], expected a table"),
        (UsageError(field="cp", subject="2 · cp", found=8, expected="4"), "2 · cp is 8, expected 4"),
        (UsageError("no such file"), "no such file"),
        (
            UsageError("{} is given without {}", fields=("days", "gpu_memory")),
            "days is given without gpu_memory",
        ),
        (UsageError("{} is not of {x}", fields=("days",)), "days is not of {x}"),
        (UsageError("tp add up to 3", field="tp").at("options"), "options: tp add up to 3"),
        (UsageError(found=1, expected="a text").at("roles", "a b"), "roles['a b'] is 1, expected a text"),
        (
            DataError(field="rows", found=0).within("gelu").at("all", 0).within("b"),
            "b: all[0]: gelu: rows is 0",
        ),
    ],
)
def test_lines(error: KernelcastError, line: str) -> None:
    assert str(error) == line
    assert str(pickle.loads(pickle.dumps(error))) == str(copy.copy(error)) == line


def test_a_field_is_called_as_the_user_gave_it() -> None:
    error = UsageError("{} is given without {}", fields=("days", "gpu_memory"))
    assert error.line(option_name) == "--days is given without --gpu-memory"
    assert error.within("file a.toml").line(option_name) == "file a.toml: days is given without gpu_memory"


def test_a_place_is_named_once_and_the_class_can_change() -> None:
    with (
        pytest.raises(DataError) as caught,
        error_context("file a", kind=DataError),
        error_context("file a", at="options"),
    ):
        raise UsageError(field="tp", found=3)
    assert str(caught.value) == "file a: options.tp is 3"
    assert (caught.value.field, caught.value.exit_code) == ("options", 1)
