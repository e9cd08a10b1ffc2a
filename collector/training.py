"""Measures real training steps here: what predictions are compared with (docs/method.md, A step)."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kernelcast.collector.gpt import require_trainable
from kernelcast.collector.launch import run_workers
from kernelcast.runtime import ModelConfig, Parallelism
from kernelcast.runtime.errors import UsageError
from kernelcast.store import quiet_us

_WORKER = "kernelcast.collector.training_worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """One rank's traced steps: seconds per micro-batch forward (with the loss) and backward, and the optimizer."""

    forward_s: float
    backward_s: float
    optimizer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSteps:
    """Wall-clock seconds of every timed step, and the stages' components of one traced step each round."""

    steps_s: tuple[float, ...]
    stages: tuple[StageTimes, ...]

    @property
    def quiet_s(self) -> float:
        """10th percentile, the statistic that quiet predictions are compared with."""
        return quiet_us([s * 1e6 for s in self.steps_s]) / 1e6

    @property
    def minimum_s(self) -> float:
        """Fastest step."""
        return min(self.steps_s)

    @property
    def median_s(self) -> float:
        """Middle step."""
        return sorted(self.steps_s)[len(self.steps_s) // 2]

    def joined(self, other: "TrainingSteps") -> "TrainingSteps":
        """Both rounds' steps; of each stage's components the faster, as the quieter one."""
        return TrainingSteps(
            steps_s=self.steps_s + other.steps_s,
            stages=tuple(
                StageTimes(
                    forward_s=min(a.forward_s, b.forward_s),
                    backward_s=min(a.backward_s, b.backward_s),
                    optimizer_s=min(a.optimizer_s, b.optimizer_s),
                )
                for a, b in zip(self.stages, other.stages, strict=True)
            ),
        )


def check_trainable(model: ModelConfig, parallelism: Parallelism) -> None:
    """Refuse what `train_steps` does not do, before anything runs.

    Raises:
        UsageError: the field, what was found, what is trained.
    """
    require_trainable(model)
    if parallelism.mp != 1 or parallelism.dp != 1:
        raise UsageError(
            f"mp is {parallelism.mp} and dp is {parallelism.dp}, real steps train mp = dp = 1 only"
        )
    if parallelism.micro_batches < parallelism.pp:
        raise UsageError(
            f"micro_batches is {parallelism.micro_batches}, real steps over {parallelism.pp} pipeline stages "
            f"need {parallelism.pp} or more (1F1B)"
        )


def train_steps(
    model: ModelConfig,
    parallelism: Parallelism,
    *,
    stage_encoders: Sequence[int],
    vocabulary_size: int,
    steps: int,
    warm_up_steps: int,
    seed: int,
    device: str = "cpu",
    threads: int = 1,
    timeout_s: float = 600.0,
) -> TrainingSteps:
    """Train `model` for real in pp processes under torchrun and time its steps.

    `vocabulary_size` is the padded one. Needs mp = dp = 1.

    Raises:
        UsageError: the model or layout is not one that can be trained here.
        DataError: a worker failed or the timeout ran out.
    """
    check_trainable(model, parallelism)
    config = {
        "model": asdict(model),
        "stage_encoders": list(stage_encoders),
        "vocabulary_size": vocabulary_size,
        "micro_batch": parallelism.micro_batch,
        "micro_batches": parallelism.micro_batches,
        "steps": steps,
        "warm_up_steps": warm_up_steps,
        "seed": seed,
        "device": device,
        "backend": "nccl" if device == "cuda" else "gloo",
        "threads": threads,
    }
    with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
        request, result = Path(folder, "request.json"), Path(folder, "result.json")
        request.write_text(json.dumps(config))
        run_workers(
            _WORKER,
            [str(request), str(result)],
            processes=parallelism.pp,
            threads=threads,
            timeout_s=timeout_s,
        )
        answer = json.loads(result.read_text())
    return TrainingSteps(
        steps_s=tuple(answer["steps_s"]), stages=tuple(StageTimes(**stage) for stage in answer["stages"])
    )
