"""The reader of plain values: exactly a record's fields, of their types and within their bounds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import pytest

from kernelcast.runtime.errors import DataError
from kernelcast.runtime.record import WITH_DEFAULT, Record, at_least, read_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Record):
    rows: Annotated[int, at_least(1)]
    form: Literal["dense", "sparse"] = "dense"

    OPTIONAL: ClassVar[tuple[str, ...]] = WITH_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(Record):
    name: str
    parts: tuple[Part, ...]
    errors: Mapping[str, float]
    share: Annotated[float | None, at_least(0)]


GOOD: dict[str, Any] = {"name": "a", "parts": [{"rows": 2}], "errors": {"up": 1}, "share": None}


def test_there_and_back() -> None:
    found = Whole.from_dict(GOOD)
    assert found == Whole(name="a", parts=(Part(rows=2),), errors={"up": 1.0}, share=None)
    assert found.to_dict() == GOOD


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "name is 3, expected a text"),
        ({"nam": "b"}, "field 'nam' is unknown (did you mean name?)"),
        ({"parts": {}}, "parts is {}, expected a list of tables"),
        ({"parts": [{"rows": 1}, {}]}, "parts[1].rows is missing, expected a whole number"),
        ({"parts": [{"rows": True}]}, "parts[0].rows is true, expected a whole number"),
        ({"parts": [{"rows": 0}]}, "parts[0].rows is 0, expected at least 1"),
        ({"parts": [{"rows": 1, "form": "odd"}]}, "parts[0].form is 'odd', expected dense or sparse"),
        ({"errors": {"up": "1"}}, "errors.up is '1', expected a number"),
        ({"share": -1}, "share is -1.0, expected at least 0"),
        ({"share": "1"}, "share is '1', expected a number or null"),
    ],
)
def test_refusals_name_the_path(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        Whole.from_dict({**GOOD, **change})
    assert str(caught.value) == message


def test_bounds_hold_for_records_made_by_hand() -> None:
    with pytest.raises(DataError, match="rows is 0, expected at least 1"):
        Part(rows=0)


def test_some_fields_alone() -> None:
    assert read_fields(Whole, {"name": "b"}) == {"name": "b"}
