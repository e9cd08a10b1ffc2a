"""Write docs/memory-validation.md: the memory of every measured case next to its prediction.

python docs/generate_memory_validation.py FOLDER
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from kernelcast.docs.markdown import percent, table
from kernelcast.validate.memory import MemoryValidation, covered, spreads, validate_memory
from kernelcast.validate.memory_cases import MEASURED

PAGE = Path(__file__).resolve().parent / "memory-validation.md"
_GIB = 1 << 30
_BEGIN = """# Memory, case by case

Written by `make validate-memory`. Every step is predicted with its own published settings, and nothing is fitted to it.
An error is predicted / measured - 1. What the numbers are made of is in [memory.md](memory.md).
"""
_LARGEST = """
## What the largest errors are

- **torchtitan, eager and compiled.** Both get the same prediction. Eager kernels free more blocks, and the allocator
  reserved 5 GiB more.
- **Loss fusion on A100** (`cross_entropy_loss_fusion`): torch of that time compiled the loss with two further copies
  in fp32; one is counted, as on H100 and GB200.
- **Experts in small models** of Megatron-LM's tests: 0.1 GiB of 1 to 2 is missing, where tokens are gathered instead of
  exchanged or experts' products are not grouped.
"""


def page(found: MemoryValidation) -> str:
    """The whole page."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: MemoryValidation) -> Iterator[str]:
    yield _BEGIN
    yield from table(("source", "its number"), list(MEASURED.items()), is_padded=False)
    yield "\n## By source, kind and number format\n"
    heads = ("source", "kind", "format", "cases", "median", "mean", "90th percentile", "signed")
    yield from table(
        heads,
        [
            (
                one.source,
                one.kind,
                one.number_format,
                str(one.cases),
                *(percent(size, 1) for size in (one.median_abs_error, one.mean_abs_error, one.tenth_largest)),
                percent(one.mean_error, 1, is_signed=True),
            )
            for one in found.groups
        ],
    )
    yield "\n## Said to fit\n"
    yield from table(
        ("source", "predicted to fit", "of steps that ran"),
        [(source, str(fits), str(ran)) for source, fits, ran in found.fitting],
    )
    yield "\n## Inside the interval\n"
    yield (
        "The 90 % interval of a case comes from the other models of its kind. Half of its width: "
        + ", ".join(f"{percent((one.high - one.low) / 2, 1)} {kind}" for kind, one in spreads(found).items())
        + ".\n"
    )
    yield from table(
        ("source", "inside", "cases"),
        [(source, str(inside), str(cases)) for source, (inside, cases) in covered(found).items()],
    )
    yield _LARGEST
    yield "## Not predicted\n"
    yield from table(
        ("cases", "why"), [(str(count), why.replace("|", "\\|")) for why, count in found.left_out.items()]
    )
    yield "\nArguments of Megatron-LM that were read past, with the number of cases: " + ", ".join(
        f"`{key}` {count}" for key, count in found.unread.items()
    )
    yield "\n## Every case\n"
    rows = sorted(found.measured, key=lambda one: (one.case.source, one.case.name))
    yield from table(
        ("source", "case", "format", "measured", "predicted", "error"),
        [
            (
                one.case.source,
                one.case.name,
                one.case.number_format,
                f"{(one.case.measured_bytes or 0) / _GIB:.3f} GiB",
                f"{one.predicted_bytes / _GIB:.3f} GiB",
                percent(one.error, 1, is_signed=True),
            )
            for one in rows
        ],
        is_padded=False,
    )


if __name__ == "__main__":
    PAGE.write_text(page(validate_memory(Path(sys.argv[1]))), encoding="utf-8")
