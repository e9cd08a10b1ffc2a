"""GPipe: all forward passes, then all backward passes. The longest path has a closed form."""

import numpy as np

from kernelcast.runtime.pipeline.durations import Durations, Ends, Times


def gpipe(durations: Durations, micro_batches: int) -> Ends:
    """Evaluate a GPipe schedule for all configurations: micro-batches take the same times, so the longest path steps
    through them at the stage with the longest pass: F(s, i) ends at the sum of passes and sends up to s + i · the
    longest up to s; the same for backward paths.
    """
    forward, send_forward = durations.forward_us.T, durations.send_forward_us.T  # [stages, configs]
    backward, send_backward = durations.backward_us.T, durations.send_backward_us.T
    pp, repeats = forward.shape[0], micro_batches - 1
    overlap = durations.overlap
    if overlap is None:
        arrival = np.zeros_like(forward)
        np.cumsum((forward + send_forward)[:-1], axis=0, out=arrival[1:])
        forward_end = arrival + forward + repeats * np.maximum.accumulate(forward, axis=0)
    else:
        forward_end = _after_longer_first(forward, send_forward, overlap.first_us.T, repeats)
    # Paths that enter the backward passes at stage k (row k) and have come down to the stage at hand.
    path, longest = forward_end.copy(), np.zeros_like(forward)
    end = np.empty_like(forward)
    for stage in range(pp - 1, -1, -1):
        if stage + 1 < pp:
            path[stage + 1 :] += send_backward[stage + 1]
        path[stage:] += backward[stage]
        np.maximum(longest[stage:], backward[stage], out=longest[stage:])
        end[stage] = (path[stage:] + repeats * longest[stage:]).max(axis=0)
        if overlap is not None:
            if stage + 1 < pp:
                np.maximum(
                    end[stage], end[stage + 1] + send_backward[stage + 1] + backward[stage], out=end[stage]
                )
            end[stage] += overlap.last_us.T[stage]
    start = end - backward if overlap is None else end - backward - overlap.last_us.T
    return Ends(last_start_us=start[None], last_end_us=end[None], idle_from_us=end)


def _after_longer_first(forward: Times, send: Times, longer: Times, repeats: int) -> Times:
    """When the forward passes of every stage end [stages, configs], the first of each `longer`: a path leaves the first
    micro-batch at a stage k (row k), then goes where a pass is longest.
    """
    path, longest = np.zeros_like(forward), np.zeros_like(forward)
    end, first = np.empty_like(forward), np.zeros_like(forward[0])
    for stage in range(len(forward)):
        if stage:
            first += send[stage - 1]
            path[:stage] += send[stage - 1] + forward[stage]
        first += forward[stage] + longer[stage]
        path[stage] = first
        np.maximum(longest[: stage + 1], forward[stage], out=longest[: stage + 1])
        end[stage] = (path[: stage + 1] + repeats * longest[: stage + 1]).max(axis=0)
    return end
