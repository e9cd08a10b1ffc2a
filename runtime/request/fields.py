"""The one table of request fields: model, layout, cluster and options.

Command-line options, `#KERNELCAST` lines, JSON bodies and their OpenAPI schema, model and runs files, and the columns
of a search follow from it. A new field is a row here and the code that computes with it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any, Literal, Protocol, get_args

from kernelcast.runtime.errors import UsageError, shown
from kernelcast.runtime.request.spelling import nearest_names

Norm = Literal["layer_norm", "rms_norm"]
Activation = Literal["gelu", "swiglu"]
Attention = Literal["flash", "fused_softmax", "unfused"]
Biases = Literal["all", "attention", "qkv", "mlp", "none"]
Recompute = Literal["none", "selective", "full"]
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero_bubble"]
TimelineKind = Literal["simulate", "closed-form"]
RankBy = Literal["step-time", "tokens-per-gpu"]

MAX_DEGREE = 1_000_000
MAX_SIZE = 2**31 - 1
MAX_LAYERS = 10_000
MAX_MEMORY_BYTES = 2**60
DEFAULT_BUCKET_ENTRIES = 1_260_000_000
"""Entries of a framework's gradient bucket (docs/method.md, A step: the authors' 1.26e9)."""

_LONGEST_TEXT = 4_096

Value = int | float | str | bool | tuple[int, ...]


class Kind(Protocol):
    """Type and bounds of a field's values: in words, as JSON Schema, and as checks.

    `accepts` is about values of Python, TOML or JSON as they are, `read` also takes text (`1e9`, `true`) and answers
    None for what is not accepted.
    """

    @property
    def expected(self) -> str: ...
    @property
    def schema(self) -> dict[str, Any]: ...
    def accepts(self, value: object) -> bool: ...
    def read(self, value: object) -> Value | None: ...


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `low` to `high`."""

    low: int
    high: int

    @property
    def values(self) -> range:
        """All of them."""
        return range(self.low, self.high + 1)

    @property
    def expected(self) -> str:
        """The range; powers of ten above a million as 1e9."""
        exponent = len(str(self.high)) - 1
        high = f"1e{exponent}" if exponent > 6 and self.high == 10**exponent else str(self.high)
        return f"a whole number from {self.low} to {high}"

    @property
    def schema(self) -> dict[str, Any]:
        """An integer with its bounds."""
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    def accepts(self, value: object) -> bool:
        """Only int: 4.0 and True are refused."""
        return type(value) is int and self.low <= value <= self.high

    def read(self, value: object) -> int | None:
        """Also whole floats, and numbers as text."""
        number = read_decimal(value)
        if number is None or not self.low <= number <= self.high or number != number.to_integral_value():
            return None
        return int(number)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some texts."""

    values: tuple[str, ...]

    @property
    def expected(self) -> str:
        """All of them."""
        *others, last = self.values
        return f"{', '.join(others)} or {last}"

    @property
    def schema(self) -> dict[str, Any]:
        """An enumeration."""
        return {"type": "string", "enum": list(self.values)}

    def accepts(self, value: object) -> bool:
        """Only exactly one of them."""
        return value in self.values

    def read(self, value: object) -> str | None:
        """The same."""
        return value if isinstance(value, str) and value in self.values else None


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    values = (False, True)
    expected = "true or false"

    @property
    def schema(self) -> dict[str, Any]:
        """A boolean."""
        return {"type": "boolean"}

    def accepts(self, value: object) -> bool:
        """Only bool."""
        return type(value) is bool

    def read(self, value: object) -> bool | None:
        """Also `true` and `false` as text."""
        if isinstance(value, bool):
            return value
        return {"true": True, "false": False}.get(value) if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Text:
    """A text that is not blank; with `one_line` without line breaks and other unprintable characters."""

    expected: str
    one_line: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """A string."""
        return {"type": "string", "minLength": 1}

    def accepts(self, value: object) -> bool:
        """Only str, no longer than paths are."""
        if type(value) is not str or not value.strip() or len(value) > _LONGEST_TEXT or "\0" in value:
            return False
        return value.isprintable() or not self.one_line

    def read(self, value: object) -> str | None:
        """The same."""
        return value if isinstance(value, str) and self.accepts(value) else None


@dataclass(frozen=True, slots=True)
class Counts:
    """One or more whole numbers, each of them a `one`."""

    one: Whole
    expected: str

    @property
    def schema(self) -> dict[str, Any]:
        """An array."""
        return {"type": "array", "items": self.one.schema}

    def accepts(self, value: object) -> bool:
        """A tuple, or a list of TOML or JSON."""
        return isinstance(value, tuple | list) and all(map(self.one.accepts, value))

    def read(self, value: object) -> tuple[int, ...] | None:
        """Also `11,12,12,9`."""
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple) or not 0 < len(parts) <= MAX_DEGREE:
            return None
        counts = [self.one.read(part) for part in parts]
        return tuple(count for count in counts if count is not None) if None not in counts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field. Not given, it has `default`; where that is None, `otherwise` says in words what it is then.

    `old` are names that it had before (some of them the paper's), still accepted. `degree`: a parallel degree.
    """

    name: str
    kind: Kind
    help: str
    default: Any = None
    otherwise: str = ""
    unit: str = ""
    old: tuple[str, ...] = ()
    degree: bool = False

    @property
    def is_required(self) -> bool:
        """Whether nothing takes its place when it is not given."""
        return self.default is None and not self.otherwise

    @property
    def option(self) -> str:
        """Its option on the command line."""
        return option_name(self.name)

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema with description and default."""
        described = f"{self.help} Not given: {self.otherwise}." if self.otherwise else self.help
        default = {} if self.default is None else {"default": self.default}
        return {**self.kind.schema, "description": described, **default}

    def check(self, value: object) -> None:
        """Check a value of Python, TOML or JSON.

        Raises:
            UsageError: it is not accepted; names the field, what was found and what was expected.
        """
        if not self.kind.accepts(value):
            raise UsageError(f"{self.name} is {shown(value)}, expected {self.kind.expected}")


def option_name(name: str) -> str:
    """`--micro-batch` of `micro_batch`."""
    return "--" + name.replace("_", "-")


def table(*rows: Field) -> Mapping[str, Field]:
    """Fields by name."""
    return MappingProxyType({row.name: row for row in rows})


_SIZE = Whole(1, MAX_SIZE)
_SIZE_OR_NONE = Whole(0, MAX_SIZE)
_DEGREE = Whole(1, MAX_DEGREE)
_SYNCS = Whole(0, 100)
_FLAG = Flag()

MODEL = table(
    Field(name="name", kind=Text("a text on one line", one_line=True), help="Name of the model."),
    Field(name="hidden_size", kind=_SIZE, help="Hidden size, d."),
    Field(name="sequence_length", kind=_SIZE, unit="tokens", help="Tokens of a sequence, l."),
    Field(name="attention_heads", kind=_SIZE, help="Attention heads, h."),
    Field(name="layers", kind=Whole(1, MAX_LAYERS), help="Transformer layers, n.", old=("encoders",)),
    Field(name="vocabulary_size", kind=_SIZE, unit="tokens", help="Tokens of the tokenizer, unpadded."),
    Field(name="kv_heads", kind=_SIZE, help="Key-value heads.", otherwise="attention_heads"),
    Field(name="head_size", kind=_SIZE, help="Entries of a head.", otherwise="hidden_size / attention_heads"),
    Field(name="mlp_size", kind=_SIZE, help="Width of the MLP.", otherwise="4 · hidden_size"),
    Field(name="norm", kind=Choice(get_args(Norm)), help="Normalization.", default="layer_norm"),
    Field(
        name="activation", kind=Choice(get_args(Activation)), help="Activation of the MLP.", default="gelu"
    ),
    Field(name="attention", kind=Choice(get_args(Attention)), help="Attention kernel.", default="flash"),
    Field(name="rotary", kind=_FLAG, help="Rotary position embedding.", default=True),
    Field(name="parallel_residual", kind=_FLAG, help="Attention and MLP read the same input.", default=False),
    Field(
        name="biases",
        kind=Choice(get_args(Biases)),
        help="Linears of a layer with a bias.",
        otherwise="the attention's with LayerNorm, the MLP's with GeLU",
    ),
    Field(
        name="tied_embeddings",
        kind=_FLAG,
        help="The output projection is the embedding's matrix.",
        default=False,
    ),
    Field(name="learned_positions", kind=_SIZE_OR_NONE, help="Rows of a learned position table.", default=0),
    Field(
        name="sliding_window",
        kind=_SIZE_OR_NONE,
        unit="tokens",
        help="Tokens that attention looks back, 0 for all.",
        default=0,
    ),
    Field(
        name="forward_syncs",
        kind=_SYNCS,
        help="All-reduces of a layer's forward pass across the tensor-parallel group.",
        otherwise="1 with a parallel residual, else 2",
    ),
    Field(name="backward_syncs", kind=_SYNCS, help="All-reduces of a layer's backward pass.", otherwise="2"),
)
"""Fields of a model, those of `ModelConfig`."""

LAYOUT = table(
    Field(name="pp", kind=_DEGREE, help="Pipeline stages.", default=1, degree=True),
    Field(name="tp", kind=_DEGREE, help="Tensor-parallel degree.", default=1, degree=True, old=("mp",)),
    Field(name="dp", kind=_DEGREE, help="Data-parallel degree.", default=1, degree=True),
    Field(name="micro_batch", kind=_DEGREE, unit="samples", help="Samples per micro-batch."),
    Field(name="micro_batches", kind=_DEGREE, help="Micro-batches per update (or the global batch)."),
    Field(
        name="schedule",
        kind=Choice(get_args(Schedule)),
        help="Order of forward and backward passes (zero_bubble is ZB-H1).",
        default="1f1b",
    ),
    Field(
        name="virtual_stages", kind=_DEGREE, help="Chunks per device, with schedule interleaved.", default=1
    ),
    Field(
        name="sequence_parallel",
        kind=_FLAG,
        help="Cut norms and residuals along the sequence.",
        default=False,
    ),
    Field(
        name="recompute", kind=Choice(get_args(Recompute)), help="Activation recomputation.", default="none"
    ),
    Field(
        name="zero",
        kind=Whole(0, 3),
        help="ZeRO stage, what data parallelism shards (3: FSDP).",
        default=1,
    ),
    Field(
        name="layer_counts",
        kind=Counts(Whole(0, MAX_DEGREE), "whole numbers, one per stage, such as 11,12,12,9"),
        help="Layers of each stage (or chunk).",
        otherwise="spread evenly",
        old=("encoder_counts",),
    ),
)
"""Fields of a layout, those of `Parallelism`; the columns of a search in this order."""

DEGREES = tuple(row.name for row in LAYOUT.values() if row.degree)

REQUEST = MappingProxyType(
    {
        **table(
            Field(
                name="sequence_length",
                kind=_SIZE,
                unit="tokens",
                help="Tokens of a sequence.",
                otherwise="the model's",
            )
        ),
        **LAYOUT,
        **table(
            Field(
                name="global_batch",
                kind=_SIZE,
                unit="samples",
                help="Samples per update; gives the micro-batches.",
            ),
            Field(
                name="gpus_per_node",
                kind=_DEGREE,
                help="Devices per node.",
                otherwise="the bundle's, else one node",
            ),
            Field(
                name="bucket_entries",
                kind=_SIZE,
                unit="entries",
                help="Entries of the framework's bucket for gradient and parameter collectives.",
                default=DEFAULT_BUCKET_ENTRIES,
            ),
            Field(
                name="timeline",
                kind=Choice(get_args(TimelineKind)),
                help="Exact simulation of the schedule, or the paper's eq. 7.",
                default="simulate",
            ),
        ),
    }
)
"""Fields of a prediction, beside the model."""

GPU_MEMORY = Field(
    name="gpu_memory_bytes",
    kind=Whole(1, MAX_MEMORY_BYTES),
    unit="bytes",
    help="Memory of a device.",
    otherwise="the bundle's",
)

SEARCH = table(
    Field(name="gpus", kind=_SIZE, help="Devices, all of which are used: one number or several."),
    Field(
        name="rank_by",
        kind=Choice(get_args(RankBy)),
        help="Time of a step, or tokens per second and device.",
        default="step-time",
    ),
    Field(name="top", kind=Whole(1, 10_000), help="How many of the best to show.", default=10),
)
"""Fields that only a search has."""


def renamed(values: Mapping[str, Any], fields: Mapping[str, Field]) -> dict[str, Any]:
    """`values` with the names that their fields have now.

    Raises:
        UsageError: a field is given by two of its names.
    """
    found: dict[str, Any] = {}
    for row in fields.values():
        names = [name for name in (row.name, *row.old) if name in values]
        if len(names) > 1:
            raise UsageError(f"{' and '.join(names)} are both given, expected only {row.name}")
    now = {old: row.name for row in fields.values() for old in row.old}
    for name, value in values.items():
        found[now.get(name, name)] = value
    return found


def unknown_field(name: object, known: Iterable[str]) -> UsageError:
    """The error about a field that does not exist; suggests one that was probably meant."""
    names = list(known)
    near = nearest_names(str(name), names)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return UsageError(f"field {shown(name)} is unknown{hint}, known are {', '.join(names)}")


def require_integer(name: str, value: object, *, low: int, high: int) -> None:
    """Check that `value` is a whole number (not a bool) from `low` to `high`.

    Raises:
        UsageError: it is not; names the field, what was found and what was expected.
    """
    Field(name=name, kind=Whole(low, high), help="").check(value)


def require_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Check that `value` is one of `allowed`.

    Raises:
        UsageError: it is not; names the field, what was found and what was expected.
    """
    Field(name=name, kind=Choice(allowed), help="").check(value)


def read_decimal(value: object) -> Decimal | None:
    """An exact number, from a number or its text (`1e9`, `1_000`); never one of thousands of digits."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, int) and abs(value) > 10**50:
        return None
    text = value.strip() if isinstance(value, str) else str(value)
    if len(text) > 50 or not re.fullmatch(r"[+-]?[0-9][0-9_]*(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?", text):
        return None
    try:
        return Decimal(text.replace("_", ""))
    except InvalidOperation:
        return None
