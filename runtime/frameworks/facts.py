"""What a framework's arguments say, by the names of request fields, whatever the framework calls it."""

from typing import Any

from kernelcast.runtime.dataclass import asdict, dataclass
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
        """Its fields. A field that changes nothing in this layout has its plainest value: ZeRO on one
        replica, sequence parallelism without tensor parallelism, where recomputation stops without any.

        Raises:
            UsageError: the model cannot be cut in this way.
        """
        layout = self.parallelism
        facts = asdict(self.model) | asdict(layout)
        facts["global_batch"] = layout.samples_per_update
        facts["devices"] = layout.world_size
        facts["layer_counts"] = layers_of_chunks(self.model.layers, layout)
        facts["replicas"] = layout.replicas
        facts["zero"] = layout.zero if layout.replicas > 1 else 0
        facts["recompute_early_stop"] = layout.recompute_early_stop and layout.recompute != "none"
        facts["sequence_parallel"] = layout.sequence_parallel and layout.tp > 1
        facts["tensor_overlap"] = layout.tensor_overlap if layout.tp > 1 else "none"
        return facts | {"gpus_per_node": self.gpus_per_node, "dtype": self.dtype}
