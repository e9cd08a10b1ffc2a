"""Megatron-LM: flags of pretrain_gpt.py and of torchrun (docs/frameworks.md)."""

from math import gcd

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.frameworks.cut import even_cut, layout_text, read_layout_text
from kernelcast.runtime.frameworks.megatron_kinds import (
    ActivationOffload,
    ContextExchangeType,
    ExpertLayers,
    Heads,
    Recompute,
    Tokenizer,
    usual_model,
)
from kernelcast.runtime.frameworks.rows import Facts, Found, Framework, Part, Row, Settings
from kernelcast.runtime.frameworks.shell import LAUNCHER, WORLD_SIZE, parse_shell, render_shell
from kernelcast.runtime.request.field_types import FLAG
from kernelcast.runtime.request.fields import LAYOUT, MODEL, SEARCH


class Launch(Row):
    """Nodes and processes per node, `flags` or torchrun's: the devices of the job. WORLD_SIZE counts where they are not
    given, and else torchrun's one node. `is_written`: False for a configuration file, which says nothing of them.
    """

    fields = ("devices", "gpus_per_node")

    def __init__(self, flags: tuple[str, str] = LAUNCHER, *, is_written: bool = True) -> None:
        self.flags, self.is_written = flags, is_written
        self.keys = (*dict.fromkeys((*flags, *LAUNCHER)), WORLD_SIZE)

    def write(self, facts: Facts) -> Part:
        """Equal numbers of processes on every node, as in torchrun."""
        if not self.is_written:
            return Part()
        devices, per_node = facts["devices"], facts["gpus_per_node"]
        processes = devices if devices <= per_node else gcd(devices, per_node)
        settings = dict(zip(self.flags, (devices // processes, processes), strict=True))
        uneven = devices > per_node != processes
        lost = f"{per_node} devices per node (torchrun starts {processes} on every node)"
        return Part(settings, (lost,) if uneven else ())

    def read(self, settings: Settings, facts: Facts) -> Found:
        """Nothing where they are no numbers: `--nproc-per-node gpu`, an unknown variable."""
        kind = SEARCH["gpus"].kind
        world = kind.read(settings.get(WORLD_SIZE))
        usual = None if world or LAUNCHER[0] in settings else 1
        for flags, few in ((self.flags, None), (LAUNCHER, usual)):
            nodes, processes = (
                kind.read(settings.get(key, other)) for key, other in zip(flags, (few, None), strict=True)
            )
            if isinstance(processes, int) and isinstance(nodes, int):
                return Found({"devices": nodes * processes, "gpus_per_node": processes})
        return Found({} if world is None else {"devices": world})


class Chunks(Row):
    """Schedule and cut: the interleaved schedule has several chunks per stage; uneven cuts have a layout."""

    layout: str
    fields = ("schedule", "virtual_stages", "layer_counts")

    def of_chunks(self, facts: Facts) -> Settings:
        """Settings of several chunks of the same size per stage."""
        raise NotImplementedError

    def write(self, facts: Facts) -> Part:
        """Equal chunks as their number or size, unequal ones as a pipeline layout."""
        schedule, counts = facts["schedule"], facts["layer_counts"]
        used = "interleaved" if facts["virtual_stages"] > 1 else "1f1b"
        name = "1F1B" if used == "1f1b" else "interleaved 1F1B"
        lost = () if schedule == used else (f"schedule {schedule} ({name} is used)",)
        if len(set(counts)) > 1:
            return Part({self.layout: layout_text(counts)}, lost)
        return Part(self.of_chunks(facts) if facts["virtual_stages"] > 1 else {}, lost)

    def read_layout(self, settings: Settings, pp: int) -> Found:
        """The chunks of the layout that is set."""
        counts = read_layout_text(str(settings[self.layout]), self.layout)
        chunks, rest = divmod(len(counts), pp)
        if rest:
            raise UsageError(f"{self.layout} has {len(counts)} chunks, expected a multiple of pp ({pp})")
        return self.found(chunks, counts)

    def found(self, virtual_stages: int, counts: tuple[int, ...] | None, otherwise: str = "") -> Found:
        """Schedule and cut; without `counts` an error that begins with `otherwise`."""
        if counts is None:
            raise UsageError(f"{otherwise}, expected chunks of whole layers")
        schedule = "interleaved" if virtual_stages > 1 else "1f1b"
        return Found({"schedule": schedule, "virtual_stages": virtual_stages, "layer_counts": counts})


class Pipeline(Chunks):
    """Megatron-LM's flags of both."""

    layout = "--pipeline-model-parallel-layout"
    per_chunk = "--num-layers-per-virtual-pipeline-stage"
    chunks = "--num-virtual-stages-per-pipeline-rank"
    first = "--decoder-first-pipeline-num-layers"
    last = "--decoder-last-pipeline-num-layers"
    ends = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
    keys = (layout, per_chunk, chunks, first, last, *ends)

    def of_chunks(self, facts: Facts) -> Settings:
        return {self.per_chunk: facts["layer_counts"][0]}

    def read(self, settings: Settings, facts: Facts) -> Found:
        pp, layers = facts["pp"], facts["layers"]
        if self.layout in settings:
            return self.read_layout(settings, pp)
        numbers = {
            key: MODEL["layers"].kind.parse(key, settings[key]) for key in self.keys[1:5] if key in settings
        }
        per_chunk = numbers.get(self.per_chunk)
        virtual_stages = numbers.get(self.chunks, layers // pp // per_chunk if per_chunk else 1)
        # Ends that count as a layer: the chunks that hold them have one less.
        before, after = (int(FLAG.parse(key, settings.get(key, False))) for key in self.ends)
        ends = numbers.get(self.first), numbers.get(self.last)
        counts = even_cut(layers + before + after, pp, max(1, virtual_stages), *ends)
        if counts is not None and min(counts[0] - before, counts[-1] - after) >= 0:
            counts = (counts[0] - before, *counts[1:-1], counts[-1] - after) if len(counts) > 1 else (layers,)
        if per_chunk is not None and per_chunk not in (counts or ()) and not before + after:
            counts = None
        named = "".join(f", {key} {value}" for key, value in numbers.items())
        return self.found(virtual_stages, counts, f"pp {pp}{named} does not divide {layers} layers")


class DistributedOptimizer(Row):
    """How ZeRO 1 combines gradients: Megatron-LM's scatters them, perhaps among some of the replicas."""

    used = "--use-distributed-optimizer"
    instances = "--num-distributed-optimizer-instances"
    keys = (used, instances)
    fields = ("gradient_collective", "shard_group")

    def write(self, facts: Facts) -> Part:
        shards, replicas = facts["shard_group"] or facts["replicas"], facts["replicas"]
        return Part({self.instances: replicas // shards} if facts["zero"] and shards < replicas else {})

    def read(self, settings: Settings, facts: Facts) -> Found:
        if not facts["zero"]:
            return Found({})
        copies = LAYOUT["dp"].kind.parse(self.instances, settings.get(self.instances, 1))
        return Found({"gradient_collective": "reduce_scatter", "copies": copies})


class GroupedQueries(Row):
    """Fewer key-value heads than heads."""

    keys = ("--group-query-attention", "--num-query-groups")
    fields = ("kv_heads",)

    def write(self, facts: Facts) -> Part:
        fewer = facts["kv_heads"] < facts["attention_heads"]
        return Part(dict(zip(self.keys, (True, facts["kv_heads"]), strict=True)) if fewer else {})

    def read(self, settings: Settings, facts: Facts) -> Found:
        used, groups = (settings.get(key) for key in self.keys)
        if not used or groups is None:
            return Found({})
        return Found({"kv_heads": MODEL["kv_heads"].kind.parse(self.keys[1], groups)})


class Positions(Row):
    """How positions are told, and the longest sequence: they belong to the model, and are not read."""

    keys = ("--position-embedding-type", "--max-position-embeddings")

    def write(self, facts: Facts) -> Part:
        """A learned table with its rows, else rotary or none up to the sequence."""
        rows, rotary = facts["learned_positions"], facts["rotary"]
        kind = "learned_absolute" if rows else "rope" if rotary else "none"
        settings = dict(zip(self.keys, (kind, rows or facts["sequence_length"]), strict=True))
        return Part(settings, ("rotary with learned_positions",) if rows and rotary else ())


class Dropout(Row):
    """Its probability after blocks and of attention's weights; both are on unless they are set to 0."""

    keys = ("--hidden-dropout", "--attention-dropout")
    fields = ("dropout",)

    def write(self, facts: Facts) -> Part:
        return Part(dict.fromkeys(self.keys, f"{facts['dropout']:g}"))

    def read(self, settings: Settings, facts: Facts) -> Found:
        """The dropout after blocks, or attention's if that is 0; the kernels take the same time for any rate."""
        hidden, attention = (
            LAYOUT["dropout"].kind.parse(key, settings.get(key, _USUAL_DROPOUT)) for key in self.keys
        )
        found, differ = float(hidden or attention), bool(hidden) != bool(attention)
        note = f"dropout {hidden:g} and attention dropout {attention:g} are both read as {found:g}"
        return Found({"dropout": found}, (note,) if differ else ())


_USUAL_DROPOUT = 0.1


def _parse(text: str) -> Settings:
    options = (option for row in MEGATRON.rows for option in row.options)
    settings = (item for one in options for item in (*one.settings.items(), *one.extra.items()))
    switches = {key for key, value in settings if value is True}
    switches |= {GroupedQueries.keys[0], Recompute.activations, Heads.latent, *Pipeline.ends}
    switches |= {ActivationOffload.switch, ActivationOffload.whole}
    return parse_shell(
        text, switches=switches, lists=(Recompute.modules, ActivationOffload.listed, ContextExchangeType.key)
    )


MEGATRON = Framework(
    title="Megatron-LM",
    table="megatron.toml",
    own=(
        Launch(),
        ContextExchangeType(),
        Pipeline(),
        DistributedOptimizer(),
        Recompute(),
        Positions(),
        Heads(),
        GroupedQueries(),
        ExpertLayers(),
        Tokenizer(),
        Dropout(),
        ActivationOffload(),
    ),
    parse=_parse,
    render=render_shell,
    is_form_of=lambda text: True,
    model=usual_model,
    steps="--train-iters",
    samples="--train-samples",
)
