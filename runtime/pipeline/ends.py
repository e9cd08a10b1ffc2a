"""How the last passes of a pipeline end, which is what the update waits for."""

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.pipeline.durations import Times


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """When stages finish, in µs from the step's start.

    `last_start_us`, `last_end_us` [virtual stages, stages, configs]: the pass that completes a chunk's
    gradients, chunks in the order in which that happens (the last of the model first); `idle_from_us`
    [stages, configs]: the end of the stage's last pass.
    """

    last_start_us: Times
    last_end_us: Times
    idle_from_us: Times
