"""What data parallelism calls: the update of a stage, and per block gradients from ZeRO-2 and parameters in ZeRO-3."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from kernelcast.runtime.request.fields import ReduceDtype
from kernelcast.runtime.step.calls import Calls, call
from kernelcast.runtime.step.groups import ALONE, Group

_FLOAT32_BYTES = 4


def gradient_bytes(reduce_dtype: ReduceDtype, element_bytes: int) -> int:
    """Bytes of a gradient where it is kept between micro-batches and reduced."""
    return max(element_bytes, _FLOAT32_BYTES) if reduce_dtype == "float32" else element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Calls of one stage once per update: gradients combined, optimizer, parameters gathered."""

    gradients: Calls
    optimizer: Calls
    gather: Calls

    @property
    def calls(self) -> Calls:
        """All of them, in the order in which they run."""
        return self.gradients + self.optimizer + self.gather


_MEGATRON_BUCKET, _MEGATRON_BUCKET_PER_REPLICA = 40_000_000, 1_000_000
"""Parameters of an overlapping bucket, whichever is more (Megatron-LM, DistributedDataParallelConfig.bucket_size)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """How data parallelism shards: `dp` devices in `group`, ZeRO stage `zero`, buckets of `bucket_entries`.

    A gradient takes the bytes of `gradient_width` entries of the training's type where it is kept and reduced: 2 in
    fp32 beside 16 bits. The optimizer moves `optimizer_share` of the bytes that the measured one moves, and is asked
    for as much of the stage; 0 where none of it is the device's. `role` is that of the collectives. ZeRO shards over
    `shard_group`, without one over `group`; the devices of `copy_group` hold copies of one shard. With `scatters`,
    ZeRO-1 scatters gradients. `overlap_bucket` is as in `Parallelism`.
    """

    dp: int
    zero: int
    group: Group
    bucket_entries: int
    role: str = "data"
    gradient_width: int = 1
    optimizer_share: float = 1.0
    shard_group: Group | None = None
    copy_group: Group = ALONE
    scatters: bool = False
    overlaps_gradients: bool = False
    overlaps_parameters: bool = False
    overlap_bucket: int = 0

    @property
    def shards(self) -> int:
        """How many devices share one set of ZeRO's shards."""
        return self.dp if self.shard_group is None else self.shard_group.processes

    def update(self, role: str, parameters: int, layers: int) -> Update:
        """The update of a stage with `parameters` and `layers` on a device (docs/method.md, A step).

        | zero | gradients | optimizer over | parameters |
        |---|---|---|---|
        | 0 | all-reduce | all | |
        | 1 | all-reduce | all (as published: its measured time fits them) | all-gather |
        | 1, `scatters` | reduce-scatter | the shard; gradients of all are set to zero | all-gather |
        | 2 | (scattered during the backward passes) | the shard, ceil(parameters / shards) | all-gather |
        | 3 | (scattered during the backward passes) | the shard | (gathered before every use) |

        `role` is the optimizer's: "first_stage", "middle_stage" or "last_stage"; a single stage, first and last at
        once, is the last. With the optimizer go clipping the gradients before it, and setting them to zero after it,
        for the micro-batches of the next step to add into.
        """
        return update_of([(parameters, self)], role, layers)

    def own(self, parameters: int) -> int:
        """Parameters that a device updates."""
        shards = self.zero >= 2 or self.scatters_once
        return -(-parameters // self.shards) if shards else parameters

    def gather(self, parameters: int) -> Calls:
        """ZeRO-3: the parameters of one block gathered before its pass."""
        return self._gathered(parameters) if self.zero == 3 else ()

    def scatter(self, parameters: int) -> Calls:
        """ZeRO-2 and 3: the gradients of one block summed and split after its backward pass."""
        return self._scattered(parameters) if self.zero >= 2 else ()

    def buckets(self, parameters: int) -> int:
        """Buckets of a device's `parameters` where they overlap."""
        return max(1, -(-parameters // self._overlapping))

    @property
    def _overlapping(self) -> int:
        usual = max(_MEGATRON_BUCKET, _MEGATRON_BUCKET_PER_REPLICA * self.dp)
        return self.overlap_bucket or usual

    @property
    def scatters_once(self) -> bool:
        """Whether gradients are reduced and scattered once per update."""
        return self.zero == 1 and self.scatters

    def combined(self, parameters: int) -> Calls:
        """Gradients combined once per update, unless the backward passes did."""
        if self.zero >= 2:
            return ()
        if self.scatters_once:
            return self._scattered(parameters, overlaps=self.overlaps_gradients)
        bucket = self._overlapping if self.overlaps_gradients else self.bucket_entries
        return self._collective("all_reduce", self.group, self.dp, parameters, bucket, self.gradient_width)

    def gathered_once(self, parameters: int) -> Calls:
        """Parameters gathered once per update."""
        return self._gathered(parameters, overlaps=self.overlaps_parameters) if self.zero in (1, 2) else ()

    def _scattered(self, parameters: int, *, overlaps: bool = False) -> Calls:
        """Copies of a shard sum theirs when it is complete."""
        shard, copies, width = self.shard_group or self.group, self.copy_group, self.gradient_width
        bucket, of_shard = self._buckets(overlaps)
        own = -(-parameters // self.shards)
        return (
            *self._collective("reduce_scatter", shard, self.shards, parameters, bucket, width),
            *self._collective("all_reduce", copies, copies.processes, own, of_shard, width),
        )

    def _gathered(self, parameters: int, *, overlaps: bool = False) -> Calls:
        _, of_shard = self._buckets(overlaps)
        shard, own = self.shard_group or self.group, -(-parameters // self.shards)
        return self._collective("all_gather", shard, self.shards, own, of_shard)

    def _buckets(self, overlaps: bool) -> tuple[int, int]:
        """Entries of a bucket of whole parameters, and of their shards: those that overlap are cut before they are
        sharded.
        """
        if overlaps:
            return self._overlapping, -(-self._overlapping // self.shards)
        return self.bucket_entries, self.bucket_entries

    def _collective(
        self, operator: str, group: Group, processes: int, entries: int, bucket: int, width: int = 1
    ) -> Calls:
        """Full buckets and a remainder."""
        if processes == 1:
            return ()
        full, rest = divmod(entries, bucket)
        sizes = ((bucket, full), (rest, 1 if rest else 0))
        return tuple(
            call(operator, width * size, group.nodes, group.gpus_per_node, role=self.role, count=count)
            for size, count in sizes
            if count
        )


def update_of(shares: Sequence[tuple[int, DataParallel]], role: str, layers: int) -> Update:
    """The update of a stage with `layers`, whose parameters are sharded in one or several ways (`DataParallel.update`).

    Experts are held by fewer devices than the rest; one optimizer updates both.
    """
    shares = [(held, how) for held, how in shares if held]
    if not shares:
        return Update(gradients=(), optimizer=(), gather=())
    zero = shares[0][1].zero
    width, share = shares[0][1].gradient_width, shares[0][1].optimizer_share
    parameters = sum(held for held, _ in shares)
    own = sum(how.own(held) for held, how in shares)
    # A shard is a smaller stage: as many parameters per layer, fewer of both.
    own_layers = max(1, -(-layers * own // parameters)) if layers and parameters else layers
    kept = own if zero >= 2 else parameters
    # Megatron-core's buffers, those of experts too, in a pass of its own (`DistributedDataParallel.scale_gradients`).
    is_scaled = shares[0][1].scatters_once and shares[0][1].dp > 1
    return Update(
        gradients=tuple(one for held, how in shares for one in how.combined(held)),
        optimizer=(
            *((call("gradient_scale", width * parameters),) if is_scaled else ()),
            call("gradient_clip", width * own),
            *((call("adam", ceil(share * own), ceil(share * own_layers), role=role),) if share else ()),
            call("gradient_zero", width * kept),
        ),
        gather=tuple(one for held, how in shares for one in how.gathered_once(held)),
    )
