"""From an estimate to a plan: `plan` asks for the step by the fields of a prediction, `plan_of` takes one."""

import math
import os
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from kernelcast.plan.answer import Plan, Restart
from kernelcast.plan.checkpoint import Checkpoint, checkpoint_of
from kernelcast.plan.failures import FailureRate, people_detection, rate_of, stated_rate
from kernelcast.plan.fields import DETECTION_S, PLAN, REPAIR_S, REPLACEMENT_S
from kernelcast.plan.run import Run, expected, with_best_interval
from kernelcast.plan.simulation import Draws
from kernelcast.runtime.answers.collective_times import collective_source
from kernelcast.runtime.answers.fabric_choice import FabricChoice
from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.errors import KernelcastError, UsageError, unknown_field
from kernelcast.runtime.estimate.defaults import host_link_bytes_per_s
from kernelcast.runtime.estimate.estimate import Estimate
from kernelcast.runtime.estimate.estimator import Estimator
from kernelcast.runtime.estimate.step_spread import RUNS_STD, StepSpread, spread_of
from kernelcast.runtime.hardware.devices import Device, device_named
from kernelcast.runtime.intent.answer import answer
from kernelcast.runtime.intent.by_fields import read_question_fields
from kernelcast.runtime.intent.goals import Wish
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.request.fields import MEMORY, REQUEST
from kernelcast.runtime.request.model import ModelConfig

_FIRST_STEP = 0.05
"""What a first step takes longer than others: the median of MLPerf's logs."""
_Z95 = 1.645
_S_PER_DAY = 86_400.0
_MOST_ROUNDS = 5
_MOST_SIMULATED = 200_000_000
"""Failures of all simulated runs: some seconds, for which a server's thread is kept."""
# Fields that change nothing without another, or with another (None) or one value of it.
_ONLY_WITH = {"elastic": "spares", "repair": "spares", "maintenance": "maintenance_every"}
_IDLE_WITH = (
    ("detection", "restarted_by", "people"),
    ("storage_total", "checkpoint", "memory"),
    ("price", "node_month_price", None),
)


def plan(
    estimator: Estimator,
    model: ModelConfig | str | os.PathLike[str],
    *,
    gpus: int | None = None,
    deadline_s: float | None = None,
    rate: FailureRate | None = None,
    spread: StepSpread | None = None,
    **fields: Any,
) -> Plan:
    """Plan a run of `tokens`, `samples` or `steps`; `fields` as in `kernelcast.runtime.predict`, and of `PLAN`.

    With `deadline_s` the fewest devices whose calendar time is within it in 90 % of simulated runs; else the layout of
    `gpus` or of the fields. `rate` is how often nodes fail, and `spread` how steps scatter; None for values of
    published sites. UsageError where a field is unknown, missing or wrong, or the run makes no progress; DataError
    where no layout is valid, fits, has an answer, or is fast enough.

    >>> from kernelcast.runtime import Estimator
    >>> found = plan(Estimator.load("h100-sxm"), "llama-3-8b", gpus=64, global_batch=512, tokens="1T", seed=1)
    >>> 0.9 < found.expected.goodput < 1, found.days[0] <= found.days[2]
    (True, True)
    """
    own = read_plan({name: value for name, value in fields.items() if name in PLAN})
    estimator, found, fabric, values = read_question_fields(
        estimator,
        model,
        {name: value for name, value in fields.items() if name not in PLAN},
        (*REQUEST, *MEMORY),
        is_open=gpus is not None or deadline_s is not None,
    )

    def estimated(wish: Wish) -> Estimate:
        wish.check(values, ())
        return answer(estimator, wish, values, model=found, fabric=fabric).estimate

    if deadline_s is None:
        return plan_of(estimator, estimated(Wish(gpus=gpus)), own, rate=rate, spread=spread, fabric=fabric)
    data = Wish.of_data(own)
    if gpus is not None or not data.has_data:
        named = ("deadline", "tokens", "samples", "gpus")
        raise UsageError("{} needs {} or {}, and finds {} itself", fields=named)
    days = deadline_s / _S_PER_DAY
    target = days
    for _ in range(_MOST_ROUNDS):
        planned = plan_of(estimator, estimated(replace(data, days=target)), own, rate=rate, fabric=fabric)
        if planned.days[1] <= days:
            return planned
        # What all but steps takes, and uncertainty, comes off the time that steps may take.
        target = 0.999 * min(target, days * planned.expected.work_s / _S_PER_DAY / planned.days[1])
    raise UsageError(
        f"{{}} is {days:g} days, expected at least {planned.days[1]:.1f}, the time of the largest size tried",
        fields=("deadline",),
    )


def read_plan(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `PLAN`, from numbers or texts; UsageError unless one of tokens, samples and steps is given."""
    for name in values:
        if name not in PLAN:
            raise unknown_field(name, PLAN)
    own = {name: PLAN[name].kind.parse(name, value) for name, value in values.items() if value is not None}
    given = [name for name in ("tokens", "samples", "steps") if name in own]
    if len(given) != 1:
        fields = tuple(given) or ("tokens", "samples", "steps")
        found = f"{' and '.join(['{}'] * len(given))} are" if given else "none of {}, {} and {} is"
        raise UsageError(f"{found} given, expected one of them", fields=fields)
    Wish.of_data(own)
    for name, other in _ONLY_WITH.items():
        if own.get(name, False) is not False and other not in own:
            raise UsageError("{} is given without {}, expected both", fields=(name, other))
    for name, other, idle in _IDLE_WITH:
        if name in own and other in own and idle in (None, own[other]):
            found = "" if idle is None else f" {idle}"
            raise UsageError(f"{{}} is given with {{}}{found}, expected one of them", fields=(name, other))
    return own


def plan_of(
    estimator: Estimator,
    estimate: Estimate,
    own: Mapping[str, Any],
    *,
    rate: FailureRate | None = None,
    spread: StepSpread | None = None,
    fabric: FabricChoice | None = None,
    without: Collection[str] = (),
) -> Plan:
    """Plan a run of steps as estimated; `own` are values of `read_plan`, `without` published sites that are left out.
    UsageError where the run makes no progress or has more spares than nodes, and as `Run.check`.
    """
    layout = estimate.parallelism
    per_node = min(estimate.cluster.gpus_per_node, layout.world_size)
    nodes = math.ceil(layout.world_size / per_node)
    spares = own.get("spares", 0)
    if spares > nodes:
        raise UsageError(
            f"{{}} is {spares}, expected at most the {nodes} nodes of the run", fields=("spares",)
        )
    spread = spread or spread_of(layout.world_size)
    used = rate or _rate(estimate, own, without)
    checkpoint = _checkpoint(estimator, estimate, own, nodes, fabric)
    step_s = estimate.step_time_s * spread.mean
    restart, scatter = _restart(own, spread, checkpoint, step_s, without)
    failures_per_s = used.per_s(nodes=nodes, gpus_per_node=per_node)
    short, short_s, ratio = _shortage(estimator, estimate, own, failures_per_s, restart, fabric)
    count = own.get("simulations", PLAN["simulations"].default)
    run = _run(
        own,
        checkpoint,
        restart,
        simulations=count,
        steps=own.get("steps") or _steps_of_data(own, estimate),
        step_s=step_s,
        failures_per_s=failures_per_s,
        shape=used.shape,
        short_probability=short,
        short_s=short_s,
    )
    seed, device = own.get("seed", 0), _device(estimate)
    return Plan(
        estimate=estimate,
        run=run,
        rate=used,
        spread=spread,
        checkpoint=checkpoint,
        restart=restart,
        draws=_draws(estimate, used, spread, count, seed, scatter=scatter),
        seed=seed,
        nodes=nodes,
        gpus_per_node=per_node,
        spares=spares,
        elastic_ratio=ratio,
        is_best_interval="checkpoint_every" not in own,
        price=own.get("price"),
        node_month_price=own.get("node_month_price"),
        most_power_w=None if device is None else device.power_w,
    )


def _steps_of_data(own: Mapping[str, Any], estimate: Estimate) -> int:
    layout = estimate.parallelism
    return Wish.of_data(own).steps(layout.samples_per_update, layout.sample_length(estimate.model)) or 1


def _checkpoint(
    estimator: Estimator,
    estimate: Estimate,
    own: Mapping[str, Any],
    nodes: int,
    fabric: FabricChoice | None,
) -> Checkpoint:
    return checkpoint_of(
        estimate,
        own,
        nodes=nodes,
        host_link_bytes_per_s=host_link_bytes_per_s(estimator.bundle),
        network_bytes_per_s=_network_bytes_per_s(estimator, fabric),
    )


def _device(estimate: Estimate) -> Device | None:
    return None if estimate.peak is None else device_named(estimate.peak.device)


def _restart(
    own: Mapping[str, Any],
    spread: StepSpread,
    checkpoint: Checkpoint,
    step_s: float,
    without: Collection[str],
) -> tuple[Restart, float | None]:
    """What passes until the next step, and the scatter of the logarithm of people's detection."""
    is_by_people = own.get("restarted_by") == "people"
    usual_s, scatter = people_detection(without=without) if is_by_people else (DETECTION_S, None)
    restart = Restart(
        detection_s=own.get("detection", usual_s),
        replacement_s=own.get("replacement", REPLACEMENT_S),
        startup_s=own.get("startup", spread.start_s),
        loading_s=checkpoint.load_s,
        first_steps_s=_FIRST_STEP * step_s,
    )
    return restart, scatter


def _run(
    own: Mapping[str, Any], checkpoint: Checkpoint, restart: Restart, *, simulations: int, **others: Any
) -> Run:
    """The run, by default with the best interval between checkpoints."""
    run = Run(
        interval_steps=own.get("checkpoint_every", 1),
        stall_s=checkpoint.stall_s,
        write_s=checkpoint.write_s,
        start_s=restart.startup_s + restart.first_steps_s,
        evaluation_share=own.get("evaluation", 0.0),
        detection_s=restart.detection_s,
        restart_s=restart.total_s,
        maintenance_every_s=own.get("maintenance_every", math.inf),
        maintenance_s=own.get("maintenance", 8 * 3600.0) if "maintenance_every" in own else 0.0,
        walltime_limit_s=own.get("walltime_limit", math.inf),
        queue_s=own.get("queue", 0.0),
        **others,
    )
    if "checkpoint_every" not in own:
        run = with_best_interval(run)
    most = _MOST_SIMULATED / simulations
    if (failures := expected(run).failures) > most:
        raise UsageError(
            f"the run fails {failures:,.0f} times in each of {simulations:,} simulations, expected at most {most:,.0f}:"
            " fewer tokens, failures or simulations"
        )
    return run


def _rate(estimate: Estimate, own: Mapping[str, Any], without: Collection[str]) -> FailureRate:
    if "failure_rate" in own:
        return stated_rate(own["failure_rate"])
    device = _device(estimate)
    return rate_of(None if device is None else device.architecture, without=without)


def _network_bytes_per_s(estimator: Estimator, fabric: FabricChoice | None) -> float | None:
    """What the cards of a node usually reach together, in one direction; None without a described network."""
    source = collective_source(estimator.predictor, fabric)
    between = None if source is None or source.fabric is None else source.fabric.between
    return None if between is None else between.efficiency * between.cards * between.bytes_per_s


def _shortage(
    estimator: Estimator,
    estimate: Estimate,
    own: Mapping[str, Any],
    failures_per_s: float,
    restart: Restart,
    fabric: FabricChoice | None,
) -> tuple[float, float, float | None]:
    """How often a failure finds no spare node, how long it waits then, and the throughput with a replica fewer.

    Nodes under repair are Poisson (M/G/∞); of n + 1 of them the first is back after repair / (n + 1).
    """
    if "spares" not in own:
        return 0.0, 0.0, None
    spares, repair_s = own["spares"], own.get("repair", REPAIR_S)
    in_repair = failures_per_s * repair_s
    term = below = math.exp(-in_repair)
    for count in range(1, spares):
        term *= in_repair / count
        below += term
    short = 1.0 - below if spares else 1.0
    wait_s = repair_s / (spares + 1)
    if not own.get("elastic"):
        return max(0.0, short), wait_s, None
    layout = estimate.parallelism
    if layout.dp < 2:
        raise UsageError(
            "{} is given with {} 1, expected 2 or more: another replica must continue",
            fields=("elastic", "dp"),
        )
    try:
        asked = values_of(estimate, "model", "cluster", "bucket_entries", "timeline")
        fewer = replace(layout, dp=layout.dp - 1)
        smaller = estimator.predict(**asked, parallelism=fewer, interval=False, fabric=fabric)
        ratio = smaller.tokens_per_s / estimate.tokens_per_s
    except KernelcastError:  # a layout that cannot lose one replica, such as experts over all
        ratio = (layout.dp - 1) / layout.dp
    # Waiting costs the missing throughput, and one more restart when the node is back.
    return max(0.0, short), min(wait_s, wait_s * (1 - ratio) + restart.total_s), ratio


def _draws(
    estimate: Estimate, rate: FailureRate, spread: StepSpread, count: int, seed: int, *, scatter: float | None
) -> Draws:
    """Uncertain rates, steps and restarts: Gamma, the step's interval, start-up times of public runs, and `scatter` of
    the logarithm of people's detection.
    """
    random = np.random.default_rng([seed, 1])
    z = random.standard_normal(count)
    low, high = estimate.interval_s or (estimate.step_time_s,) * 2
    below, above = (abs(math.log(end / estimate.step_time_s)) / _Z95 for end in (low, high))
    step = np.exp(z * np.where(z < 0, below, above) + RUNS_STD * random.standard_normal(count))
    first, last = spread.start_range_s
    restart = np.exp(random.standard_normal(count) * math.log(last / first) / 2 / _Z95)
    failures = rate.draws(random, count)
    detection = restart if scatter is None else np.exp(scatter * random.standard_normal(count))
    return Draws(failures=failures, step=step, restart=restart, detection=detection)
