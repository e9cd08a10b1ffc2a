"""Our dataclasses behave as the standard library's."""

import copy
import dataclasses
import inspect
import pickle
from typing import Any, ClassVar

import pytest

from kernelcast.runtime.dataclass import dataclass, field


def _define(decorate: Any) -> Any:
    @decorate(frozen=True, slots=True, kw_only=True)
    class Point:
        """A point."""

        KIND: ClassVar[str] = "point"
        x: int
        names: list[str] = field(default_factory=list, compare=False)
        y: int = 3
        hidden: int = field(default=7, repr=False)
        made: int = field(default=5, init=False)

    return Point


@dataclass(frozen=True, slots=True)
class Sized:
    """One that is made of two, and checks itself."""

    width: float
    height: float = 2.0

    def __post_init__(self) -> None:
        if self.width < 0:
            raise ValueError("width")


@dataclass(frozen=True, slots=True)
class Cube(Sized):
    """A kind of the other."""

    depth: float = 1.0


@dataclass(slots=True)
class Count:
    """One that changes."""

    number: int = 0


def test_same_as_the_standard_library() -> None:
    ours, theirs = (_define(one) for one in (dataclass, dataclasses.dataclass))
    for kind in (ours, theirs):
        one = kind(x=1)
        assert one == kind(x=1, names=["a"])
        assert one != kind(x=2)
        assert hash(one) == hash((1, 3, 7, 5))
        assert dataclasses.replace(one, y=4).y == 4
        assert kind(x=1).names is not one.names
        with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
            one.x = 2
        with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
            del one.x
        with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'x'"):
            kind()
        with pytest.raises(TypeError, match="positional"):
            kind(1)
    assert repr(ours(x=1)) == repr(theirs(x=1))
    assert dataclasses.asdict(ours(x=1)) == dataclasses.asdict(theirs(x=1))
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
    assert ours.__slots__ == theirs.__slots__


def test_inherits_and_checks() -> None:
    assert Cube(1.0, depth=3.0) == Cube(1.0, 2.0, 3.0)
    assert Cube(1.0) != Sized(1.0)
    assert {Sized(1.0), Sized(1.0, 2.0)} == {Sized(1.0)}
    with pytest.raises(ValueError, match="width"):
        Cube(-1.0)


def test_copies() -> None:
    for one in (Cube(1.0), Count(3)):
        assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == copy.copy(one) == one


def test_one_that_changes() -> None:
    one = Count()
    one.number += 2
    assert one == Count(2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)
