"""The load of a device around the passes that are measured: some repetitions in a burst, or work that lasts.

A burst runs at clocks, power and temperature that a training step of seconds may not hold. Under sustained load the
device computes matrix products back to back for seconds before the first measurement, before every block of
repetitions, and on a GPU between the passes as well; on a CPU all other cores compute meanwhile (busy_cores.py).
Products, whatever is measured: a step consists mostly of them, and an operator finds the clocks that they left.

What sensors state is read at the end of every block, while the device is still under that load.
"""

import math
import time

import torch

from kernelcast.collector.machine.sensors import NoSensors, Reading, Sensors
from kernelcast.runtime.hardware.load import Load

FIRST_SECONDS = 10.0
"""Of work before a level's first measurement: power limits act within milliseconds to seconds. Heat takes minutes; what
it costs of the clock is small, and the later points of a collection have it."""
BLOCK_SECONDS = 0.5
"""Of work before every block of repetitions, to make up for what the host does between them."""
PASS_SECONDS = 0.02
"""Of work on a GPU before every pass: several times the period in which its power is controlled, and longer than the
launches of any operator take, so that the host stays ahead."""

# Rows of the square products: a GPU's take a millisecond or more, a CPU's fit into a core's own caches.
_SIZE = {"cpu": 256, "cuda": 8192}
_AHEAD_CYCLES = 500_000  # of a GPU's clock, some 0.3 ms: longer than the launches of an operator take


class BurstLoad:
    """Nothing but the measured passes; on a GPU an idle kernel keeps the host ahead of the device, as in a step."""

    kind = Load.BURST

    def __init__(self, device: torch.device, sensors: Sensors | None = None) -> None:
        self._device = device
        self._sensors = sensors or NoSensors()
        self._readings: list[Reading] = []

    def before_block(self) -> None:
        """Called before the passes of a block, when nothing else is measured."""
        self._sensors.read()  # power counts from here

    def before_pass(self) -> None:
        """Called before each pass, before the caches are set; what it starts on a GPU need not end."""

    def keep_host_ahead(self) -> None:
        """Called just before each pass: a short operator's kernels, launched one by one, would wait for the host."""
        if self._device.type == "cuda":
            torch.cuda._sleep(_AHEAD_CYCLES)  # type: ignore[no-untyped-call]

    def after_block(self) -> None:
        """Called after the last pass of a block."""
        self._readings.append(self._sensors.read())

    def reading(self) -> Reading:
        """The mean of what was read since the last call."""
        found, self._readings = Reading.mean(self._readings), []
        return found


class SustainedLoad(BurstLoad):
    """Products before every block, and on a GPU before every pass.

    `block_seconds` and `pass_seconds` are how long they take.
    """

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
        """Compute products for as long, back to back: a GPU always has the next ones queued."""
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
        """As of a burst, after the products."""
        self.keep_for(self._block_seconds)
        super().before_block()

    def before_pass(self) -> None:
        """Queue products on a GPU; a CPU's cores have never stopped."""
        if self._device.type == "cuda":
            for _ in range(math.ceil(self._pass_seconds / max(self._product_seconds, 1e-6))):
                self._product()

    def keep_host_ahead(self) -> None:
        """The products before the pass do that."""

    def after_block(self) -> None:
        """As of a burst, while a GPU computes products."""
        self.before_pass()
        super().after_block()

    def _product(self) -> None:
        torch.mm(self._left, self._right, out=self._out)


def sustained_seconds(device: torch.device, *, blocks: int, passes: int) -> float:
    """Seconds that sustained load adds to the measuring of a point, with as many blocks and passes in all of them."""
    return blocks * BLOCK_SECONDS + (passes * PASS_SECONDS if device.type == "cuda" else 0.0)
