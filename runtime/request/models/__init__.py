"""Models by name, from files, and from Hugging Face's `config.json`."""

from kernelcast.runtime.request.models.found_model import FoundModel
from kernelcast.runtime.request.models.library import (
    built_in_name,
    built_in_names,
    find_model,
    load_model,
    unknown_model,
)

__all__ = ["FoundModel", "built_in_name", "built_in_names", "find_model", "load_model", "unknown_model"]
