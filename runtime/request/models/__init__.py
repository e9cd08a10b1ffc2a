"""Models by name, from files, and from Hugging Face's `config.json`."""

from kernelcast.runtime.request.models.library import BUILT_IN, load_model

__all__ = ["BUILT_IN", "load_model"]
