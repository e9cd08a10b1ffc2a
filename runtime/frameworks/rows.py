"""A framework as a table of rows: how its settings and the fields of a request correspond, in both directions."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from kernelcast.runtime.dataclass import asdict, dataclass, field
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.request.fields import LAYOUT, MODEL, REQUEST
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.chunks import layers_of_chunks

Facts = dict[str, Any]
"""Fields of layout and model by name, with `global_batch`, `devices` (of the job), `replicas`, `gpus_per_node`,
`dtype`.

When a layout is written, all facts are known and `layer_counts` has every chunk. When a layout is read, the facts known
so far are the model, the caller's fields, fields that earlier rows have read, and `copies` of ZeRO's shards.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is written: a model, its layout, the devices per node, and the element type of the measurements."""

    model: ModelConfig
    parallelism: Parallelism
    gpus_per_node: int
    dtype: str

    def facts(self) -> Facts:
        """Its fields. A field that changes nothing in this layout has its plainest value: ZeRO on one replica, sequence
        parallelism without tensor parallelism, where recomputation stops without any. UsageError where the model cannot
        be cut in this way.
        """
        layout = self.parallelism
        facts = asdict(self.model) | asdict(layout)
        return facts | {
            "global_batch": layout.samples_per_update,
            "devices": layout.world_size,
            "layer_counts": layers_of_chunks(self.model.layers, layout),
            "replicas": layout.replicas,
            "zero": layout.zero if layout.replicas > 1 else 0,
            "recompute_early_stop": layout.recompute_early_stop and layout.recompute != "none",
            "sequence_parallel": layout.sequence_parallel and layout.tp > 1,
            "tensor_overlap": layout.tensor_overlap if layout.tp > 1 else "none",
            "gpus_per_node": self.gpus_per_node,
            "dtype": self.dtype,
        }


Settings = Mapping[str, Any]
"""What a framework is told, by key: a flag (`--seq-length`) or a dotted name (`training.seq_len`).

Numbers may be texts; a flag without a value is True.
"""
NOTHING: Settings = MappingProxyType({})


class Part(NamedTuple):
    """What a row writes, and what it cannot or not exactly express, in words."""

    settings: Settings = NOTHING
    lost: tuple[str, ...] = ()


class Found(NamedTuple):
    """What a row reads, and what it cannot read exactly, in words."""

    facts: Facts
    notes: tuple[str, ...] = ()


class Row:
    """One row of a table: `keys` of its settings, `fields` that it may read; by default it writes and reads nothing."""

    keys: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    options: "tuple[Option, ...]" = ()

    def keys_of(self, name: str) -> tuple[str, ...]:
        """The keys that decide one of its fields."""
        return self.keys

    def write(self, facts: Facts) -> Part:
        """The settings of a layout."""
        return Part()

    def read(self, settings: Settings, facts: Facts) -> Found:
        """The fields that settings decide, as far as they are known; UsageError for a wrong setting."""
        return Found({})


class Same(Row):
    """A number or text under another name, `default` if absent. Not written where it is `usual`; `like` is a field
    whose value is both. `unset` values mean that it is not set; `only_read`: another key of a field that is written
    under its own. Of `others` that mean the same, the first that is set is read.
    """

    def __init__(
        self,
        key: str,
        field: str,
        default: Any = None,
        usual: Any = None,
        like: str = "",
        unset: Sequence[Any] = ("auto",),
        only_read: bool = False,
        others: Sequence[str] = (),
    ) -> None:
        self.keys, self.fields, self.only_read, self.like = (key, *others), (field,), only_read, like
        self.key, self.name, self.default, self.usual, self.unset = key, field, default, usual, unset

    def write(self, facts: Facts) -> Part:
        value, usual = facts[self.name], facts[self.like] if self.like else self.usual
        return Part(NOTHING if self.only_read or value == usual else {self.key: value})

    def read(self, settings: Settings, facts: Facts) -> Found:
        key = next((one for one in self.keys if one in settings), self.key)
        value = settings.get(key, facts[self.like] if self.like else self.default)
        if value is None or value in self.unset:
            return Found({})
        row = REQUEST.get(self.name) or MODEL[self.name]
        return Found({self.name: row.kind.parse(key, value)})


@dataclass(frozen=True, slots=True)
class Option:
    """One value of a field: the settings that mean it, and `extra` ones that are written with them.

    `only_read`: another way to say the value. `written`, `read`: what is not exact about it, in words.
    """

    value: Any
    settings: Settings = field(default_factory=dict)
    extra: Settings = field(default_factory=dict)
    only_read: bool = False
    written: str = ""
    read: str = ""


class Choice(Row):
    """A field with few values. Of options whose settings are all there, the one with most is meant."""

    def __init__(self, field: str, options: tuple[Option, ...]) -> None:
        self.name, self.options, self.fields = field, options, (field,)
        self.keys = tuple(dict.fromkeys(key for one in options for key in (*one.settings, *one.extra)))

    def write(self, facts: Facts) -> Part:
        """The settings of the field's value; a value without any is lost."""
        value = facts[self.name]
        for option in self.options:
            if option.value == value and not option.only_read:
                return Part({**option.settings, **option.extra}, (option.written,) if option.written else ())
        return Part(lost=(f"{self.name} {value}",))

    def read(self, settings: Settings, facts: Facts) -> Found:
        """The value that the settings mean; no option without settings: unknown where there are none."""
        for key in self.keys:
            allowed = [one.settings[key] for one in self.options if key in one.settings]
            if allowed and settings.get(key, False) is not False and settings[key] not in allowed:
                words = dict.fromkeys(str(one).lower() if one is True else str(one) for one in allowed)
                raise UsageError(field=key, found=settings[key], expected=" or ".join(words))
        meant = [one for one in self.options if one.settings.items() <= settings.items()]
        if not meant:
            return Found({})
        option = max(reversed(meant), key=lambda one: len(one.settings))
        return Found({self.name: option.value}, (option.read,) if option.read else ())


class Beyond(Row):
    """A row that counts only where a degree, or the number of experts, is above 1."""

    def __init__(self, degree: str, row: Row) -> None:
        self.degree, self.row = degree, row
        self.keys, self.fields, self.options = row.keys, row.fields, row.options

    def write(self, facts: Facts) -> Part:
        return self.row.write(facts) if facts[self.degree] > 1 else Part()

    def read(self, settings: Settings, facts: Facts) -> Found:
        return self.row.read(settings, facts) if facts[self.degree] > 1 else Found({})


class Lacks(Row):
    """A field that the framework only knows as `usual`."""

    def __init__(self, name: str, usual: Any) -> None:
        self.name, self.usual = name, usual

    def write(self, facts: Facts) -> Part:
        value = facts[self.name]
        return Part(lost=() if value == self.usual else (f"{self.name} {value}",))


class Lost(Row):
    """What cannot be expressed where fields are `above` numbers or `equal` to values: a text with names of fields."""

    def __init__(self, text: str, above: Settings = NOTHING, equal: Settings = NOTHING) -> None:
        self.text, self.above, self.equal = text, above, equal

    def write(self, facts: Facts) -> Part:
        is_lost = all(facts[name] > least for name, least in self.above.items())
        is_lost = is_lost and all(facts[name] == value for name, value in self.equal.items())
        if not is_lost:
            return Part()
        lists = {name: ",".join(map(str, value)) for name, value in facts.items() if isinstance(value, tuple)}
        return Part(lost=(self.text.format_map(facts | lists),))


class RecomputedPartly(Row):
    """Recomputation of some layers or modules, for a framework that knows all layers and attention's core alone."""

    def write(self, facts: Facts) -> Part:
        kind, layers, modules = facts["recompute"], facts["recompute_layers"], facts["recompute_modules"]
        if kind == "full" and layers:
            return Part(lost=(f"recompute_layers {layers} (all are recomputed)",))
        if kind == "full" and facts["recompute_together"] > 1:
            together = facts["recompute_together"]
            return Part(lost=(f"recompute_together {together} (each layer is recomputed alone)",))
        return Part(lost=lost_modules(modules) if kind == "selective" else ())


def lost_modules(modules: Sequence[str]) -> tuple[str, ...]:
    """Modules that are recomputed, for a framework that knows attention's core alone."""
    usual = modules == LAYOUT["recompute_modules"].default
    return () if usual else (f"recompute_modules {','.join(modules)}",)


class NoPadding(Row):
    """A framework that trains the vocabulary as it is, cut into tp parts."""

    fields = ("vocabulary_multiple",)

    def write(self, facts: Facts) -> Part:
        multiple = facts["vocabulary_multiple"] * facts["tp"]
        rest = -facts["vocabulary_size"] % multiple
        return Part(lost=(f"a vocabulary padded by {rest}",) if rest >= facts["tp"] else ())

    def read(self, settings: Settings, facts: Facts) -> Found:
        return Found({"vocabulary_multiple": 1})


def target_modules(key: str, value: Any, usual: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The linears with adapters that a setting names, `usual` where it names none that is known, and notes."""
    kind = LAYOUT["lora_linears"].kind
    named = value.split(",") if isinstance(value, str) else value if isinstance(value, tuple) else ()
    unknown = [one for one in named if kind.read([one]) is None]
    if known := [one for one in named if one not in unknown]:
        note = f"{key} {','.join(unknown)} is not read: no adapters are taken there"
        return kind.parse(key, known), (note,) if unknown else ()
    why = f"{','.join(unknown)} is not read" if unknown else "is not given"
    return kind.parse(key, usual), (f"adapters are taken at {usual}, the default there ({key} {why})",)


class OptimizerOffload(Row):
    """Optimizer states in the host's memory: a setting that is `on`, and one with their part (not set: all)."""

    fields = ("offload_optimizer",)

    def __init__(self, switch: str, on: str | bool, part: str) -> None:
        self.switch, self.on, self.part, self.keys = switch, on, part, (switch, part)

    def write(self, facts: Facts) -> Part:
        """Both, the part where it is not all."""
        part = facts["offload_optimizer"]
        return Part({self.switch: self.on, **({} if part == 1 else {self.part: part})} if part else {})

    def read(self, settings: Settings, facts: Facts) -> Found:
        """What lies elsewhere than in the device's and the host's memory is not modelled."""
        found = settings.get(self.switch, "none")
        if found != self.on:
            known = found in ("none", False)
            return Found({}, () if known else (f"{self.switch} {found} is not modelled",))
        part = LAYOUT["offload_optimizer"].kind.parse(self.part, settings.get(self.part, 1.0))
        return Found({"offload_optimizer": part})


@cache
def _table_rows(file: str, own: tuple[Row, ...]) -> tuple[Row, ...]:
    by_name = {type(row).__name__: row for row in (NoPadding(), RecomputedPartly(), *own)}
    table = tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))
    return tuple(_row(values, by_name) for values in table["rows"])


def _row(values: dict[str, Any], own: Mapping[str, Row]) -> Row:
    match values:
        case {"beyond": degree, **rest}:
            return Beyond(degree, _row(rest, own))
        case {"own": name}:
            return own[name]
        case {"lacks": name, "usual": usual}:
            return Lacks(name, usual)
        case {"switch": _}:
            return OptimizerOffload(**values)
        case {"lost": text, **where}:
            return Lost(text, **where)
        case {"options": options, "field": name}:
            return Choice(name, tuple(Option(**option) for option in options))
    return Same(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """`title` is its name as people write it. `table` is a file of this folder.

    A row of the table with `key` is `Same`, with `options` a `Choice`, with `switch` an `OptimizerOffload`, with
    `lacks` or `lost` a loss; `own` names a row of another kind by its class, and `beyond` what a row counts above 1 of.
    Rows are written and read in their order: a row may rely on the fields of earlier rows. `parse` reads settings from
    a text and `render` writes them; `is_form_of` tells whether a text has the framework's form. `model` gives the
    fields of a model that no row reads, of the settings and what rows read; None where settings do not describe a
    model. `steps` is the setting with the steps of the whole run.
    """

    title: str
    table: str
    own: tuple[Row, ...]
    parse: Callable[[str], Settings]
    render: Callable[[Settings], str]
    is_form_of: Callable[[str], bool]
    model: Callable[[Settings, Facts], Facts] | None = None
    steps: str = ""
    samples: str = ""

    @property
    def rows(self) -> tuple[Row, ...]:
        """The table, read on first use."""
        return _table_rows(self.table, self.own)

    @property
    def keys(self) -> frozenset[str]:
        """Keys of all rows."""
        return frozenset(key for row in self.rows for key in row.keys)
