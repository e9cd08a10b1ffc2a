"""A training step taken apart: which operator a stage calls, on what, how often (docs/method.md, A step)."""

from dataclasses import dataclass
from enum import StrEnum

from kernelcast.runtime.groups import Group, data_group, pipeline_pair, tensor_group
from kernelcast.runtime.model import MAX_SIZE, ModelConfig, require_integer
from kernelcast.runtime.operators import OPERATORS, Direction, Shape
from kernelcast.runtime.parallelism import Cluster, Parallelism
from kernelcast.runtime.parameters import padded_vocabulary, stage_parameters
from kernelcast.runtime.partition import partition

_F, _B, _1 = Direction.FORWARD, Direction.BACKWARD, Direction.ONCE


class Component(StrEnum):
    """The part of a step that a call's time belongs to."""

    ENCODER_FORWARD = "encoder_forward"
    ENCODER_BACKWARD = "encoder_backward"
    ENDS_FORWARD = "ends_forward"  # embedding on the first stage; norm, logits and loss on the last
    ENDS_BACKWARD = "ends_backward"
    SEND_FORWARD = "send_forward"
    SEND_BACKWARD = "send_backward"
    ALL_REDUCE = "all_reduce"  # from here on once per update, above once per micro-batch
    OPTIMIZER = "optimizer"
    ALL_GATHER = "all_gather"


FORWARD_PARTS = (Component.ENCODER_FORWARD, Component.ENDS_FORWARD, Component.SEND_FORWARD)
BACKWARD_PARTS = (Component.ENCODER_BACKWARD, Component.ENDS_BACKWARD, Component.SEND_BACKWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCall:
    """`count` calls of one operator with one workload vector.

    `count` is per micro-batch for forward and backward components, per update for the others. `direction`
    is the regressor that is asked: recomputation asks for forward times inside a backward component.
    """

    operator: str
    direction: Direction
    vector: tuple[int, ...]
    count: int
    component: Component

    def times(self, factor: int) -> "OperatorCall":
        """The same call, `factor` times as often."""
        return OperatorCall(
            operator=self.operator,
            direction=self.direction,
            vector=self.vector,
            count=self.count * factor,
            component=self.component,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline stage: its encoders, the parameters on one of its devices, and all that it calls."""

    index: int
    encoders: int
    parameters: int
    calls: tuple[OperatorCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposition:
    """A step as operator calls, per stage; `encoder` has those of one encoder, forward and backward."""

    vocabulary_size: int
    encoder: tuple[OperatorCall, ...]
    stages: tuple[Stage, ...]


def decompose(
    *, model: ModelConfig, parallelism: Parallelism, cluster: Cluster, bucket_entries: int
) -> Decomposition:
    """Take a training step apart.

    Point-to-point transfers are charged to the sender: forward on all but the last stage, backward on all
    but the first. Data-parallel collectives over more than `bucket_entries` entries become full buckets and
    a remainder. Degrees of 1 call no collective. The optimizer runs over all the parameters of the stage,
    as in the published runs; a single stage (pp = 1) is first and last at once and asks
    `optimizer_last_stage`.

    Raises:
        UsageError: the model cannot be laid out so.
    """
    require_integer("bucket_entries", bucket_entries, low=1, high=MAX_SIZE)
    parallelism.check(model)
    counts = partition(model.encoders, parallelism.pp)
    plan = _Plan(model, parallelism, cluster, bucket_entries)
    encoder = plan.encoder()
    stages = tuple(plan.stage(index, count, encoder) for index, count in enumerate(counts))
    return Decomposition(vocabulary_size=plan.shape.vocabulary_size, encoder=encoder, stages=stages)


class _Plan:
    """What all stages of one layout share."""

    def __init__(
        self, model: ModelConfig, parallelism: Parallelism, cluster: Cluster, bucket_entries: int
    ) -> None:
        self.model, self.parallelism, self.bucket_entries = model, parallelism, bucket_entries
        self.data_group = data_group(parallelism, cluster)
        self.shape = Shape(
            micro_batch=parallelism.micro_batch,
            sequence_length=model.sequence_length,
            hidden_size=model.hidden_size,
            attention_heads=model.attention_heads,
            kv_heads=model.kv_heads,
            mlp_size=model.mlp_size,
            vocabulary_size=padded_vocabulary(model.vocabulary_size, parallelism.mp),
            tensor_parallel=parallelism.mp,
            data_parallel=parallelism.dp,
        )
        self.mp_vector = self._on("mp_all_reduce", tensor_group(parallelism, cluster))
        self.p2p_vector = self._on("pp_p2p", pipeline_pair(parallelism, cluster))

    def encoder(self) -> tuple[OperatorCall, ...]:
        """One encoder: forward calls, then backward calls (those of the forward pass too when recomputed)."""
        model, parts = self.model, (Component.ENCODER_FORWARD, Component.ENCODER_BACKWARD)
        operators = self._encoder_operators()
        forward = [self._call(name, _F, count, parts[0]) for name, count in operators.items()]
        forward += self._tensor_syncs(model.forward_syncs, parts[0])
        backward = [self._call(name, _B, count, parts[1]) for name, count in operators.items()]
        backward += self._tensor_syncs(model.backward_syncs, parts[1])
        if self.parallelism.recompute == "full":
            backward += [self._call(name, _F, count, parts[1]) for name, count in operators.items()]
            backward += self._tensor_syncs(model.forward_syncs, parts[1])
        return (*forward, *backward)

    def stage(self, index: int, encoders: int, encoder: tuple[OperatorCall, ...]) -> Stage:
        """One stage: ends, encoders, sends, and what happens once per update."""
        first, last = index == 0, index == self.parallelism.pp - 1
        parameters = stage_parameters(
            self.model, self.parallelism.mp, encoders=encoders, first=first, last=last
        )
        calls: list[OperatorCall] = []
        if first:
            calls.append(self._call("embedding", _F, 1, Component.ENDS_FORWARD))
            calls += self._tensor_syncs(1, Component.ENDS_FORWARD)
            calls.append(self._call("embedding", _B, 1, Component.ENDS_BACKWARD))
        if encoders:
            calls += [call.times(encoders) for call in encoder]
        if last:
            for name in (self.model.norm, "logits_linear", "cross_entropy"):
                calls.append(self._call(name, _F, 1, Component.ENDS_FORWARD))
                calls.append(self._call(name, _B, 1, Component.ENDS_BACKWARD))
        for sends, component in ((not last, Component.SEND_FORWARD), (not first, Component.SEND_BACKWARD)):
            if sends:
                calls.append(_once("pp_p2p", self.p2p_vector, 1, component))
        calls += self._update(parameters, encoders, first=first, last=last)
        return Stage(index=index, encoders=encoders, parameters=parameters, calls=tuple(calls))

    def _encoder_operators(self) -> dict[str, int]:
        """Operators of one encoder with their number, in order of first appearance."""
        model = self.model
        operators = {model.norm: 2, "qkv_linear": 1}
        if model.rotary:
            operators["rope"] = 1
        inner = {
            "flash": ("flash_attention",),
            "fused_softmax": ("attention_scores", "fused_causal_softmax", "attention_values"),
            "unfused": ("attention_scores", "causal_mask_fill", "softmax", "attention_values"),
        }[model.attention]
        mlp = ("mlp_gate_up_linear", "swiglu") if model.activation == "swiglu" else ("mlp_up_linear", "gelu")
        operators |= dict.fromkeys((*inner, "attention_output_linear"), 1)
        operators["residual_add"] = 2
        operators |= dict.fromkeys((*mlp, "mlp_down_linear"), 1)
        return operators

    def _update(self, parameters: int, encoders: int, *, first: bool, last: bool) -> list[OperatorCall]:
        role = "last" if last else "first" if first else "middle"
        shape = Shape(
            stage_parameters=parameters,
            stage_encoders=encoders,
            data_parallel=self.parallelism.dp,
            nodes=self.data_group.nodes,
            gpus_per_node=self.data_group.gpus_per_node,
        )
        optimizer = f"optimizer_{role}_stage"
        calls = [_once(optimizer, OPERATORS[optimizer].workload(shape), 1, Component.OPTIMIZER)]
        if self.parallelism.dp > 1:
            calls += self._bucketed("dp_all_reduce", shape, Component.ALL_REDUCE)
            calls += self._bucketed("dp_all_gather", shape, Component.ALL_GATHER)
        return calls

    def _bucketed(self, name: str, shape: Shape, component: Component) -> list[OperatorCall]:
        entries, *layout = OPERATORS[name].workload(shape)
        full, rest = divmod(entries, self.bucket_entries)
        sizes = ((self.bucket_entries, full), (rest, 1 if rest else 0))
        return [_once(name, (size, *layout), count, component) for size, count in sizes if count]

    def _tensor_syncs(self, count: int, component: Component) -> list[OperatorCall]:
        if self.parallelism.mp == 1 or count == 0:
            return []
        return [_once("mp_all_reduce", self.mp_vector, count, component)]

    def _call(self, name: str, direction: Direction, count: int, component: Component) -> OperatorCall:
        return OperatorCall(
            operator=name,
            direction=direction,
            vector=OPERATORS[name].workload(self.shape),
            count=count,
            component=component,
        )

    def _on(self, name: str, group: Group) -> tuple[int, ...]:
        shape = Shape(
            micro_batch=self.shape.micro_batch,
            sequence_length=self.shape.sequence_length,
            hidden_size=self.shape.hidden_size,
            tensor_parallel=self.shape.tensor_parallel,
            nodes=group.nodes,
            gpus_per_node=group.gpus_per_node,
        )
        return OPERATORS[name].workload(shape)


def _once(name: str, vector: tuple[int, ...], count: int, component: Component) -> OperatorCall:
    return OperatorCall(operator=name, direction=_1, vector=vector, count=count, component=component)
