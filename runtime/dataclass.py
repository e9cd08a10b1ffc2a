"""Dataclasses that cost little to define.

The standard library compiles six methods of every class when it is defined, which was a fifth of the time that
`predict` takes. Here `__init__` is compiled when a class is first used, and the other methods share their code.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, field, fields, is_dataclass, replace
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

__all__ = ["MISSING", "asdict", "dataclass", "field", "fields", "is_dataclass", "replace"]


def asdict(one: Any) -> dict[str, Any]:
    """`dataclasses.asdict`, which copies only dataclasses, lists, tuples and dicts."""
    return {name: _plain(getattr(one, name)) for name in _names(type(one))}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list or kind is tuple:
        return kind(map(_plain, value))
    if kind is dict:
        return {name: _plain(own) for name, own in value.items()}
    return asdict(value) if is_dataclass(kind) else value


_ATOMS = frozenset({str, int, float, bool, type(None)})


@cache  # classes are hashable, whatever mypy says
def _names(kind: type) -> list[str]:
    return [one.name for one in fields(kind)]


class _Init:
    """`__init__` of a class, compiled when it is looked up; then it takes this one's place."""

    def __init__(self, frozen: bool) -> None:
        self.frozen = frozen

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner = owner

    def __get__(self, instance: object, owner: type) -> Any:
        init = _compiled(self.owner, self.frozen)
        self.owner.__init__ = init  # type: ignore[misc]
        return init.__get__(instance, owner)


def _compiled(cls: Any, frozen: bool) -> Any:
    known: dict[str, Any] = {"_absent": MISSING, "_set": object.__setattr__}
    plain, keywords, body = ["self"], list[str](), list[str]()
    for n, one in enumerate(fields(cls)):
        name, is_made = one.name, one.default_factory is not MISSING
        known |= {f"_default{n}": one.default, f"_make{n}": one.default_factory}
        given = name if one.init else f"_default{n}"
        if is_made:
            given = f"_make{n}() if {name} is _absent else {name}" if one.init else f"_make{n}()"
        elif not one.init and one.default is MISSING:
            continue
        if one.init:
            default = "=_absent" if is_made else "" if one.default is MISSING else f"=_default{n}"
            (keywords if one.kw_only else plain).append(name + default)
        slot = getattr(cls, name, None)
        if isinstance(slot, MemberDescriptorType):
            known[f"_set{n}"] = slot.__set__
            body.append(f" _set{n}(self, {given})")
        else:
            body.append(f" _set(self, {name!r}, {given})" if frozen else f" self.{name} = {given}")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    parameters = ", ".join([*plain, *(["*", *keywords] if keywords else [])])
    exec(f"def __init__({parameters}):\n" + "\n".join(body or [" pass"]), known)
    init = known["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    init.__annotations__ = {one.name: one.type for one in fields(cls) if one.init} | {"return": None}
    return init


def _getter(names: list[str]) -> Callable[[Any], Any]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda one: tuple(getattr(one, name) for name in names)


def _refuse_set(self: object, name: str, value: object = None) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


def _methods(cls: Any, *, eq: bool, frozen: bool) -> dict[str, Any]:
    """The methods of a class that compare and show its fields."""
    known = fields(cls)
    compared = _getter([one.name for one in known if one.compare])
    shown = [one.name for one in known if one.repr]

    @recursive_repr()
    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def __eq__(self: Any, other: Any) -> Any:
        return compared(self) == compared(other) if type(self) is type(other) else NotImplemented

    methods: dict[str, Any] = {"__repr__": __repr__}
    if eq:
        methods["__eq__"] = __eq__
        hashed = _getter([one.name for one in known if (one.compare if one.hash is None else one.hash)])
        methods["__hash__"] = (lambda self: hash(hashed(self))) if frozen else None
    if frozen:
        methods |= {"__setattr__": _refuse_set, "__delattr__": _refuse_set}
        if not cls.__dictoffset__:
            methods |= {"__getstate__": _get_state, "__setstate__": _set_state}
    return methods


if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, **options):
        """`dataclasses.dataclass`, with the same options and behaviour but for `order` and `unsafe_hash`."""
        if cls is None:
            return lambda one: dataclass(one, frozen=frozen, eq=eq, **options)
        own = dict(cls.__dict__)
        if not cls.__doc__:
            cls.__doc__ = cls.__name__  # else the standard library writes a signature
        made = dataclasses.dataclass(cls, init=False, repr=False, eq=False, **options)
        methods = _methods(made, eq=eq, frozen=frozen)
        if own.get("__hash__") is None and "__eq__" in own and "__hash__" in methods:
            own.pop("__hash__", None)
        for name, method in methods.items():
            if name not in own:
                setattr(made, name, method)
        if "__init__" not in own:
            made.__init__ = init = _Init(frozen)
            init.__set_name__(made, "__init__")
        return made
