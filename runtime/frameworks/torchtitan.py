"""torchtitan: its TOML configuration (docs/frameworks.md)."""

import re
from itertools import accumulate
from math import ceil
from typing import Any

from kernelcast.runtime.errors import UsageError, shown
from kernelcast.runtime.frameworks.cut import weighted_cut
from kernelcast.runtime.frameworks.megatron import Launch
from kernelcast.runtime.frameworks.nested import parse_toml, render_toml
from kernelcast.runtime.frameworks.rows import (
    Facts,
    Found,
    Framework,
    Part,
    RecomputedPartly,
    Row,
    Settings,
)
from kernelcast.runtime.frameworks.shell import parse_shell
from kernelcast.runtime.request.field_types import choice, whole
from kernelcast.runtime.request.fields import LAYOUT, MODEL, OPTIONS, Schedule
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS
from kernelcast.runtime.step.chunks import BLOCKS_AFTER, BLOCKS_BEFORE
from kernelcast.runtime.step.recomputation import PER_OP

_DEGREE = LAYOUT["dp"].kind
_NOT_SET = -1
"""A shard degree of the ranks that are left, and a global batch without accumulation."""


_DDP_BUCKET = 100 * 2**20 // 4
"""Gradients in fp32 of torchtitan's DDP bucket of 100 MiB (apply_ddp of its models)."""


class DataParallel(Row):
    """Replicated ranks are ZeRO 0 (alone: DDP, whose buckets overlap), sharded ones 3, or 2 where parameters stay whole
    from forward to backward; both together are hybrid sharding (HSDP).
    """

    replicate = "parallelism.data_parallel_replicate_degree"
    shard = "parallelism.data_parallel_shard_degree"
    reshard = "parallelism.fsdp_reshard_after_forward"
    keys = (replicate, shard, reshard)
    fields = ("dp", "zero", "shard_group", "overlap_gradients", "overlap_bucket")

    def write(self, facts: Facts) -> Part:
        """The nearest mode to ZeRO 1 also shards gradients."""
        dp, zero, cp = facts["dp"], facts["zero"], facts["cp"]
        if zero == 0:
            shared: dict[str, object] = {self.reshard: "never"} if cp > 1 else {}
            lost = (f"zero 0 with cp {cp} (2 is used, with shard_group cp)",) if cp > 1 else ()
            return Part({self.replicate: dp, self.shard: 1, **shared}, lost)
        # It shards over cp too, which its degree does not count.
        group = facts["shard_group"] or dp * cp
        shards, rest = divmod(group, cp)
        lost = (f"shard_group {group} with cp {cp}",) if rest or not shards else ()
        shards = dp if lost else shards
        reshard = "always" if zero == 3 else "never"
        settings = {self.replicate: dp // shards, self.shard: shards, self.reshard: reshard}
        return Part(settings, (*lost, *(("zero 1 (2 is used)",) if zero == 1 else ())))

    def read(self, settings: Settings, facts: Facts) -> Found:
        """Without a shard degree all ranks that are left are sharded: their number follows from the devices."""
        replicated = _DEGREE.parse(self.replicate, settings.get(self.replicate, 1))
        policy = choice(("default", "always", "never")).parse(
            self.reshard, settings.get(self.reshard, "default")
        )
        sharding = 3 if policy == "always" or (policy == "default" and facts["pp"] == 1) else 2
        sharded = settings.get(self.shard, _NOT_SET)
        if sharded == _NOT_SET:
            return Found({"zero": sharding, "copies": replicated})
        sharded = _DEGREE.parse(self.shard, sharded)
        if sharded == 1 and facts["cp"] == 1:
            buckets = {"overlap_gradients": True, "overlap_bucket": _DDP_BUCKET} if replicated > 1 else {}
            return Found({"dp": replicated, "zero": 0, **buckets})
        return Found({"dp": replicated * sharded, "zero": sharding, "copies": replicated})


class Batches(Row):
    """A rank's batch: one micro-batch, or all micro-batches of a pipeline."""

    local = "training.local_batch_size"
    whole = "training.global_batch_size"
    micro = "parallelism.pipeline_parallel_microbatch_size"
    keys = (local, whole, micro)
    fields = ("micro_batch", "global_batch", "micro_batches")

    def write(self, facts: Facts) -> Part:
        micro_batch, global_batch = facts["micro_batch"], facts["global_batch"]
        if facts["pp"] == 1:
            return Part({self.local: micro_batch, self.whole: global_batch})
        local = micro_batch * facts["micro_batches"]
        return Part({self.local: local, self.whole: global_batch, self.micro: micro_batch})

    def read(self, settings: Settings, facts: Facts) -> Found:
        """A global batch above the ranks' batches is accumulated: as further micro-batches."""
        size = OPTIONS["global_batch"].kind
        local = size.parse(self.local, settings.get(self.local, 8))
        is_pipeline = facts["pp"] > 1
        micro = _DEGREE.parse(self.micro, settings.get(self.micro, 1)) if is_pipeline else local
        if settings.get(self.whole, _NOT_SET) == _NOT_SET:
            if local % micro:
                raise UsageError(f"{self.local} is {local}, expected a multiple of {self.micro} ({micro})")
            return Found({"micro_batch": micro, "micro_batches": local // micro})
        global_batch = size.parse(self.whole, settings[self.whole])
        flushes = is_pipeline and "dp" in facts and global_batch != local * facts["dp"]
        note = "gradient accumulation over several passes of the pipeline is read as one pass of more micro-batches"
        return Found({"micro_batch": micro, "global_batch": global_batch}, (note,) if flushes else ())


_SCHEDULES: dict[Schedule, str] = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "zb_v": "ZBVZeroBubble",
    "dualpipe_v": "DualPipeV",
}
_WEIGHTS = ((BLOCKS_BEFORE, BLOCKS_AFTER), (1, 1), (0, 0))


class Pipeline(Row):
    """Schedule and cut. Embedding and output count as layers that the first and last chunk have less."""

    schedule = "parallelism.pipeline_parallel_schedule"
    before = "parallelism.pipeline_parallel_first_stage_less_layers"
    after = "parallelism.pipeline_parallel_last_stage_less_layers"
    per_chunk = "parallelism.pipeline_parallel_layers_per_stage"
    modules = "parallelism.module_fqns_per_model_part"
    keys = (schedule, before, after, per_chunk, modules)
    fields = ("schedule", "virtual_stages", "layer_counts")

    def write(self, facts: Facts) -> Part:
        """The cut by weights where they give it, else every chunk's modules."""
        is_pipeline = facts["pp"] > 1
        # A looped schedule has two chunks per stage or more.
        is_known = is_pipeline and (facts["schedule"] != "interleaved" or facts["virtual_stages"] > 1)
        schedule = _SCHEDULES.get(facts["schedule"], "1F1B") if is_known else "1F1B"
        is_exact = schedule == _SCHEDULES.get(facts["schedule"])
        lost = () if is_exact else (f"schedule {facts['schedule']} (1F1B is used)",)
        if not is_pipeline:
            return Part({}, lost)
        cut = self._cut(facts["layers"], facts["virtual_stages"], facts["layer_counts"])
        return Part({self.schedule: schedule, **cut}, lost)

    def _cut(self, layers: int, virtual_stages: int, counts: tuple[int, ...]) -> dict[str, object]:
        chunks = len(counts)
        for before, after in _WEIGHTS:
            per_chunk = ceil((layers + before + after) / chunks)
            # Two chunks per device are the default of looped schedules; others follow from the layers of a chunk.
            is_default = virtual_stages < 3
            reached = is_default or ceil((layers + before + after) / per_chunk) == chunks
            if reached and weighted_cut(layers, chunks, before, after) == counts:
                settings: dict[str, object] = {self.before: before, self.after: after}
                return settings if is_default else {**settings, self.per_chunk: per_chunk}
        ends = list(accumulate(counts))
        modules = [
            [f"layers.{one}" for one in range(end - count, end)]
            for end, count in zip(ends, counts, strict=True)
        ]
        modules[0].insert(0, "tok_embeddings")
        modules[-1] += ["norm", "output"]
        return {self.modules: modules}

    def read(self, settings: Settings, facts: Facts) -> Found:
        pp, layers = facts["pp"], facts["layers"]
        name = settings.get(self.schedule, "1F1B")
        names = {one.lower(): ours for ours, one in _SCHEDULES.items()}
        schedule = facts.get("schedule", names.get(str(name).lower()))
        if pp == 1:
            return Found({"schedule": "1f1b", "virtual_stages": 1})
        if schedule is None:
            expected = " or ".join(_SCHEDULES.values())
            raise UsageError(f"{self.schedule} is {shown(name)}, expected {expected} (or give --schedule)")
        if self.modules in settings:
            counts: tuple[int, ...] | None = self._modules(settings[self.modules])
            chunks = len(counts or ())
        else:
            weight = whole(0, MODEL["layers"].kind.values[-1])
            before, after = (weight.parse(key, settings.get(key, 1)) for key in (self.before, self.after))
            chunks = pp * (1 if SCHEDULE_KINDS[schedule].virtual_stages == 1 else 2)
            if self.per_chunk in settings:
                per_chunk = MODEL["layers"].kind.parse(self.per_chunk, settings[self.per_chunk])
                chunks = ceil((layers + before + after) / per_chunk)
            counts = weighted_cut(layers, chunks, before, after)
        is_single = SCHEDULE_KINDS[schedule].virtual_stages == 1 and "schedule" not in facts
        if counts is None or chunks % pp or (is_single and chunks > pp):
            raise UsageError(
                f"its {chunks} chunks of {layers} layers do not go onto pp {pp}, expected one per stage"
                + ("" if is_single else ", or several")
            )
        return Found({"schedule": schedule, "virtual_stages": chunks // pp, "layer_counts": counts})

    def _modules(self, value: object) -> tuple[int, ...]:
        if isinstance(value, list) and all(isinstance(chunk, list) for chunk in value):
            return tuple(sum(bool(re.match(r"layers\.", str(one))) for one in chunk) for chunk in value)
        raise UsageError(f"{self.modules} is {shown(value)}, expected a list of lists of names")


class ExpertTensors(Row):
    """The expert_tp that torchtitan refuses: values other than 1 and tp, and tp without expert parallelism."""

    def write(self, facts: Facts) -> Part:
        cut, ep, tp = facts["expert_tp"], facts["ep"], facts["tp"]
        is_known = cut == 1 or (cut == tp and ep > 1)
        return Part(lost=() if is_known else (f"expert_tp {cut} with ep {ep} (1, or tp with ep above 1)",))


class SavedOperators(RecomputedPartly):
    """Selective recomputation by operator, which torchtitan's lists mean, is one of `recompute_modules`."""

    key = "activation_checkpoint.selective_ac_option"
    keys = (key,)
    fields = ("recompute_modules",)
    other = "selective recomputation keeps other operators' results than attention's"

    def write(self, facts: Facts) -> Part:
        """The option; for attention's core alone there is none."""
        if facts["recompute"] == "selective" and facts["recompute_modules"] == (PER_OP,):
            return Part({self.key: "op"})
        lost = super().write(facts).lost
        return Part(lost=lost or ((self.other,) if facts["recompute"] == "selective" else ()))

    def read(self, settings: Settings, facts: Facts) -> Found:
        if settings.get(self.key) == "op":
            return Found({"recompute_modules": (PER_OP,)})
        return Found({}, (self.other,) if facts["recompute"] == "selective" else ())


MODEL_OF_TORCHTITAN = ("model.name", "model.flavor")


_OVERRIDE = re.compile(r"--(?=(?:model|parallelism|training|activation[-_]checkpoint|compile)\.)")
_TABLE = re.compile(r"^[ \t]*\[[ \t]*(parallelism|training|activation_checkpoint)[ \t]*\]", re.MULTILINE)


def _parse(text: str) -> Settings:
    """TOML, or a command line with its keys as options, whose values are read as TOML reads them."""
    if not _OVERRIDE.search(text):
        return parse_toml(text)
    settings = {
        _OVERRIDE.sub("", name).replace("-", "_") if _OVERRIDE.match(name) else name: value
        for name, value in parse_shell(text).items()
    }
    return {name: _VALUES.get(value, value) for name, value in settings.items()}


_VALUES: dict[Any, Any] = {"true": True, "True": True, "false": False, "False": False, "-1": _NOT_SET}

TORCHTITAN = Framework(
    title="torchtitan",
    table="torchtitan.toml",
    own=(
        Launch(is_written=False),
        ExpertTensors(),
        DataParallel(),
        Pipeline(),
        Batches(),
        SavedOperators(),
    ),
    parse=_parse,
    render=render_toml,
    is_form_of=lambda text: (_TABLE.search(text) or _OVERRIDE.search(text)) is not None,
    steps="training.steps",
)
