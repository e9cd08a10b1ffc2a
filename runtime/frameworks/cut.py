"""Where a pipeline is cut: layers of each chunk by the laws of Megatron-LM and torchtitan."""

import re

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.request.fields import MAX_DEGREE, MAX_LAYERS

_REPEATED = re.compile(r"\(([^()]*)\)\*(\d{1,6})|([EtmL])\*(\d{1,6})")
_LONGEST_TEXT = 4_096
_MOST_CHARACTERS = 4 * MAX_LAYERS


def layout_text(counts: tuple[int, ...]) -> str:
    """Megatron-LM's layout of chunks with these layers: E embedding, t layer, L loss, | between chunks.

    >>> layout_text((2, 9, 0))
    'Ett|t*9|L'
    """
    chunks = ["t" * count if count < 3 else f"t*{count}" for count in counts]
    return f"E{'|'.join(chunks)}L"


def read_layout_text(text: str, key: str) -> tuple[int, ...]:
    """Layers of each chunk of such a layout, `(tt|)*3` for repetitions, commas anywhere; m, a further prediction, runs
    with the loss. UsageError where it is none.

    >>> read_layout_text("Et*3|(tt|)*2,t|L", "layout")
    (3, 2, 2, 1, 0)
    """
    plain = re.sub(r"[\s,\\]", "", text[:_LONGEST_TEXT])
    # From inside out: a repetition may be repeated.
    while match := _REPEATED.search(plain):
        part, times = match[1] or match[3] or "", int(match[2] or match[4])
        if len(plain) + len(part) * times > _MOST_CHARACTERS:
            break
        plain = plain[: match.start()] + part * times + plain[match.end() :]
    if not re.fullmatch(r"E[t|]*m*L\|?", plain):
        raise UsageError(field=key, found=text, expected="chunks of E, t and L such as Et*3|t*4L")
    return tuple(chunk.count("t") for chunk in plain.removesuffix("|").split("|"))


def even_cut(
    layers: int, pp: int, virtual_stages: int, first: int | None = None, last: int | None = None
) -> tuple[int, ...] | None:
    """Layers of each chunk, in the model's order: stages have the same, but for the `first` and `last` where given.

    None where that does not come out even, which Megatron-LM refuses.
    """
    ends = [count for count in (first, last) if count is not None]
    middle, inner = layers - sum(ends), pp - len(ends)
    if not 0 <= inner <= middle or (middle % inner if inner else middle):
        return None
    stages = [middle // inner] * inner if inner else []
    stages = [*([] if first is None else [first]), *stages, *([] if last is None else [last])]
    if any(count % virtual_stages for count in stages):
        return None
    return tuple(count // virtual_stages for count in stages) * virtual_stages


def weighted_cut(layers: int, chunks: int, before: int, after: int) -> tuple[int, ...] | None:
    """Layers of each chunk as torchtitan spreads them: embedding and output count as `before` and `after` layers.

    None where the first or last chunk could not hold those, which torchtitan refuses.
    """
    if not 1 <= chunks <= MAX_DEGREE or layers > MAX_LAYERS:
        return None
    even, remainder = divmod(layers + before + after, chunks)
    if chunks == 1:
        return (layers,)
    if even < max(1, before, after):
        return None
    counts = [even + (chunk < remainder) for chunk in range(chunks)]
    counts[0] -= before
    counts[-1] -= after
    return tuple(counts)
