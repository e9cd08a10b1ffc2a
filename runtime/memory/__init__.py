"""Memory of every device of a training job: model states, activations, logits, working memory.

What is counted and where it comes from is in docs/memory.md. Arithmetic over arrays: one call evaluates one layout's
stages or thousands of layouts.
"""

from kernelcast.runtime.memory.capacity import Overflow, device_kind, overflows
from kernelcast.runtime.memory.layouts import largest_stage_bytes
from kernelcast.runtime.memory.stages import StageMemory, stage_memory

__all__ = ["Overflow", "StageMemory", "device_kind", "largest_stage_bytes", "overflows", "stage_memory"]
