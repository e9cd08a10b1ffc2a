"""Memory of every device of a training job: model states, activations, logits, working memory.

What is counted and where it comes from is in docs/memory.md. Arithmetic over arrays: one call evaluates one layout's
stages or thousands of layouts. What a layer keeps is in the descriptions of the layers (../step/layers/).
"""

from kernelcast.runtime.memory.layouts import largest_stage_bytes
from kernelcast.runtime.memory.stages import (
    StageMemory,
    architecture_of,
    kept_by_layers,
    on_cpu,
    stage_memory,
)
from kernelcast.runtime.memory.states import precision_of

__all__ = [
    "StageMemory",
    "architecture_of",
    "kept_by_layers",
    "largest_stage_bytes",
    "on_cpu",
    "precision_of",
    "stage_memory",
]
