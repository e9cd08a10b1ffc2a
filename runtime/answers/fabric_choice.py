"""Which fabric a question is about: a description, or a bundle that holds measured collectives."""

import os
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

from kernelcast.runtime.bundle.file import Bundle, read_content, verified_bundle
from kernelcast.runtime.errors import DataError
from kernelcast.runtime.hardware.fabric import Fabric
from kernelcast.runtime.hardware.fabric_file import fabric_named, read_fabric
from kernelcast.runtime.operators import OPERATORS

_BUNDLE = ".kcast"


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricBundle:
    """A bundle whose collectives answer; equal by what it holds, and small enough to be sent to other machines."""

    name: str
    digest: str
    content: bytes = field(compare=False, repr=False)

    @property
    def bundle(self) -> Bundle:
        """The bundle, verified."""
        return _bundle(self)


FabricChoice: TypeAlias = Fabric | FabricBundle


def find_fabric(wanted: str | os.PathLike[str]) -> FabricChoice:
    """A shipped description by name, a TOML file, or a bundle (`.kcast`) that holds measured collectives.

    Raises:
        UsageError: a name that no shipped description has.
        DataError: a file that is missing or damaged, or a bundle without collectives.
    """
    text = os.fspath(wanted)
    if text.endswith(_BUNDLE):
        content = read_content(Path(text))
        found = FabricBundle(name=text, digest=sha256(content).hexdigest(), content=content)
        if not any(OPERATORS[name].is_collective for name, _ in found.bundle.entries):
            raise DataError(f"fabric {text}: the bundle holds no collectives, expected one that does")
        return found
    if "/" in text or text.endswith(".toml"):
        return read_fabric(text)
    return fabric_named(text)


@lru_cache(maxsize=8)
def _bundle(found: FabricBundle) -> Bundle:
    return verified_bundle(Path(found.name), found.content)
