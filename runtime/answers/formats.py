"""Whether a device multiplies in the format of a recipe."""

from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.devices import device_named, devices
from kernelcast.runtime.request.fields import Float8Recipe
from kernelcast.runtime.step.recipes import RECIPES


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
                expected=f"none or another: a {device.title} has no units for {units}; {known} have",
            )
