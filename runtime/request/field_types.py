"""A field of a request, and what it accepts: type, bounds and sets, in words, as JSON Schema, as checks."""

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from itertools import combinations
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.dataclass import dataclass, field, replace
from kernelcast.runtime.errors import UsageError, either

_PART = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})?)?")


@dataclass(frozen=True, slots=True)
class NumberSet:
    """Whole numbers in closed `ranges`; an upper end of None is open.

    >>> allowed = NumberSet.parse("1,2,8-")
    >>> 4 in allowed, 9 in allowed
    (False, True)
    """

    ranges: tuple[tuple[int, int | None], ...]

    @classmethod
    def parse(cls, text: str, *, name: str = "numbers") -> Self:
        """Numbers and ranges (`4-8`, `4-`) separated by commas; UsageError about `name` for anything else."""
        ranges: list[tuple[int, int | None]] = []
        for part in text.split(","):
            match = _PART.fullmatch(part.strip())
            if match is None:
                expected = "numbers and ranges such as 1,2,4-8 or 16-"
                raise UsageError(field=name, found=text, expected=expected)
            low = int(match[1])
            high = low if "-" not in part else int(match[2]) if match[2] else None
            if high is not None and high < low:
                expected = "ranges that begin at their smaller number"
                raise UsageError(field=name, found=text, expected=expected)
            ranges.append((low, high))
        return cls(tuple(ranges))

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and any(
            low <= number and (high is None or number <= high) for low, high in self.ranges
        )

    def mask(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of `numbers`, of any shape, belong to the set."""
        within = [
            (numbers >= low) & (numbers <= (np.inf if high is None else high)) for low, high in self.ranges
        ]
        return np.asarray(np.logical_or.reduce(within), dtype=np.bool_)

    def __str__(self) -> str:
        return ",".join(
            str(low) if high == low else f"{low}-{'' if high is None else high}" for low, high in self.ranges
        )


Value = int | float | str | bool | tuple[int, ...] | tuple[str, ...]

_LONGEST_TEXT = 4_096  # of a path
_MOST_COUNTS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldType:
    """Type and bounds of a value. `read` takes values of Python, TOML or JSON and texts, None for what is not accepted;
    `types` need no reading; `values` are all, in order, if finitely many. `expected` is for messages, `metavar` for
    help; `is_list` may stand in a file.
    """

    expected: str
    schema: dict[str, Any]
    metavar: str
    types: tuple[type, ...]
    read: Callable[[object], Value | None]
    values: Sequence[Any] = ()
    is_list: bool = False

    def accepts(self, value: object) -> bool:
        """Whether a value is accepted as it is: of the right type, and within bounds."""
        return type(value) in self.types and self.read(value) is not None

    def check(self, name: str, value: object) -> None:
        """Check the value of a field of Python, TOML or JSON. UsageError where it is not accepted; names the field,
        what was found and what was expected.
        """
        if not self.accepts(value):
            raise UsageError(field=name, found=value, expected=self.expected)

    def parse(self, name: str, value: object) -> Any:
        """The value of a field, also of a text; errors as `check`."""
        found = self.read(value)
        if found is None:
            raise UsageError(field=name, found=value, expected=self.expected)
        return found


_NO_UNITS: Mapping[str, Decimal | int] = MappingProxyType({})


def whole(low: int, high: int, units: Mapping[str, Decimal | int] = _NO_UNITS) -> FieldType:
    """Whole numbers from `low` to `high`, also texts with `units`; not True, and 4.0 is converted."""

    def read(value: object) -> int | None:
        if type(value) is int:
            return value if low <= value <= high else None
        number = read_decimal(value, units)
        if number is None or not low <= number <= high or number != number.to_integral_value():
            return None
        return int(number)

    zeros = len(str(high)) - 1
    shown_high = f"1e{zeros}" if zeros > 6 and high == 10**zeros else str(high)
    return FieldType(
        expected=f"a whole number from {low} to {shown_high}",
        schema={"type": "integer", "minimum": low, "maximum": high},
        metavar="INTEGER",
        types=(int,),
        read=read,
        values=range(low, high + 1),
    )


_TIMES = {"k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def counted(low: int, high: int) -> FieldType:
    """Whole numbers; as text also with a unit, in upper or lower case: `15T`, `300B`, `1.5M`."""
    plain = whole(low, high, _TIMES)
    return replace(plain, expected=f"{plain.expected}, such as 300B or 15T (units k, M, B, T)")


def with_unit(count: float) -> str:
    """A count with the unit that `counted` reads, and up to four digits: `15T`, `1.5B`, `640`."""
    unit, factor = next(((u, f) for u, f in reversed(_TIMES.items()) if count >= f), ("", 1))
    return f"{count / factor:.4g}{unit}"


def choice(values: Sequence[str]) -> FieldType:
    """One of some texts."""
    return FieldType(
        expected=either(values),
        schema={"type": "string", "enum": list(values)},
        metavar=f"[{'|'.join(values)}]",
        types=(str,),
        read=lambda value: value if isinstance(value, str) and value in values else None,
        values=tuple(values),
    )


def text(expected: str, *, one_line: bool = False) -> FieldType:
    """Texts that are not blank; with `one_line` without line breaks and other unprintable characters."""

    def read(value: object) -> str | None:
        if not isinstance(value, str) or not value.strip() or len(value) > _LONGEST_TEXT or "\0" in value:
            return None
        return None if one_line and not value.isprintable() else value

    return FieldType(
        expected=expected, schema={"type": "string", "minLength": 1}, metavar="TEXT", types=(str,), read=read
    )


def layer_parts(letters: Mapping[str, str]) -> FieldType:
    """Parts of the layers by `letters`: one letter per layer, or several per layer with spaces between layers."""
    listed = ", ".join(f"{letter} {name}" for letter, name in letters.items())
    pattern = f"[{re.escape(''.join(letters))} ]*"

    def read(value: object) -> str | None:
        fits = isinstance(value, str) and len(value) <= _LONGEST_TEXT and re.fullmatch(pattern, value)
        return value if isinstance(value, str) and fits else None

    return FieldType(
        expected=f"letters of {listed}, such as MEM*E, or 'GE GE *E' for layers of several parts",
        schema={"type": "string", "pattern": f"^{pattern}$"},
        metavar="TEXT",
        types=(str,),
        read=read,
    )


def counts(one: FieldType, expected: str) -> FieldType:
    """One or more whole numbers; as text `11,12,12,9`."""

    def read(value: object) -> tuple[int, ...] | None:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple) or not 0 < len(parts) <= _MOST_COUNTS:
            return None
        numbers = [one.read(part) for part in parts]
        return tuple(number for number in numbers if isinstance(number, int)) if None not in numbers else None

    schema = {"type": "array", "items": one.schema}
    return FieldType(
        expected=expected, schema=schema, metavar="N,N,…", types=(list, tuple), read=read, is_list=True
    )


def names(values: Sequence[str], expected: str, alone: str = "") -> FieldType:
    """One or more different texts of `values`, in their order, as `core_attn,mlp`; `alone` is never with others."""

    def read(value: object) -> tuple[str, ...] | None:
        parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        if not isinstance(parts, list | tuple) or not parts or not all(part in values for part in parts):
            return None
        found = tuple(name for name in values if name in parts)
        return found if len(found) == len(parts) else None

    subsets = (subset for size in range(1, len(values) + 1) for subset in combinations(values, size))
    return FieldType(
        expected=expected,
        schema={"type": "array", "items": {"type": "string", "enum": list(values)}, "minItems": 1},
        metavar="NAME,…",
        types=(list, tuple),
        read=read,
        values=tuple(subset for subset in subsets if len(subset) == 1 or alone not in subset),
    )


_ADAPTED = {
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}
_OTHER_MODULES = {
    **dict.fromkeys(("all-linear", "all"), "attention,mlp"),
    **dict.fromkeys(("linear_qkv", "attention_qkv", "query_key_value", "qkv_proj"), "q_proj,k_proj,v_proj"),
    **dict.fromkeys(("linear_proj", "attention_dense"), "o_proj"),
    **dict.fromkeys(("linear_fc1", "mlp_fc1", "gate_up_proj"), "gate_proj,up_proj"),
    **dict.fromkeys(("linear_fc2", "mlp_fc2"), "down_proj"),
}
"""Names of linears in PEFT, Megatron-Bridge, NeMo and fused models of Transformers."""


def adapted(values: Sequence[str]) -> FieldType:
    """Linears that have adapters, by PEFT's names; all of attention or of the MLP by that one's name."""
    listed = (f"{name} ({','.join(modules)})" for name, modules in _ADAPTED.items())
    kind = names(values, f"target modules of PEFT: {', '.join(listed)}, or some of these")

    def read(value: object) -> Any:
        parts = value.split(",") if isinstance(value, str) else value
        parts = [str(part).strip() for part in parts] if isinstance(parts, list | tuple) else []
        found = {one for part in parts for one in _OTHER_MODULES.get(part, part).split(",")}
        for name, modules in _ADAPTED.items():
            if name in found or found.issuperset(modules):
                found = found.difference(modules) | {name}
        return kind.read([*found])

    few = [("attention",), ("mlp",), ("attention", "mlp"), ("q_proj", "v_proj"), ("attention", "up_proj")]
    return replace(kind, read=read, values=tuple(few))


def number(
    low: float,
    high: float,
    expected: str,
    *,
    above: bool = False,
    units: Mapping[str, Decimal | int] = _NO_UNITS,
) -> FieldType:
    """Numbers from `low` to `high`, with `above` only those above `low`; of texts in `units` too."""

    def read(value: object) -> float | None:
        found = read_decimal(value, units)
        if found is None or not low <= found <= high or (above and found == low):
            return None
        return float(found)

    schema = {"type": "number", "exclusiveMinimum" if above else "minimum": low, "maximum": high}
    return FieldType(expected=expected, schema=schema, metavar="NUMBER", types=(int, float), read=read)


def watts(high: float) -> FieldType:
    """Watts from 0 to `high`; as text also with the unit: `500W`."""
    return number(0, high, f"W from 0 to {high:g}, such as 500W", units={"W": 1})


def _read_flag(value: object) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value)
    return value if isinstance(value, bool) else None


FLAG = FieldType(
    expected="true or false",
    schema={"type": "boolean"},
    metavar="[true|false]",
    types=(bool,),
    read=_read_flag,
    values=(False, True),
)


def read_decimal(value: object, units: Mapping[str, Decimal | int] = _NO_UNITS) -> Decimal | None:
    """An exact number, from a number or its text (`1e9`, `1_000`), which may end in a unit, in upper or lower case;
    never one of thousands of digits.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, int) and abs(value) > 10**50:
        return None  # too long for Python to print
    text = value.strip() if isinstance(value, str) else str(value)
    unit = next((one for one in units if text.lower().endswith(one.lower())), "")
    text = text[: len(text) - len(unit)].rstrip()
    if len(text) > 50 or not re.fullmatch(r"[+-]?[0-9][0-9_]*(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?", text):
        return None
    try:
        return Decimal(text.replace("_", "")) * units.get(unit, 1)
    except InvalidOperation:
        return None


@dataclass(frozen=True, slots=True)
class Field:
    """One field with its `default`, `otherwise` in words. `old` are former names, still accepted; `degree`: a parallel
    degree (`replicates`: of the same parameters); `of_stack`: of the software, the same in all layouts of a
    search.
    """

    name: str
    kind: FieldType
    help: str
    default: Any = None
    otherwise: str = ""
    unit: str = ""
    old: tuple[str, ...] = ()
    degree: bool = False
    replicates: bool = False
    of_stack: bool = False

    @property
    def is_required(self) -> bool:
        """Whether it must be given."""
        return self.default is None and not self.otherwise

    @property
    def option(self) -> str:
        """Its option on the command line."""
        return option_name(self.name)

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema with description and default."""
        described = f"{self.help} Default: {self.otherwise}." if self.otherwise else self.help
        default = {} if self.default is None else {"default": self.default}
        return {**self.kind.schema, "description": described, **default}

    def check(self, value: object, name: str = "") -> None:
        """Check a value of Python, TOML or JSON, reported as `name` if that is given. UsageError where the value is
        refused; names the field, what was found and what was expected.
        """
        self.kind.check(name or self.name, value)


def option_name(name: str) -> str:
    """`--micro-batch` of `micro_batch`."""
    return "--" + name.replace("_", "-")


def table(*rows: Field) -> Mapping[str, Field]:
    """Fields by name."""
    return MappingProxyType({row.name: row for row in rows})


def stated(kind: FieldType, help: str, default: Any = None, *, required: bool = False, **others: Any) -> Any:
    """A field of a dataclass with its row of the table; `required` in Python even where a request has a default."""
    own = {} if required else {"default": default}
    return field(**own, metadata={"row": Field("", kind, help, default, **others)})
