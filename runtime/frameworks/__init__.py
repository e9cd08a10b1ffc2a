"""A layout as arguments of a training framework, and arguments as a layout: Megatron-LM, torchtitan, DeepSpeed.

Every framework is a table of rows (`megatron.py`, `torchtitan.py`, `deepspeed.py`); `write` and `read` go through it.
"""

from kernelcast.runtime.frameworks.facts import Job
from kernelcast.runtime.frameworks.layout_files import (
    FRAMEWORKS,
    LayoutFile,
    Written,
    read_layout_text,
    write_layout,
)
from kernelcast.runtime.frameworks.rows import Framework

__all__ = [
    "FRAMEWORKS",
    "Framework",
    "Job",
    "LayoutFile",
    "Written",
    "read_layout_text",
    "write_layout",
]
