"""States of the optimizer in the host's memory, as frameworks name it."""

from dataclasses import dataclass

from kernelcast.runtime.frameworks.facts import Facts
from kernelcast.runtime.frameworks.rows import Found, Part, Settings, checked
from kernelcast.runtime.request.fields import LAYOUT


@dataclass(frozen=True, slots=True)
class OptimizerOffload:
    """A setting that is `on` where states are kept by the host, and one with their part, all where it is not set."""

    switch: str
    on: str | bool
    part: str
    fields: tuple[str, ...] = ("offload_optimizer",)

    @property
    def keys(self) -> tuple[str, ...]:
        """Both."""
        return (self.switch, self.part)

    def write(self, facts: Facts) -> Part:
        """Both, the part where it is not all."""
        part = facts["offload_optimizer"]
        return Part({self.switch: self.on, **({} if part == 1 else {self.part: part})} if part else {})

    def read(self, settings: Settings, facts: Facts) -> Found:
        """What lies elsewhere than in the device's and the host's memory is not modelled."""
        found = settings.get(self.switch, "none")
        if found != self.on:
            known = found in ("none", False)
            return Found({}, () if known else (f"{self.switch} {found} is not modelled",))
        part = checked(self.part, settings.get(self.part, 1.0), LAYOUT["offload_optimizer"].kind)
        return Found({"offload_optimizer": part})
