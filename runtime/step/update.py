"""What data parallelism calls: the update of a stage, and per block gradients from ZeRO-2 and parameters in ZeRO-3.

With what optimizers keep per parameter and what their updates move, and what a host does whose memory holds states or
activations: rates, not measurements (docs/method.md).
"""

from collections.abc import Iterable, Sequence
from math import ceil

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.request.fields import OptimizerKind, ReduceDtype, StateType
from kernelcast.runtime.request.layout import Cluster, Parallelism
from kernelcast.runtime.step.groups import ALONE, Group, data_group, expert_data_group, shard_groups
from kernelcast.runtime.step.op import Call, Calls, Component, Op, Ops, call, op

STATE_BYTES: dict[StateType, int] = {"float32": 4, "bfloat16": 2, "8bit": 1}
"""Of one entry of a state; the scales of 8-bit blocks, 4 bytes for 256 entries, are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moved:
    """States of a kind, and how often an update reads or writes an entry of one, and of what is in float32 anyway."""

    states: int
    of_states: int
    others: int


# Weights are read and written and the gradient is read once by a kernel that does it all. torch's multi-tensor Adam
# (`_multi_tensor_adam`, with decoupled weight decay) has a kernel for each of: decay (weights), lerp (first moment,
# gradient), mul and addcmul (second moment, gradient), sqrt, div, add (a tensor of their own), addcdiv (weights).
_MOVED: dict[OptimizerKind, _Moved] = {
    "adam_fused": _Moved(states=2, of_states=4, others=3),
    "adam_foreach": _Moved(states=2, of_states=8, others=12),
    "adam_loop": _Moved(states=2, of_states=8, others=12),
    "sgd": _Moved(states=1, of_states=2, others=3),
    "lion": _Moved(states=1, of_states=2, others=3),
}
MEASURED: tuple[OptimizerKind, StateType] = ("adam_fused", "float32")
"""What the operator `adam` is, whoever measured it (docs/method.md, A step)."""


def state_bytes(kind: OptimizerKind, states: StateType, usual: int) -> int:
    """Bytes of a parameter's states; one in "float32" takes `usual` ones."""
    return _MOVED[kind].states * (usual if states == "float32" else STATE_BYTES[states])


def moved_bytes(kind: OptimizerKind, states: StateType) -> int:
    """Bytes that an update of one float32 parameter reads and writes.

    >>> moved_bytes("adam_fused", "float32"), moved_bytes("adam_foreach", "float32")
    (28, 80)
    """
    moved = _MOVED[kind]
    return STATE_BYTES[states] * moved.of_states + 4 * moved.others


def moved_share(kind: OptimizerKind, states: StateType) -> float:
    """`moved_bytes` as a multiple of the measured optimizer's."""
    return moved_bytes(kind, states) / moved_bytes(*MEASURED)


_BYTES_PER_US = 1e3
"""Of 1 GB/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Rates of a device's host in bytes per µs: of the link in each direction, of its memory (0: not needed)."""

    link: float
    memory: float

    @classmethod
    def of(cls, layout: Parallelism, link_bytes_per_s: float | None) -> "Host | None":
        """The host of a layout that offloads, by its own link or `link_bytes_per_s`; UsageError for an unknown rate."""
        if not (layout.offload_optimizer or layout.offload_activations):
            return None
        stated = layout.host_link_gb_per_s * _BYTES_PER_US
        link = stated or (link_bytes_per_s or 0.0) / 1e6
        if not link:
            raise UsageError(
                field="host_link_gb_per_s",
                found=0,
                expected="the rate between device and host in GB/s: "
                "the device table has none for the bundle's device",
            )
        if layout.offload_optimizer and not layout.host_memory_gb_per_s:
            raise UsageError(
                field="host_memory_gb_per_s",
                found=0,
                expected="the GB/s that the host's optimizer reads and writes for a device, "
                "as offload_optimizer is above 0",
            )
        return cls(link=link, memory=layout.host_memory_gb_per_s * _BYTES_PER_US)

    def update_us(
        self, layout: Parallelism, parameters: int, *, gradient_bytes: int, weight_bytes: int
    ) -> float:
        """Time in µs in which the host updates `parameters`: their gradients over the link, states, weights, gradients
        and a copy in the training's type in its memory, that copy back; one after the other.
        """
        moved = moved_bytes(layout.optimizer, layout.optimizer_states) + weight_bytes
        sent = gradient_bytes + weight_bytes
        return parameters * (sent / self.link + moved / self.memory)


_FLOAT32_BYTES = 4
_MEGATRON_BUCKET, _MEGATRON_BUCKET_PER_REPLICA = 40_000_000, 1_000_000
"""Parameters of an overlapping bucket, whichever is more (Megatron-LM, DistributedDataParallelConfig.bucket_size)."""


def gradient_bytes(reduce_dtype: ReduceDtype, element_bytes: int) -> int:
    """Bytes of a gradient where it is kept between micro-batches and reduced."""
    return max(element_bytes, _FLOAT32_BYTES) if reduce_dtype == "float32" else element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """How the parameters that `replicas` devices in `group` hold are sharded: ZeRO over `shard_group`, by default
    `group`; `copy_group` holds copies of a shard. Gradients beyond `bucket_entries` are cut into buckets of the
    collectives' `role`.
    """

    layout: Parallelism
    replicas: int
    group: Group
    bucket_entries: int
    element_bytes: int
    role: str = "data"
    shard_group: Group | None = None
    copy_group: Group = ALONE

    @classmethod
    def of(
        cls, layout: Parallelism, cluster: Cluster, bucket_entries: int, element_bytes: int
    ) -> "DataParallel":
        """How the parameters are sharded that all replicas hold."""
        shards, copies = shard_groups(layout, cluster)
        return cls(
            layout=layout,
            replicas=layout.replicas,
            group=data_group(layout, cluster),
            bucket_entries=bucket_entries,
            element_bytes=element_bytes,
            shard_group=shards,
            copy_group=copies,
        )

    @classmethod
    def of_experts(
        cls, layout: Parallelism, cluster: Cluster, bucket_entries: int, element_bytes: int
    ) -> "DataParallel":
        """The sharding of experts' parameters."""
        return cls(
            layout=layout,
            replicas=layout.expert_replicas,
            group=expert_data_group(layout, cluster),
            bucket_entries=bucket_entries,
            element_bytes=element_bytes,
            role="expert_data",
        )

    @property
    def gradient_width(self) -> int:
        """Entries of the training's type that a gradient takes where it is kept and reduced: 2 in fp32 with 16 bits."""
        return gradient_bytes(self.layout.reduce_dtype, self.element_bytes) // self.element_bytes

    @property
    def optimizer_share(self) -> float:
        """Bytes that the optimizer moves on the device as a multiple of those that the measured one moves."""
        layout = self.layout
        return (1 - layout.offload_optimizer) * moved_share(layout.optimizer, layout.optimizer_states)

    @property
    def shards(self) -> int:
        """How many devices share one set of ZeRO's shards."""
        return self.replicas if self.shard_group is None else self.shard_group.processes

    @property
    def scatters_once(self) -> bool:
        """Whether gradients are reduced and scattered once per update (ZeRO-1 with a reduce-scatter)."""
        return self.layout.zero == 1 and self.layout.gradient_collective == "reduce_scatter"

    def own(self, parameters: int) -> int:
        """Parameters that a device updates."""
        shards = self.layout.zero >= 2 or self.scatters_once
        return -(-parameters // self.shards) if shards else parameters

    def gather(self, parameters: int) -> Calls:
        """ZeRO-3: the parameters of one block gathered before its pass."""
        return self._gathered(parameters) if self.layout.zero == 3 else ()

    def scatter(self, parameters: int) -> Calls:
        """ZeRO-2 and 3: the gradients of one block summed and split after its backward pass."""
        return self._scattered(parameters) if self.layout.zero >= 2 else ()

    def buckets(self, parameters: int) -> int:
        """Buckets of a device's `parameters` where they overlap."""
        return max(1, -(-parameters // self._overlapping))

    @property
    def _overlapping(self) -> int:
        usual = max(_MEGATRON_BUCKET, _MEGATRON_BUCKET_PER_REPLICA * self.replicas)
        return self.layout.overlap_bucket or usual

    def combined(self, parameters: int) -> Calls:
        """Gradients combined once per update, unless the backward passes did."""
        overlaps = self.layout.overlap_gradients
        if self.layout.zero >= 2:
            return ()
        if self.scatters_once:
            return self._scattered(parameters, overlaps=overlaps)
        bucket = self._overlapping if overlaps else self.bucket_entries
        return self._collective(
            "all_reduce", self.group, self.replicas, parameters, bucket, self.gradient_width
        )

    def gathered_once(self, parameters: int) -> Calls:
        """Parameters gathered once per update."""
        overlaps = self.layout.overlap_parameters
        return self._gathered(parameters, overlaps=overlaps) if self.layout.zero in (1, 2) else ()

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
        """Entries of a bucket of whole parameters, and of shards: overlapping ones are cut before they are sharded."""
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


def update_ops(
    shares: Sequence[tuple[int, DataParallel]], role: str, layers: int, *, gathered: float = 1.0
) -> Ops:
    """The ops of a stage once per update: gradients combined, clipping, optimizer, zeroing, parameters gathered.

    | zero | gradients | optimizer over | parameters |
    |---|---|---|---|
    | 0 | all-reduce | all | |
    | 1 | all-reduce | all (as published: its measured time fits them) | all-gather |
    | 1, reduce-scatter | reduce-scatter | the shard; gradients of all are set to zero | all-gather |
    | 2 | (scattered during the backward passes) | the shard, ceil(parameters / shards) | all-gather |
    | 3 | (scattered during the backward passes) | the shard | (gathered before every use) |

    `shares` are parameters with the same sharding: experts are held by fewer devices than the rest, and one
    optimizer updates both. `role` is the optimizer's: "first_stage", "middle_stage" or "last_stage" of a stage with
    `layers`; a single stage, first and last at once, is the last. `gathered` are the bytes of gathered parameters over
    bytes in 16 bit. Gradients are set to zero for the micro-batches of the next step to add into.
    """
    shares = [(held, how) for held, how in shares if held]
    if not shares:
        return ()
    how = shares[0][1]
    width, share = how.gradient_width, how.optimizer_share
    parameters = sum(held for held, _ in shares)
    own = sum(one.own(held) for held, one in shares)
    # A shard is a smaller stage: the same parameters per layer, fewer layers.
    own_layers = max(1, -(-layers * own // parameters)) if layers and parameters else layers
    zeroed = own if how.layout.zero >= 2 else parameters
    # Megatron-core's buffers, including experts', in a pass of its own (`DistributedDataParallel.scale_gradients`).
    is_scaled = how.scatters_once and how.replicas > 1
    return (
        *_collectives(Component.ALL_REDUCE, (one for held, way in shares for one in way.combined(held))),
        op(Component.GRADIENT_SCALING, "gradient_scale", width * parameters, count=int(is_scaled)),
        op(Component.GRADIENT_CLIPPING, "gradient_clip", width * own),
        op(
            Component.OPTIMIZER,
            "adam",
            ceil(share * own),
            ceil(share * own_layers),
            role=role,
            count=int(share > 0),
        ),
        op(Component.GRADIENT_ZEROING, "gradient_zero", width * zeroed),
        *_collectives(
            Component.ALL_GATHER,
            (one for held, way in shares for one in way.gathered_once(ceil(gathered * held))),
        ),
    )


def _collectives(name: Component, calls: Iterable[Call]) -> Ops:
    return tuple(Op(name, one, collective="both") for one in calls)
