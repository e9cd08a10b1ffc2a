"""Activations that are not kept but computed again in the backward pass."""

from collections.abc import Callable

from torch import Tensor
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop


def checkpointed(call: Callable[..., Tensor], *inputs: Tensor, when: bool) -> Tensor:
    """`call(*inputs)`, its inside computed again in the backward pass `when` that is asked for."""
    if not when:
        return call(*inputs)
    # As in frameworks, all of it runs again; torch by itself would stop behind the last tensor that is kept.
    with set_checkpoint_early_stop(False):
        # There is no dropout here, so no state of random numbers to bring back.
        result: Tensor = checkpoint(call, *inputs, use_reentrant=False, preserve_rng_state=False)
    return result
