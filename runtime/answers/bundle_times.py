"""Times of many questions by the regressors of one bundle, with random draws; and whether its devices have a format."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.answers.asking import OperatorTimes, Question, ask
from kernelcast.runtime.answers.asking_collectives import ask_over_fabric
from kernelcast.runtime.answers.attention_kernel import KernelChange
from kernelcast.runtime.answers.capping import cap_by_device, cap_by_links
from kernelcast.runtime.answers.collective_times import Collectives
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.answers.uncertainty import drawn_times
from kernelcast.runtime.bundle.calibration import Factors
from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.devices import device_named, devices
from kernelcast.runtime.operators import OPERATORS, Key
from kernelcast.runtime.request.fields import Float8Recipe
from kernelcast.runtime.step.recipes import RECIPES


class BundleTimes:
    """Answers questions with the predicted times and `draws` random ones.

    `problems` lists the questions that the bundle cannot answer. `asked` holds all answers with their warnings if
    `with_warnings` is set. `collectives` answers for the fabric, if one is known; `kernel` is the kernel of fused
    attention, if it differs from the measured one; `power_limit_w` the devices', if it is not their usual one.
    """

    def __init__(
        self,
        predictor: Predictor,
        *,
        factors: Factors | None = None,
        draws: int = 0,
        with_warnings: bool = False,
        collectives: Collectives | None = None,
        kernel: KernelChange | None = None,
        power_limit_w: float = 0.0,
    ) -> None:
        self.predictor, self.factors, self.collectives, self.kernel = predictor, factors, collectives, kernel
        self.draws, self.with_warnings, self.power_limit_w = draws, with_warnings, power_limit_w
        self.asked = OperatorTimes()
        self.problems: dict[Key, str] = {}

    def __call__(self, asked: Sequence[Question]) -> NDArray[np.float64]:
        """Times in µs, float64 [questions, 1 + draws]; 0 of what the sum goes without, NaN of a problem."""
        found = self.ask(asked)
        self.problems = found.problems | self.problems
        if self.with_warnings:
            self.asked.add(found)
        times_us = np.zeros((len(asked), 1 + self.draws))
        answered = [row for row, one in enumerate(asked) if one in found.answers]
        # Random times are drawn of answers alone; a problem has none.
        draws = 0 if found.problems else self.draws
        times_us[answered] = drawn_times(found, [asked[row] for row in answered], draws, self.factors)
        return times_us

    def ask(self, questions: Sequence[Question]) -> OperatorTimes:
        """Answers of the bundle's regressors; `collectives`, if any, answers for collectives."""
        over_fabric: list[Question] = []
        others: list[Question] = []
        for one in questions:
            is_over_fabric = self.collectives is not None and OPERATORS[one[0][0]].is_collective
            (over_fabric if is_over_fabric else others).append(one)
        alike: dict[str, Any] = {"factors": self.factors, "with_warnings": self.with_warnings}
        found = ask(self.predictor, others, **alike, kernel=self.kernel)
        cap_by_device(self.predictor.bundle, found, self.power_limit_w)
        if self.collectives is None:
            cap_by_links(self.predictor.bundle, found)
        else:
            found.add(ask_over_fabric(self.collectives, over_fabric, **alike))
        return found


def check_format(recipe: Float8Recipe, bundle: Bundle) -> None:
    """Check that the bundle's devices have units for a recipe, where they are known.

    Raises:
        UsageError: one has none; names devices that have.
    """
    if recipe == "none":
        return
    units = RECIPES[recipe].units
    for fingerprint in bundle.manifest.compute:
        device = device_named(fingerprint.device_name)
        if device is not None and units not in device.flops_per_s:
            known = ", ".join(name for name, one in devices().items() if units in one.flops_per_s)
            raise UsageError(
                field="fp8_recipe",
                found=recipe,
                expected=f"none or another recipe: {device.title} has no units for {units}; {known} have",
            )
