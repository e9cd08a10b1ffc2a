"""A layout as arguments of a training framework, and arguments as a layout: Megatron-LM, torchtitan, DeepSpeed.

Every framework is a table of rows (`megatron.py`, `torchtitan.py`, `deepspeed.py`); `write` and `read` go through it.
"""

from kernelcast.runtime.frameworks.facts import Job
from kernelcast.runtime.frameworks.reading import LayoutFile, read_layout_text
from kernelcast.runtime.frameworks.rows import Framework
from kernelcast.runtime.frameworks.table import FRAMEWORKS
from kernelcast.runtime.frameworks.writing import Written, write_layout

__all__ = [
    "FRAMEWORKS",
    "Framework",
    "Job",
    "LayoutFile",
    "Written",
    "read_layout_text",
    "write_layout",
]
