"""The time that a plan takes on a device that is not there, from a bundle of it that ships."""

from collections.abc import Sequence

import numpy as np

from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.answers.sources import source_of
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.hardware.devices import Device, device_named
from kernelcast.runtime.operators import Operator, Vector
from kernelcast.train.dataset import Array


class HardwareTimes:
    """Times of operators on the device of `bundle`; a substitute or published peaks answer for what it lacks."""

    def __init__(self, bundle: Bundle) -> None:
        manifest = bundle.manifest
        self.dtype, self.name = manifest.dtype, manifest.compute[0].device_name
        self.device: Device | None = device_named(self.name)
        self._predictor = Predictor(bundle)

    def calls_us(self, op: Operator, vectors: Sequence[Vector]) -> Array | None:
        """Time of a call in all directions, [vectors] in µs; None where a direction has no answer."""
        entries = self._predictor.bundle.entries
        total = np.zeros(len(vectors))
        for direction in op.directions:
            source = source_of((op.name, direction), entries)
            if source is None:
                return None
            asked = [source.asked(vector, entries[source.answered_by]) for vector in vectors]
            times_us = self._predictor.predict_us(*source.answered_by, [vector for vector, _ in asked])
            total += times_us * [factor for _, factor in asked]
        return total
