"""Memory per device of every stage as SVG bars, with a device's memory as a line where it is known."""

from kernelcast.runtime.estimate.device_memory import Memory
from kernelcast.runtime.memory.stages import StageMemory
from kernelcast.runtime.views.formatting import gibibytes
from kernelcast.runtime.views.page import Markup, drawn_stages, element, picture

PARTS = (
    ("weights_bytes", "weights", "weights"),
    ("gradients_bytes", "gradients", "gradients"),
    ("optimizer_bytes", "optimizer states", "states"),
    ("activations_bytes", "activations", "activations"),
    ("logits_bytes", "logits", "logits"),
    ("working_bytes", "working memory", "working"),
    ("workspace_bytes", "workspaces", "working"),
)
"""Field of `StageMemory`, name, class of its colour."""

_WIDTH, _LEFT, _RIGHT, _TOP = 1200.0, 74.0, 1040.0, 22.0


def memory_picture(memory: Memory) -> Markup:
    """One bar per stage; with more than 96 stages, the first and the last 48."""
    stages, height = drawn_stages(memory.stages)
    bottom = _TOP + len(stages) * height
    capacity = memory.usable_bytes
    scale = (_RIGHT - _LEFT) / max(memory.largest_bytes, capacity or 0, 1)
    rows = [_bar(stage, _TOP + row * height, height, scale, memory) for row, stage in enumerate(stages)]
    limit: list[Markup] = []
    if capacity is not None:
        x = _LEFT + capacity * scale
        whole = gibibytes(capacity + memory.reserved_bytes)
        less = f" less {gibibytes(memory.reserved_bytes)}" if memory.reserved_bytes else ""
        line = element("line", x1=x, x2=x, y1=_TOP - 4, y2=bottom, class_="limit")
        limit = [line, element("text", f"device: {whole}{less}", x=x, y=_TOP - 9, class_="limit-label")]
    description = (
        "One bar per stage: weights, gradients, optimizer states, activations, logits and working memory of one "
        "device. The same figures are in the table below."
    )
    title, size = "Memory per device of every stage", {"width": _WIDTH, "height": bottom + 6}
    return picture("memory", title, description, *limit, *rows, **size)


def _bar(stage: StageMemory, y: float, height: float, scale: float, memory: Memory) -> Markup:
    inner = height - (6.0 if height > 16 else 2.0)
    middle = y + inner / 2 + 4
    fits = memory.fits_stage(stage)
    total = gibibytes(stage.total_bytes) + (" does not fit" if fits is False else "")
    shapes = [element("text", f"stage {stage.stage}", x=_LEFT - 8, y=middle, class_="label")]
    x = _LEFT
    for field, name, style in PARTS:
        size = getattr(stage, field)
        if size:
            title = element("title", f"stage {stage.stage}: {name}, {gibibytes(size)}")
            width = size * scale
            shapes.append(element("rect", title, x=x, y=y, width=width, height=inner, class_=style))
            x += width
    style = "over" if fits is False else "total"
    shapes.append(element("text", total, x=x + 6, y=middle, class_=style))
    return element("g", *shapes)
