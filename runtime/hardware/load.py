"""How a device was loaded while an operator was measured: clocks differ between a burst and a long step."""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum


class Load(StrEnum):
    """Load around a measurement.

    BURST: some repetitions on a device that is otherwise idle, within the power and heat that it may use for a moment.
    SUSTAINED: the device has been busy for seconds, and is between the repetitions (on a CPU: all its cores are).
    NOT_STATED counts as a burst where one of the two has to be chosen: that is how operators are usually measured.
    """

    NOT_STATED = ""
    BURST = "burst"
    SUSTAINED = "sustained"

    @property
    def is_sustained(self) -> bool:
        """Whether it is stated to last; everything else counts as a burst."""
        return self is Load.SUSTAINED

    @property
    def in_words(self) -> str:
        """Its name, or `not stated`."""
        return self.value or "not stated"


def loads_in_words(loads: Iterable[Load]) -> str:
    """How many are of each, such as `12 sustained, 30 burst, 1 not stated`; `none` of none."""
    counts = Counter(loads)
    order = (Load.SUSTAINED, Load.BURST, Load.NOT_STATED)
    return ", ".join(f"{counts[one]} {one.in_words}" for one in order if counts[one]) or "none"
