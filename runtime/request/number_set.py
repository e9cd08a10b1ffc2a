"""A set of allowed whole numbers, written as people write page numbers: `1,2,4-8`."""

import re
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError

_PART = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})?)?")


@dataclass(frozen=True, slots=True)
class NumberSet:
    """Whole numbers in closed `ranges`; an upper end of None is open.

    >>> allowed = NumberSet.parse("1,2,8-")
    >>> 4 in allowed, 9 in allowed
    (False, True)
    """

    ranges: tuple[tuple[int, int | None], ...]

    @classmethod
    def parse(cls, text: str, *, name: str = "numbers") -> Self:
        """Read numbers and ranges (`4-8`, `4-`) separated by commas.

        Raises:
            UsageError: a part is neither, or a range ends before it begins; the message names `name`.
        """
        ranges: list[tuple[int, int | None]] = []
        for part in text.split(","):
            match = _PART.fullmatch(part.strip())
            if match is None:
                expected = "numbers and ranges such as 1,2,4-8 or 16-"
                raise UsageError(field=name, found=text, expected=expected)
            low = int(match[1])
            high = low if "-" not in part else int(match[2]) if match[2] else None
            if high is not None and high < low:
                expected = "ranges that begin at their smaller number"
                raise UsageError(field=name, found=text, expected=expected)
            ranges.append((low, high))
        return cls(tuple(ranges))

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and any(
            low <= number and (high is None or number <= high) for low, high in self.ranges
        )

    def mask(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of `numbers`, of any shape, belong to the set."""
        within = [
            (numbers >= low) & (numbers <= (np.inf if high is None else high)) for low, high in self.ranges
        ]
        return np.asarray(np.logical_or.reduce(within), dtype=np.bool_)

    def __str__(self) -> str:
        return ",".join(
            str(low) if high == low else f"{low}-{'' if high is None else high}" for low, high in self.ranges
        )
