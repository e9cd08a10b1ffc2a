"""Real and predicted steps of the demo: trains each layout here, compares, and stores both."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kernelcast.collector.machine.probe import Fingerprints
from kernelcast.collector.own_run import own_run
from kernelcast.collector.training.job import TrainingEffort, TrainingJob, Turn
from kernelcast.collector.training.job_result import JobResult, job_results
from kernelcast.collector.training.steps import train_jobs
from kernelcast.demo.config import DemoConfig
from kernelcast.runtime import Estimate, Estimator
from kernelcast.store import Database, MeasuredStep, utc_now
from kernelcast.validate.run_steps import layout_columns, store_predictions

# Each stage is a process with one thread.
THREADS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One layout: the prediction from operators' quiet times, and the real steps."""

    estimate: Estimate
    steps: JobResult

    @property
    def label(self) -> str:
        """`pp-tp-dp`."""
        return self.steps.job.label

    @property
    def error(self) -> float:
        """Predicted against the quiet (10th percentile) measured step, as a fraction; negative is too short."""
        return self.estimate.step_time_s / self.steps.quiet_s - 1

    def components(self) -> list[tuple[str, float, float | None]]:
        """The paper's components that this layout has: name, predicted seconds, and those measured in a traced step.

        None where the trace cannot separate it.
        """
        measured = self.steps.components_s()
        predicted = self.estimate.components.to_dict()
        return [(name, time_s, measured.get(name)) for name, time_s in predicted.items() if time_s > 0]


def predict_layouts(config: DemoConfig, bundle: Path) -> list[Estimate]:
    """An estimate per layout. All processes run on this one node."""
    estimator = Estimator.load(bundle)
    return [estimator.predict(model=config.model, parallelism=layout) for layout in config.layouts]


def train_layouts(
    config: DemoConfig, estimates: Sequence[Estimate], on_progress: Callable[[int, int, str], None]
) -> list[Comparison]:
    """Train every layout for real, alternating between layouts."""
    jobs = [TrainingJob(model=config.model, parallelism=layout) for layout in config.layouts]
    done = 0

    def on_turn(turn: Turn) -> None:
        nonlocal done
        done += 1
        on_progress(done, config.rounds * len(jobs), jobs[turn.job].label)

    turns = train_jobs(
        jobs,
        effort=TrainingEffort(
            rounds=config.rounds, warm_up_steps=config.warm_up_steps, steps=config.timed_steps
        ),
        seed=config.seed,
        threads=THREADS,
        on_turn=on_turn,
    )
    return [
        Comparison(estimate=estimate, steps=steps)
        for estimate, steps in zip(estimates, job_results(jobs, turns), strict=True)
    ]


def store_comparisons(database: Database, keys: Fingerprints, comparisons: Sequence[Comparison]) -> None:
    """Store the measured steps and their predictions."""
    run = own_run("demo", keys)
    database.add_run(run, keys.compute, keys.fabric, keys.software)
    for comparison in comparisons:
        step = _measured_step(run.id, comparison)
        database.add(step)
        store_predictions(database, step, [comparison.estimate])


def _measured_step(run_id: str, comparison: Comparison) -> MeasuredStep:
    return MeasuredStep.from_repetitions(
        run_id=run_id,
        repetitions_s=comparison.steps.steps_s,
        model=asdict(comparison.estimate.model),
        **layout_columns(comparison.estimate.parallelism),
        dtype=comparison.estimate.provenance.dtype,
        framework="torch.distributed.pipelining",
        options={"layer_counts": list(comparison.estimate.layer_counts)},
        components_s=comparison.steps.components_s(),
        measured_at=utc_now(),
    )
