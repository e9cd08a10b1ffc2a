"""Which shapes a collection measures: a TOML plan, turned into workload vectors by a space-filling design."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from torch.quasirandom import SobolEngine

from kernelcast.collector.stage_parameters import stage_parameter_count
from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.operators import OPERATORS, Direction, Operator, OperatorClass, Shape

# An operator whose range holds fewer distinct vectors than asked ends its search after this many draws per vector.
_DRAWS_PER_SHAPE = 200


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
        DataError: the file is not TOML.
    """
    shipped = files("kernelcast.collector").joinpath("plans", f"{name_or_path}.toml")
    if shipped.is_file():
        text, where = shipped.read_text(encoding="utf-8"), f"plan {name_or_path}"
    elif Path(name_or_path).is_file():
        text, where = Path(name_or_path).read_text(encoding="utf-8"), name_or_path
    else:
        names = sorted(
            entry.name.removesuffix(".toml")
            for entry in files("kernelcast.collector").joinpath("plans").iterdir()
            if entry.name.endswith(".toml")
        )
        raise UsageError(
            f"plan {name_or_path!r}: expected one of {', '.join(names)} or an existing TOML file"
        )
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{where}: not TOML ({error})") from error
    return _plan_from(document, name=Path(name_or_path).stem, where=where)


def _plan_from(document: dict[str, Any], *, name: str, where: str) -> Plan:
    _check_names(document, {f.name for f in fields(Plan)} - {"name"}, where)
    ranges, messages = document["ranges"], document["messages"]
    if not isinstance(ranges, dict) or not isinstance(messages, dict):
        raise UsageError(f"{where}: ranges and messages are tables, [ranges] and [messages]")
    _check_names(ranges, {f.name for f in fields(Ranges)}, f"{where}, [ranges]")
    _check_names(messages, {f.name for f in fields(Messages)}, f"{where}, [messages]")
    for key, values in ranges.items():
        if not isinstance(values, list) or not values or not all(_is_positive(v) for v in values):
            raise UsageError(
                f"{where}: ranges.{key} is {values!r}, expected a list of positive whole numbers"
            )
    scalars = {key: document[key] for key in document if key not in ("ranges", "messages")} | messages
    for key, value in scalars.items():
        number = isinstance(value, float) and value > 0 and key == "most_gflop"
        if not number and not _is_positive(value):
            raise UsageError(f"{where}: {key} is {value!r}, expected a positive number")
    return Plan(
        name=name,
        ranges=Ranges(**{key: tuple(values) for key, values in ranges.items()}),
        messages=Messages(**messages),
        **{key: document[key] for key in document if key not in ("ranges", "messages")},
    )


def _is_positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _check_names(found: dict[str, Any], expected: set[str], where: str) -> None:
    if unknown := sorted(set(found) - expected):
        raise UsageError(f"{where}: unknown field {unknown[0]!r}; known are {', '.join(sorted(expected))}")
    if missing := sorted(expected - set(found)):
        raise UsageError(f"{where}: field {missing[0]!r} is missing")


def compute_points(plan: Plan, operators: tuple[str, ...] = ()) -> list[Point]:
    """The points of a plan, the operators taking turns so that a drift of the machine hits all of them alike.

    Same plan, same points. `operators` keeps only those named.

    Raises:
        UsageError: a named operator is unknown or a collective.
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
