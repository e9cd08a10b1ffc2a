"""Real training steps on this machine: measured, stored, compared with predictions (docs/validation.md, Real steps)."""

from collections.abc import Callable
from dataclasses import dataclass, field

from kernelcast.collector.machine.probe import Fingerprints
from kernelcast.collector.own_run import own_run
from kernelcast.collector.training.job import TrainingEffort, TrainingJob, Turn
from kernelcast.collector.training.job_result import JobResult
from kernelcast.collector.training.steps import train_jobs
from kernelcast.runtime import Cluster, DataError, Estimate, Estimator
from kernelcast.runtime.errors import UsageError, error_context
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.request.fields import TimelineKind
from kernelcast.store import Database, MeasuredStep
from kernelcast.validate.run_config import RunConfig
from kernelcast.validate.run_report import ComparedJob, RunReport
from kernelcast.validate.run_steps import COMMAND, known_steps, step_of, store_predictions

Progress = Callable[[int, int, str], None]
"""Called after every turn: turns done and in total, over all repetitions, and the layout of the last one."""
_BOTH: tuple[TimelineKind, ...] = ("simulate", "closed-form")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How much is measured, and where. `steps` per repetition are spread over the configuration's rounds."""

    repetitions: int = 3
    steps: int = 20
    device: str = "cpu"
    threads: int = 1
    timeout_s: float = 300.0
    again: bool = False


def predict_jobs(config: RunConfig, estimator: Estimator) -> dict[TrainingJob, tuple[Estimate, Estimate]]:
    """The simulated timeline and the closed form of every configuration, all processes on this one node."""
    dtype = estimator.bundle.manifest.dtype
    found = {}
    for job in config.jobs:
        if job.dtype != dtype:
            raise UsageError(
                f"bundle {estimator.bundle.path} was measured in {dtype}, but the configuration is in {job.dtype}"
            )
        asked = values_of(job, "model", "parallelism", "bucket_entries")
        asked["cluster"] = Cluster(gpus_per_node=job.parallelism.world_size)
        with error_context(f"{job.model.name} ({job.label})"):
            simulated, closed = (estimator.predict(**asked, timeline=one) for one in _BOTH)
        found[job] = (simulated, closed)
    return found


def validate_run(
    database: Database,
    config: RunConfig,
    estimator: Estimator,
    keys_of: Callable[[int], Fingerprints],
    options: RunOptions,
    on_progress: Progress = lambda done, total, label: None,
) -> RunReport:
    """Train configurations missing from the database, store each repetition, and compare with predictions.

    `keys_of` gives the fingerprints for a number of processes on this node. UsageError or DataError, before anything is
    trained, where a configuration cannot be predicted; DataError where a worker fails: turns before that are stored.
    """
    predicted = predict_jobs(config, estimator)
    known = (
        {} if options.again else dict(known_steps(database, keys_of, config.jobs, least_steps=options.steps))
    )
    wanted = [(job, number) for number in range(1, options.repetitions + 1) for job in config.jobs]
    total = config.rounds * len([one for one in wanted if one not in known])
    recorder = _Recorder(
        database=database, keys_of=keys_of, config=config, total=total, on_progress=on_progress
    )
    for repetition in range(1, options.repetitions + 1):
        missing = [job for job in config.jobs if (job, repetition) not in known]
        if missing:
            try:
                _train(missing, repetition, config, options, recorder)
            except DataError as error:
                stored = len(recorder.steps) + len([one for one in wanted if one in known])
                raise DataError(f"{error}; {stored} of {len(wanted)} measurements are stored") from error
    known |= recorder.steps
    compared = []
    for job in config.jobs:
        steps = tuple(known[job, number] for number in range(1, options.repetitions + 1))
        simulated, closed = predicted[job]
        for step in steps:
            store_predictions(database, step, (simulated, closed))
        compared.append(ComparedJob(job=job, simulated=simulated, closed_form=closed, steps=steps))
    keys = keys_of(1)
    return RunReport(
        jobs=tuple(compared),
        hardware=keys.compute.description,
        software=keys.software.description,
        same_hardware=keys.compute.digest in {one.digest for one in estimator.bundle.manifest.compute},
    )


def _train(
    jobs: list[TrainingJob], repetition: int, config: RunConfig, options: RunOptions, recorder: "_Recorder"
) -> None:
    """Train jobs once; turns that finished before an error or an interrupt are stored."""
    recorder.begin(jobs, repetition)
    try:
        train_jobs(
            jobs,
            effort=TrainingEffort(
                rounds=config.rounds,
                warm_up_steps=config.warm_up_steps,
                steps=-(-options.steps // config.rounds),
            ),
            seed=config.seed,
            device=options.device,
            threads=options.threads,
            timeout_s=options.timeout_s,
            on_turn=recorder.take,
        )
    except (DataError, KeyboardInterrupt):
        recorder.keep_unfinished()
        raise


@dataclass(slots=True, kw_only=True)
class _Recorder:
    """Gathers the turns of a repetition and stores each job's step after its last one."""

    database: Database
    keys_of: Callable[[int], Fingerprints]
    config: RunConfig
    total: int
    on_progress: Progress
    done: int = 0
    jobs: list[TrainingJob] = field(default_factory=list)
    repetition: int = 0
    turns: dict[int, list[Turn]] = field(default_factory=dict)
    steps: dict[tuple[TrainingJob, int], MeasuredStep] = field(default_factory=dict)

    def begin(self, jobs: list[TrainingJob], repetition: int) -> None:
        self.jobs, self.repetition, self.turns = jobs, repetition, {}

    def take(self, turn: Turn) -> None:
        turns = self.turns.setdefault(turn.job, [])
        turns.append(turn)
        if len(turns) == self.config.rounds:
            self._store(turn.job)
        self.done += 1
        self.on_progress(self.done, self.total, self.jobs[turn.job].label)

    def keep_unfinished(self) -> None:
        """Store the turns of jobs that did not get all of them."""
        for number in list(self.turns):
            self._store(number)

    def _store(self, number: int) -> None:
        job, turns = self.jobs[number], self.turns.pop(number)
        measured = JobResult(job=job, turns=tuple(turns))
        keys, finished = self.keys_of(job.parallelism.world_size), len(turns) == self.config.rounds
        run = own_run(COMMAND, keys, conditions={"processes_per_node": job.parallelism.world_size})
        times = sorted(measured.reference_us)
        reference_us = times[len(times) // 10] if times else None
        step = step_of(run, measured, self.repetition, reference_us, finished=finished)
        self.database.add_run(run, keys.compute, keys.fabric, keys.software)
        self.database.add(step)
        if finished:
            self.steps[job, self.repetition] = step
