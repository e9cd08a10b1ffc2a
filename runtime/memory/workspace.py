"""Buffers that a process holds whatever it trains: workspaces of matrix products, by GPU architecture."""

from collections.abc import Mapping

from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.modules import MODULES

_MIB = 1 << 20
_HANDLES = 2
"""torch has a cuBLAS handle per thread, each with a workspace: the program's and autograd's (CUDABlas.cpp)."""
_BEFORE_HOPPER = frozenset({"Volta", "Turing", "Ampere", "Ada Lovelace"})
_TORCH_BYTES = (4096 * 2 * 1024 + 16 * 8 * 1024, 32 * _MIB)
"""Before Hopper and from it on: ":4096:2:16:8" in KiB, and 32 MiB (CUDABlas.cpp, `parseChosenWorkspaceSize`)."""
_ENGINE_BYTES = (4 * _MIB, 32 * _MIB)
"""TransformerEngine's (`get_cublas_workspace_size_bytes`)."""
_STREAMS: Mapping[str, int] = {"products": 3, "experts": 4}
"""Its streams, each with a workspace, of products that are cut to overlap, and of experts' products."""


def workspace_bytes(
    model: ModelConfig, layout: Parallelism, architecture: str, torch_bytes: int | None = None
) -> int:
    """Bytes of a device of `architecture`, "" for none that is known, which counts as Hopper.

    `torch_bytes`: a handle's, as CUBLAS_WORKSPACE_CONFIG sets it.
    """
    is_late = architecture not in _BEFORE_HOPPER
    own = _TORCH_BYTES[is_late] if torch_bytes is None else torch_bytes
    engine = 0
    if MODULES[layout.kept_by].has_engine:
        streams = max(
            _STREAMS["experts"] if model.experts else 1,
            _STREAMS["products"] if layout.tensor_overlap == "products" else 1,
        )
        engine = streams * _ENGINE_BYTES[is_late]
    return _HANDLES * own + engine


def float8_copies_bytes(layout: Parallelism, architecture: str) -> tuple[int, int]:
    """Bytes per entry of a weight in 8 bit: what its 16-bit form gives up, and its copies that stay.

    It is kept as it is, for the output, and transposed, for the input's gradient, which Blackwell's products with a
    scale per tensor read without (TransformerEngine, `is_non_tn_fp8_gemm_supported`).
    """
    if not MODULES[layout.kept_by].caches_float8:
        return 0, 0
    transposed = int(layout.fp8_recipe != "tensorwise" or architecture != "Blackwell")
    if layout.lora_rank and layout.fp8_weights:
        transposed = (
            0  # of a frozen weight it is made in every backward pass: nothing says that it stays valid
        )
    return (1, transposed) if layout.fp8_weights else (0, 1 + transposed)
