"""The load of a device around measured passes: a burst of repetitions, or sustained work.

A burst runs at clocks, power and temperature that a training step of seconds may not hold. Under sustained load the
device computes matrix products back to back for seconds before the first measurement, before every block of
repetitions, and on a GPU also between the passes; on a CPU all other cores compute at the same time (`BusyCores`).
The load is always matrix products: a step consists mostly of them, and they determine the clocks of other operators.

Sensors are read at the end of every block, while the device is still under load.
"""

import math
import time

import torch

from kernelcast.collector.machine.sensors import Reading, Sensors
from kernelcast.runtime.hardware.devices import Load

FIRST_SECONDS = 10.0
"""Work before a level's first measurement. Power limits act within milliseconds to seconds. Heat takes minutes, costs
little clock, and affects the later points of a collection."""
BLOCK_SECONDS = 0.5
"""Work before every block of repetitions, to compensate for the host's pauses between them."""
PASS_SECONDS = 0.02
"""Work on a GPU before every pass: several periods of its power control, and longer than the launches of any operator,
so that the host stays ahead."""

# Rows of the square products: a millisecond or more on a GPU; on a CPU they fit into a core's own caches.
_SIZE = {"cpu": 256, "cuda": 8192}
_AHEAD_CYCLES = 500_000  # of a GPU's clock, about 0.3 ms: longer than the launches of an operator


class BurstLoad:
    """Only the measured passes; on a GPU an idle kernel keeps the host ahead of the device, as in a step."""

    kind = Load.BURST

    def __init__(self, device: torch.device, sensors: Sensors | None = None) -> None:
        self._device = device
        self._sensors = sensors or Sensors()
        self._readings: list[Reading] = []

    def before_block(self) -> None:
        """Called before the passes of a block."""
        self._sensors.read()  # starts the power reading

    def before_pass(self) -> None:
        """Called before each pass and before the cache state is set; GPU work may still run afterwards."""

    def keep_host_ahead(self) -> None:
        """Called just before each pass: otherwise a short operator's kernels would wait for the host."""
        if self._device.type == "cuda":
            torch.cuda._sleep(_AHEAD_CYCLES)  # type: ignore[no-untyped-call]

    def after_block(self) -> None:
        """Called after the last pass of a block."""
        self._readings.append(self._sensors.read())

    def reading(self) -> Reading:
        """The mean reading since the last call."""
        found, self._readings = Reading.mean(self._readings), []
        return found


class SustainedLoad(BurstLoad):
    """Products before every block, and on a GPU before every pass, for `block_seconds` and `pass_seconds`."""

    kind = Load.SUSTAINED

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        sensors: Sensors | None = None,
        *,
        block_seconds: float = BLOCK_SECONDS,
        pass_seconds: float = PASS_SECONDS,
    ) -> None:
        super().__init__(device, sensors)
        size = _SIZE[device.type]
        self._left = torch.randn(size, size, device=device, dtype=dtype)
        self._right = torch.randn(size, size, device=device, dtype=dtype)
        self._out = torch.empty_like(self._left)
        self._block_seconds, self._pass_seconds = block_seconds, pass_seconds
        self._product_seconds = 0.0

    def keep_for(self, seconds: float) -> None:
        """Compute products back to back for `seconds`; a GPU always has the next ones queued."""
        count, ended = 0, time.monotonic() + seconds
        began = now = time.monotonic()
        waiting: list[torch.cuda.Event] = []
        while now < ended or not count:
            self._product()
            count += 1
            if self._device.type == "cuda":
                waiting.append(torch.cuda.Event())  # type: ignore[no-untyped-call]
                waiting[-1].record()
                if len(waiting) > 2:
                    waiting.pop(0).synchronize()
            now = time.monotonic()
        if waiting:
            waiting[-1].synchronize()
        self._product_seconds = (time.monotonic() - began) / count

    def before_block(self) -> None:
        """Compute the products, then as in a burst."""
        self.keep_for(self._block_seconds)
        super().before_block()

    def before_pass(self) -> None:
        """Queue products on a GPU; a CPU's other cores keep computing anyway."""
        if self._device.type == "cuda":
            for _ in range(math.ceil(self._pass_seconds / max(self._product_seconds, 1e-6))):
                self._product()

    def keep_host_ahead(self) -> None:
        """Nothing: the products before the pass keep the host ahead."""

    def after_block(self) -> None:
        """As in a burst, while a GPU computes products."""
        self.before_pass()
        super().after_block()

    def _product(self) -> None:
        torch.mm(self._left, self._right, out=self._out)


def sustained_seconds(device: torch.device, *, blocks: int, passes: int) -> float:
    """Seconds that sustained load adds to a point that is measured in `blocks` blocks and `passes` passes."""
    return blocks * BLOCK_SECONDS + (passes * PASS_SECONDS if device.type == "cuda" else 0.0)
