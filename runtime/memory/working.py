"""Memory in use on top of what is kept: the gradients on their way at the fullest moment, buffers, workspaces of
cuBLAS, NCCL's buffers.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from kernelcast.runtime.memory.contents import Contents, LayerContents
from kernelcast.runtime.memory.in_flight import FULL, SELECTIVE, Floats, Rows
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.model import ModelConfig
from kernelcast.runtime.step.layouts import Layouts
from kernelcast.runtime.step.modules import FROZEN_BYTES, MODULES, RECIPES
from kernelcast.runtime.step.op import Number, flag

_TOKEN_ID_BYTES = 8


class Working(NamedTuple):
    """Bytes in use beyond states, kept activations and logits at moments of a backward pass (loss, output product, MLP,
    attention, embedding), in buffers, and in fragments, each float64 [rows].
    """

    moments: tuple[Floats, Floats, Floats, Floats, Floats]
    buffers: Floats
    fragments: Floats

    @property
    def peak(self) -> Floats:
        """Of the fullest moment."""
        return reduce(np.maximum, self.moments)


def working_bytes(rows: Rows, contents: Contents) -> Working:
    """Bytes in use at a device's fullest moment beyond states, kept activations and logits, and in fragments.

    The backward pass of the micro-batch that is furthest frees what was kept as it goes, so the fullest moment is one
    of five, with hidden size d, MLP width f, and v·d the vocabulary matrix:

    - loss: the gradients of the logits, see layers/loss.py;
    - output product: the gradients of logits, hidden state and weights (v·d), with sequence parallelism its gathered
      input and the gradient of that too, the log-probabilities no longer;
    - last layer's MLP: the gradient of its output (d), and the larger of f with the down projection's weight gradient
      (f·d) and the gathered gradient of its output, and of 2f for SwiGLU's halves; and what full recomputation dropped,
      of all layers that it runs at once;
    - last layer's attention, its MLP freed: twice its scores if they exist, and what selective recomputation dropped;
    - embedding, the first chunk's layers freed: its weight gradient (v·d).

    Weight gradients are made whole and then added, as from the second micro-batch of an update on; modules that add
    them by the product itself keep an unused one per weight matrix. CUDA graphs of modules have a pool of their own: of
    attention's backward pass, with static gradients of a layer's output and input. Fragments are what a layer's forward
    pass freed in blocks smaller than a tensor of logits, which torch's allocator has reserved on top.
    """
    layers, loss, element = contents.layers, contents.loss, contents.sizes.element_bytes
    is_trained = not contents.parameters.are_frozen
    gathered, keeps = contents.gathered, contents.sizes.modules.keeps_gathered
    log_probabilities = rows.last * loss.log_probabilities
    moments = [_Moments.of(rows, layer, gathered) for layer in layers]

    at_loss, of_logits = loss.gradients
    loss_moment = 1.0 * rows.last * at_loss
    block_input = layers[0].block_input
    of_matrix = is_trained * element * loss.matrix
    product = of_logits + of_matrix + block_input + (1 if keeps else 2) * gathered
    output = rows.last * product - log_probabilities
    has_layers = rows.has_layers
    mlp, attention = (
        np.where(has_layers, largest_of(rows, each) - log_probabilities, 0.0)
        for each in ([one.mlp for one in moments], [one.attention for one in moments])
    )
    kept = sum(count * one.kept for count, one in zip(rows.layers, moments, strict=True))
    in_chunk = rows.chunk_layers / np.maximum(1.0, sum(rows.layers))
    embedding = rows.first * of_matrix + block_input - in_chunk * kept

    ids = _TOKEN_ID_BYTES * contents.tokens * (rows.first * rows.live_first + rows.last * rows.live_last)
    accumulates = int(contents.sizes.modules.accumulates_in_products and is_trained)
    unused = accumulates * element * largest_of(rows, [layer.matrices for layer in layers])
    dequantised = element * largest_of(rows, [layer.dequantised for layer in layers])
    pools = 2 * block_input + largest_of(rows, [layer.attention_gradient for layer in layers])
    pools = pools * (rows.layout.cuda_graphs == "partial")
    buffers = np.where(has_layers, layers[0].buffers + unused + pools, 0.0) + ids + dequantised
    is_selective, is_full = rows.recompute == SELECTIVE, rows.recompute == FULL
    freed = [np.where(is_selective, one.freed[0], is_full * one.freed[1]) for one in layers]
    at_end = np.maximum(loss_moment, output)
    is_end = rows.last * (at_end >= np.maximum(np.maximum(mlp, attention), embedding))
    return Working(
        moments=(loss_moment, output, mlp, attention, embedding),
        buffers=buffers,
        fragments=np.where(is_end, largest_of(rows, freed), 0.0),
    )


class _Moments(NamedTuple):
    """A layer's moments in use (without log-probabilities), and what it keeps per micro-batch, each float64 [rows]."""

    mlp: Floats
    attention: Floats
    kept: Floats

    @classmethod
    def of(cls, rows: Rows, layer: LayerContents, gathered: Number) -> Self:
        block_input = layer.block_input
        total = block_input + layer.kept
        of_attention, of_mlp = (np.where(rows.recompute == SELECTIVE, part, 0.0) for part in layer.dropped)
        recomputed = np.where(rows.recompute == FULL, rows.together * total - block_input, 0.0)
        mlp = block_input + np.maximum(gathered + layer.at_projection, layer.at_activation) + recomputed
        attention = layer.attention_gradient + block_input + recomputed + of_attention
        return cls(
            mlp=mlp + of_mlp,
            attention=attention - (layer.mlp - of_mlp),
            kept=np.where(rows.recompute == FULL, block_input, total - of_attention - of_mlp),
        )


def largest_of(rows: Rows, values: Sequence[Number]) -> Floats:
    """The largest of the values by kind of layer, of the kinds that a stage has, float64 [rows]; 0 without layers."""
    found = [np.where(count > 0, value, -np.inf) for count, value in zip(rows.layers, values, strict=True)]
    largest = reduce(np.maximum, found)
    return np.where(rows.has_layers, largest, 0.0)


_MIB = 1 << 20
_HANDLES = 2
"""torch has a cuBLAS handle per thread, each with a workspace: the program's and autograd's (CUDABlas.cpp)."""
_BEFORE_HOPPER = frozenset({"Volta", "Turing", "Ampere", "Ada Lovelace"})
_TORCH_BYTES = (4096 * 2 * 1024 + 16 * 8 * 1024, 32 * _MIB)
"""Before Hopper and from it on: ":4096:2:16:8" in KiB, and 32 MiB (CUDABlas.cpp, `parseChosenWorkspaceSize`)."""
_ENGINE_BYTES = (4 * _MIB, 32 * _MIB)
"""TransformerEngine's (`get_cublas_workspace_size_bytes`)."""
_STREAMS: Mapping[str, int] = {"products": 3, "experts": 4}
"""Its streams, each with a workspace: of products that are cut to overlap (else one), and of experts' grouped products,
which have others (`get_cublas_workspace`)."""


def workspace_bytes(
    model: ModelConfig, layout: Parallelism, tp: Number, architecture: str, torch_bytes: int | None = None
) -> Number:
    """Bytes of a device of `architecture` ("" counts as Hopper), by a handle's `torch_bytes`; `tp` may be [rows]."""
    is_late = architecture not in _BEFORE_HOPPER
    own = _TORCH_BYTES[is_late] if torch_bytes is None else torch_bytes
    engine: Number = 0
    if MODULES[layout.kept_by].has_engine:
        is_cut = flag(tp > 1) * (layout.tensor_overlap == "products")
        streams = 1 + (_STREAMS["products"] - 1) * is_cut
        streams += _STREAMS["experts"] if model.experts else 0
        engine = streams * _ENGINE_BYTES[is_late]
    return _HANDLES * own + engine


def copies_bytes(layout: Parallelism, weight_bytes: int, architecture: str) -> tuple[float, float]:
    """Bytes per entry of a weight in 8 or 4 bit: what `weight_bytes` gives up, and copies that stay, as it is and
    transposed, which Blackwell does without (TransformerEngine, `is_non_tn_fp8_gemm_supported`).
    """
    if layout.frozen_weights != "same":
        return weight_bytes - FROZEN_BYTES[layout.frozen_weights], 0
    if not MODULES[layout.kept_by].caches_float8:
        return 0, 0
    transposed = int(layout.fp8_recipe != "tensorwise" or architecture != "Blackwell")
    if layout.lora_rank and layout.fp8_weights:
        transposed = (
            0  # of a frozen weight it is made in every backward pass: nothing says that it stays valid
        )
    one = RECIPES[layout.fp8_recipe].entry_bytes if layout.fp8_recipe != "none" else 0
    return (weight_bytes - one, transposed * one) if layout.fp8_weights else (0, (1 + transposed) * one)


_PAIR_BYTES, _GROUP_BYTES = 342 * _MIB, 392 * _MIB
"""A communicator of two and of more devices: `nccl_mem` in aiconfigurator's system files (NCCL 2.23 to 2.27).

By the code of NCCL a channel needs 12 MiB per neighbour: 2 MiB where it sends, 10 MiB where it receives (4 MiB, 4.7 MiB
for LL128 and 0.5 MiB for LL, in pages of 2 MiB: `computeBuffSizes`, transport/p2p.cc). 24 channels are 288 MiB. Trees
among more than two, and before NCCL 2.22 256 MiB that connections of the network share (32 channels · 16 steps ·
512 KiB: `sharedNetBuffersInit`), make the 544 and 688 MiB that 2 and 4 A100 were seen to take (NCCL issue 964).
"""
_BY_SIZE = np.array([0, 0, _PAIR_BYTES, _GROUP_BYTES], dtype=np.int64)
_PEER_BYTES = 32 * 12 * _MIB
"""An all-to-all connects every pair of a node by 32 channels: 2.8 GB for the 8 H100 that took 3.3 (NCCL issue 1685)."""
_NODE_DEVICES = 8


def communicator_bytes(layouts: Layouts) -> dict[str, NDArray[np.int64]]:
    """Bytes of NCCL's buffers on a device by group, int64 [layouts], which torch's allocator does not count."""
    tp, cp, ep, expert_tp = (layouts[name] for name in ("tp", "cp", "ep", "expert_tp"))
    cut, replicas = ep * expert_tp, layouts.replicas
    sizes = {
        "tp": tp,
        "cp": cp,
        "pp": layouts["pp"],
        "dp": replicas,
        "ep": ep,
        "expert tp": expert_tp,
        "expert dp": np.where(cut > 1, tp * replicas // cut, 1),
    }
    found = {name: _BY_SIZE[np.minimum(size, 3)] for name, size in sizes.items()}
    if layouts.like.expert_dispatcher == "all_to_all":
        found["ep"] += _PEER_BYTES * _peers(ep, expert_tp)
    if layouts.like.context_exchange == "all_to_all":
        found["cp"] += _PEER_BYTES * _peers(cp, tp)
    return found


def _peers(size: NDArray[np.int64], apart: NDArray[np.int64]) -> NDArray[np.int64]:
    """Other devices of a group in the same node, where its members are `apart` ranks from each other."""
    found: NDArray[np.int64] = np.minimum(size, np.maximum(1, _NODE_DEVICES // apart)) - 1
    return found
