"""Which shapes a collection measures: a TOML plan, turned into workload vectors by a space-filling design."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import Any

from torch.quasirandom import SobolEngine

from kernelcast.collector.stage_parameters import stage_parameter_count
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.operators import OPERATORS, Direction, Operator, OperatorClass, Shape

# An operator whose range holds fewer distinct vectors than asked ends its search after this many draws per vector.
_DRAWS_PER_SHAPE = 200

# Of any number in a plan; larger ones are slips.
_LARGEST = 2**40

_SHAPE_LIMITS = "most_tokens, most_gflop and most_elements"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Values that shapes are drawn from; see plans/quick.toml."""

    tensor_parallel: tuple[int, ...]
    micro_batch: tuple[int, ...]
    sequence_length: tuple[int, ...]
    hidden_size: tuple[int, ...]
    head_size: tuple[int, ...]
    mlp_ratio: tuple[int, ...]
    vocabulary_size: tuple[int, ...]
    encoders: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Range of the collectives' message sizes, bytes."""

    smallest_bytes: int
    largest_bytes: int

    def __post_init__(self) -> None:
        if self.smallest_bytes > self.largest_bytes:
            raise UsageError(
                f"messages.smallest_bytes is {self.smallest_bytes}, "
                f"expected at most messages.largest_bytes ({self.largest_bytes})"
            )

    def sizes_bytes(self) -> list[int]:
        """Powers of two times the smallest size, up to the largest."""
        sizes = [self.smallest_bytes]
        while sizes[-1] * 2 <= self.largest_bytes:
            sizes.append(sizes[-1] * 2)
        return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan as written, with the name it is stored under."""

    name: str
    shapes_per_operator: int
    seed: int
    most_gflop: float
    most_tokens: int
    most_elements: int
    most_parameters: int
    ranges: Ranges
    messages: Messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One thing to measure: an operator at a shape, all its directions."""

    operator: Operator
    shape: Shape
    vector: tuple[int, ...]


def load_plan(name_or_path: str) -> Plan:
    """A plan that ships (`quick`) or a TOML file.

    Raises:
        UsageError: there is no such plan, or a field is wrong.
        DataError: the file cannot be read or is not TOML.
    """
    shipped = {
        entry.name.removesuffix(".toml"): entry
        for entry in files("kernelcast.collector").joinpath("plans").iterdir()
        if entry.name.endswith(".toml")
    }
    where = f"plan {name_or_path}"
    try:
        text = (shipped.get(name_or_path) or Path(name_or_path)).read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except FileNotFoundError:
        raise UsageError(
            f"{where}: no such file, expected a TOML file or one of the plans that ship ({', '.join(sorted(shipped))})"
        ) from None
    except OSError as error:
        raise DataError(f"{where}: cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{where}: not TOML ({error})") from error
    try:
        return _plan_from(document, name=Path(name_or_path).stem)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def _plan_from(document: dict[str, Any], *, name: str) -> Plan:
    _check_names(document, Plan, "")
    for table, kind in (("ranges", Ranges), ("messages", Messages)):
        if not isinstance(document[table], dict):
            raise UsageError(f"{table} is {document[table]!r:.80}, expected a table [{table}]")
        _check_names(document[table], kind, f"{table}.")
    ranges, messages = document["ranges"], document["messages"]
    for key, values in ranges.items():
        if not isinstance(values, list) or not values or not all(_is_whole(v, low=1) for v in values):
            raise UsageError(f"ranges.{key} is {values!r:.80}, expected a list of whole numbers from 1")
    for key, value in messages.items():
        if not _is_whole(value, low=1):
            raise UsageError(f"messages.{key} is {value!r:.80}, expected a whole number from 1")
    scalars = {key: value for key, value in document.items() if key not in ("ranges", "messages")}
    for key, value in scalars.items():
        if key == "most_gflop":
            if type(value) not in (int, float) or not 0 < value < inf:
                raise UsageError(f"most_gflop is {value!r:.80}, expected a number above 0")
        elif not _is_whole(value, low=0 if key == "seed" else 1):
            raise UsageError(
                f"{key} is {value!r:.80}, expected a whole number from {0 if key == 'seed' else 1}"
            )
    return Plan(
        name=name,
        ranges=Ranges(**{key: tuple(values) for key, values in ranges.items()}),
        messages=Messages(**messages),
        **scalars,
    )


def _is_whole(value: Any, *, low: int) -> bool:
    return type(value) is int and low <= value <= _LARGEST


def _check_names(found: dict[str, Any], kind: type[Plan | Ranges | Messages], prefix: str) -> None:
    expected = {f.name for f in fields(kind)} - {"name"}
    if unknown := sorted(set(found) - expected):
        raise UsageError(f"{prefix}{unknown[0]} is unknown; known are {', '.join(sorted(expected))}")
    if missing := sorted(expected - set(found)):
        raise UsageError(f"{prefix}{missing[0]} is missing")


def compute_points(plan: Plan, operators: tuple[str, ...] = ()) -> list[Point]:
    """The points of a plan, the operators taking turns so that a drift of the machine hits all of them alike.

    Same plan, same points. `operators` keeps only those named.

    Raises:
        UsageError: a named operator is unknown or a collective, or the plan has no shape for an operator.
    """
    chosen = [op for op in OPERATORS.values() if op.operator_class is not OperatorClass.COMMUNICATION]
    if unknown := set(operators) - {op.name for op in chosen}:
        known = ", ".join(op.name for op in chosen)
        raise UsageError(f"operator {sorted(unknown)[0]!r} cannot be measured alone; expected one of {known}")
    columns = [_operator_points(plan, op) for op in chosen if not operators or op.name in operators]
    longest = max(map(len, columns))
    return [column[row] for row in range(longest) for column in columns if row < len(column)]


def _operator_points(plan: Plan, op: Operator) -> list[Point]:
    found: dict[tuple[int, ...], Point] = {}
    for shape in _shapes(plan, op):
        vector = op.workload(shape)
        if vector not in found and _fits(plan, op, shape, vector):
            found[vector] = Point(operator=op, shape=shape, vector=vector)
        if len(found) == plan.shapes_per_operator:
            break
    if not found:
        limits = "most_parameters" if op.operator_class is OperatorClass.OPTIMIZER else _SHAPE_LIMITS
        raise UsageError(f"plan {plan.name}: its ranges hold no shape of {op.name} within {limits}")
    return list(found.values())


def _shapes(plan: Plan, op: Operator) -> Iterator[Shape]:
    """Shapes by a scrambled Sobol sequence over the ranges; invalid combinations are left out."""
    ranges = [getattr(plan.ranges, f.name) for f in fields(Ranges)]
    # A seed of its own per operator: no two operators share their gaps.
    seed = plan.seed + list(OPERATORS).index(op.name)
    engine = SobolEngine(len(ranges), scramble=True, seed=seed)  # type: ignore[no-untyped-call]
    for _ in range(plan.shapes_per_operator * _DRAWS_PER_SHAPE):
        picks = engine.draw(1)[0].tolist()
        values = [r[min(int(pick * len(r)), len(r) - 1)] for r, pick in zip(ranges, picks, strict=True)]
        mp, b, l, d, head_size, mlp_ratio, v, encoders = values  # noqa: E741
        heads = d // head_size
        if d % head_size or heads % mp or v % mp:
            continue
        shape = Shape(
            micro_batch=b,
            sequence_length=l,
            hidden_size=d,
            attention_heads=heads,
            kv_heads=heads,
            mlp_size=mlp_ratio * d,
            vocabulary_size=v,
            tensor_parallel=mp,
            stage_encoders=encoders,
        )
        yield _with_parameters(shape, op)


def _with_parameters(shape: Shape, op: Operator) -> Shape:
    if op.operator_class is not OperatorClass.OPTIMIZER:
        return shape
    values = {f.name: getattr(shape, f.name) for f in fields(Shape)}
    return Shape(**values | {"stage_parameters": stage_parameter_count(shape, optimizer_role(op))})


def optimizer_role(op: Operator) -> str:
    """`first`, `middle` or `last` of an optimizer row."""
    return op.name.removeprefix("optimizer_").removesuffix("_stage")


def _fits(plan: Plan, op: Operator, shape: Shape, vector: tuple[int, ...]) -> bool:
    if op.operator_class is OperatorClass.OPTIMIZER:
        return shape.stage_parameters <= plan.most_parameters
    return (
        shape.tokens <= plan.most_tokens
        and op.flops(Direction.FORWARD, vector) <= plan.most_gflop * 1e9
        and op.moved_bytes(Direction.FORWARD, vector, 1) <= plan.most_elements
    )
