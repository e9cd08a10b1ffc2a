"""Nodes and GPUs that a scheduler gives a job, as far as known before it runs."""

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.request.layout import Parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Nodes and GPUs of a job; None where unknown. `origin` describes where the numbers come from."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    gpus: int | None = None
    origin: str = ""

    def check(self, layout: Parallelism) -> None:
        """Check that layout and job have the same number of GPUs, if the job's is known.

        Raises:
            UsageError: it has more or fewer.
        """
        if self.gpus is not None and self.gpus != layout.world_size:
            raise UsageError(
                f"layout {layout.degrees} has {layout.world_size} GPU(s), "
                f"expected {self.gpus}, as the job asks for ({self.origin})"
            )
