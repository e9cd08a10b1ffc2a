"""The fabric of a request: by name, or by the fields of a description; never a file of this machine."""

from collections.abc import Mapping

from kernelcast.runtime.answers import fabric_choice
from kernelcast.runtime.answers.fabric_choice import FabricChoice, measured_fabric_names
from kernelcast.runtime.errors import UsageError, error_context
from kernelcast.runtime.hardware.fabric_file import fabric_from_values, fabric_named, shipped_fabrics


def find_fabric(asked: object, known: Mapping[str, FabricChoice]) -> FabricChoice | None:
    """The fabric that a request asks for; None where it asks for none.

    A text is the name of one of `known` (the site's) or of one that ships. An object holds the fields of a description.

    Raises:
        UsageError: no such fabric, or wrong fields.
    """
    if asked is None:
        return None
    if isinstance(asked, dict):
        with error_context(kind=UsageError):
            return fabric_from_values(asked, where="fabric")
    if isinstance(asked, str) and asked in known:
        return known[asked]
    if isinstance(asked, str) and asked in shipped_fabrics():
        return fabric_named(asked)
    if isinstance(asked, str) and asked in measured_fabric_names():
        return fabric_choice.find_fabric(asked)
    names = ", ".join((*known, *shipped_fabrics(), *measured_fabric_names()))
    raise UsageError(field="fabric", found=asked, expected=f"the fields of a description, or one of {names}")
