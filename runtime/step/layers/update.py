"""What data parallelism calls: the update of a stage, and per block gradients from ZeRO-2 and parameters in ZeRO-3."""

from dataclasses import dataclass, replace
from math import ceil

from kernelcast.runtime.request.fields import ReduceDtype
from kernelcast.runtime.step.calls import Calls, bucketed, call
from kernelcast.runtime.step.groups import Group

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """How data parallelism shards: `dp` devices in `group`, ZeRO stage `zero`, buckets of `bucket_entries`.

    A gradient takes the bytes of `gradient_width` entries of the training's type where it is kept and reduced: 2 in
    fp32 beside 16 bits. The optimizer moves `optimizer_share` of the bytes that the measured one moves, and is asked
    for as much of the stage.
    """

    dp: int
    zero: int
    group: Group
    bucket_entries: int
    gradient_width: int = 1
    optimizer_share: float = 1.0

    def update(self, role: str, parameters: int, layers: int) -> Update:
        """The update of a stage with `parameters` and `layers` on a device (docs/method.md, A step).

        | zero | gradients | optimizer over | parameters |
        |---|---|---|---|
        | 0 | all-reduce | all | |
        | 1 | all-reduce | all (as published: its measured time fits them) | all-gather |
        | 2 | (scattered during the backward passes) | the shard, ceil(parameters / dp) | all-gather |
        | 3 | (scattered during the backward passes) | the shard | (gathered before every use) |

        `role` is the optimizer's: "first_stage", "middle_stage" or "last_stage"; a single stage, first and last at
        once, is the last. With the optimizer go clipping the gradients before it, and setting them to zero after it,
        for the micro-batches of the next step to add into.
        """
        own = (parameters, layers)
        if self.zero >= 2:
            # A shard is a smaller stage: as many parameters per layer, fewer of both.
            own = (-(-parameters // self.dp), -(-layers // self.dp))
        return Update(
            gradients=self._reduced(parameters) if self.zero < 2 else (),
            optimizer=(
                call("gradient_clip", self.gradient_width * own[0]),
                call("adam", *(ceil(self.optimizer_share * one) for one in own), role=role),
                call("gradient_zero", self.gradient_width * own[0]),
            ),
            gather=self._gathered(parameters) if self.zero in (1, 2) else (),
        )

    def gather(self, parameters: int) -> Calls:
        """ZeRO-3: the parameters of one block gathered before its pass."""
        return self._gathered(parameters) if self.zero == 3 else ()

    def scatter(self, parameters: int) -> Calls:
        """ZeRO-2 and 3: the gradients of one block summed and split after its backward pass."""
        return self._collective("reduce_scatter", parameters, self.gradient_width) if self.zero >= 2 else ()

    def _reduced(self, parameters: int) -> Calls:
        return self._collective("all_reduce", parameters, self.gradient_width)

    def _gathered(self, parameters: int) -> Calls:
        return self._collective("all_gather", -(-parameters // self.dp))

    def _collective(self, operator: str, entries: int, width: int = 1) -> Calls:
        if self.dp == 1:
            return ()
        layout = self.group.nodes, self.group.gpus_per_node
        calls = bucketed(operator, entries, layout, self.bucket_entries)
        return tuple(replace(one, shape=(width * one.shape[0], *one.shape[1:])) for one in calls)
