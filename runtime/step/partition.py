"""Layers per pipeline stage: the same for all, or eq. 3–5 as in the published runs (docs/method.md, A step)."""

from itertools import groupby

from kernelcast.runtime.byte_cache import remembered
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.request.fields import LAYOUT, LayerSplit
from kernelcast.runtime.request.layout import Parallelism

BLOCKS_BEFORE = 2
"""Blocks before the layers, on the first stage."""
BLOCKS_AFTER = 3
"""Blocks after the layers, on the last stage."""


@remembered(4 << 20)
def partition(
    layers: int, pp: int, virtual_stages: int = 1, layer_split: LayerSplit = LAYOUT["layer_split"].default
) -> tuple[int, ...]:
    """Layers of each chunk (pp stages times `virtual_stages`, in the order of the model); they sum to `layers`.

    An even split gives every chunk the same layers where the chunks divide them, and so does a balanced one, which
    starts from it (`Engine.balanced`). The paper's split, and the even one where they do not: the n + 5 blocks of a
    pipeline are spread evenly, the remainder going to the earliest chunks; 2 blocks of the first chunk and 3 of the
    last are not layers. A last chunk without layers is allowed: it still has norm, output projection and loss. Where a
    chunk would have fewer than 3 blocks, so that the last one could not hold even those, the layers alone are spread
    evenly, the remainder going to the chunks after the first.

    Raises:
        UsageError: more chunks than layers (or than (n + 5) // 3), or fewer than one.
    """
    chunks = pp * virtual_stages
    blocks = layers + BLOCKS_BEFORE + BLOCKS_AFTER
    # A single stage has all blocks; of several, the last has the fewest, blocks // chunks.
    roomy = max(1, blocks // BLOCKS_AFTER)
    most = max(roomy, layers)
    if not 1 <= chunks <= most:
        product = "pp" if virtual_stages == 1 else f"pp · virtual_stages ({pp} · {virtual_stages})"
        expected = f"from 1 to {most} for {layers} layers"
        raise UsageError(field="pp", subject=product, found=chunks, expected=expected)
    if layer_split != "paper" and layers % chunks == 0:
        return (layers // chunks,) * chunks
    if chunks > roomy:
        even, remainder = divmod(layers, chunks)
        return tuple(even + (1 <= chunk <= remainder) for chunk in range(chunks))
    even, remainder = divmod(blocks, chunks)
    counts = [even + (chunk < remainder) for chunk in range(chunks)]
    counts[0] -= BLOCKS_BEFORE
    counts[-1] -= BLOCKS_AFTER
    return tuple(counts)


def counts_text(counts: tuple[int, ...]) -> str:
    """Runs of equal counts.

    >>> counts_text((12, 12, 12, 9))
    '12 × 3, 9'
    """
    runs = ((count, len(list(same))) for count, same in groupby(counts))
    return ", ".join(f"{count} × {times}" if times > 1 else str(count) for count, times in runs)


def layers_of_chunks(layers: int, parallelism: Parallelism) -> tuple[int, ...]:
    """Layers of each chunk of a layout: `layer_counts` where they are given, else as `layer_split` says.

    Raises:
        UsageError: as `partition`.
    """
    if parallelism.layer_counts is not None:
        return parallelism.layer_counts
    return partition(layers, parallelism.pp, parallelism.virtual_stages, parallelism.layer_split)
