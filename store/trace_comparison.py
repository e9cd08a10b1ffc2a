"""Comparing two traced runs per step and rank: slower, faster, new and removed kernels."""

from dataclasses import dataclass

from kernelcast.store.database import Database
from kernelcast.store.trace_report import PARTS

_PARTS = (
    f"SELECT {', '.join(f'sum({part}) AS {part}' for part in PARTS)} FROM step_time WHERE run_id = ? AND {{}}"
)
_KERNELS = """
    SELECT name, class, count(*) AS launches, sum(duration_us) AS total_us, sum(exposed_us) AS exposed_us
    FROM trace_event WHERE run_id = ? AND {} GROUP BY name, class
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A part of the step or a kernel in two runs; times in ms per step and rank. None: absent from the run."""

    name: str
    class_: str
    one_ms: float | None
    two_ms: float | None
    one_launches: float | None = None
    two_launches: float | None = None

    @property
    def change_ms(self) -> float:
        """Time in the second run minus time in the first."""
        return (self.two_ms or 0.0) - (self.one_ms or 0.0)

    @property
    def kind(self) -> str:
        """`new`, `gone`, `slower`, `faster`, or empty."""
        if self.one_ms is None or self.two_ms is None:
            return "new" if self.one_ms is None else "gone"
        return "slower" if self.change_ms > 0 else "faster" if self.change_ms < 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceComparison:
    """Parts of the step in order, and kernels by absolute change, largest first."""

    one_steps: int  # of all ranks
    two_steps: int
    parts: tuple[Change, ...]
    kernels: tuple[Change, ...]

    @property
    def step(self) -> Change:
        """The whole step."""
        one = sum(part.one_ms or 0.0 for part in self.parts)
        two = sum(part.two_ms or 0.0 for part in self.parts)
        return Change(name="step", class_="", one_ms=one, two_ms=two)


def compare_traces(one: Database, one_run: str, two: Database, two_run: str) -> TraceComparison:
    """Compare two runs with timelines; if a run has marked steps, its other events are left out."""
    one_steps, one_parts, one_kernels = _per_step(one, one_run)
    two_steps, two_parts, two_kernels = _per_step(two, two_run)
    kernels = [
        Change(
            name=name,
            class_=class_,
            one_ms=first[1] if (first := one_kernels.get((name, class_))) else None,
            two_ms=second[1] if (second := two_kernels.get((name, class_))) else None,
            one_launches=first[0] if first else None,
            two_launches=second[0] if second else None,
        )
        for name, class_ in sorted(one_kernels.keys() | two_kernels.keys())
    ]
    return TraceComparison(
        one_steps=one_steps,
        two_steps=two_steps,
        parts=tuple(
            Change(name=part, class_="", one_ms=one_parts[part], two_ms=two_parts[part]) for part in PARTS
        ),
        kernels=tuple(sorted(kernels, key=lambda change: -abs(change.change_ms))),
    )


def _per_step(
    database: Database, run_id: str
) -> tuple[int, dict[str, float], dict[tuple[str, str], tuple[float, float]]]:
    """Number of steps of all ranks; per step, ms by part, and launches and ms by kernel and class."""
    marked = "step IS NOT NULL"
    count = database.query(f"SELECT count(*) AS steps FROM step_time WHERE run_id = ? AND {marked}", [run_id])
    steps = int(count[0]["steps"])
    if not steps:  # without marks, a trace is one step
        marked = "1"
        [row] = database.query("SELECT count(*) AS steps FROM step_time WHERE run_id = ?", [run_id])
        steps = int(row["steps"])
    [parts] = database.query(_PARTS.format(marked), [run_id])
    kernels = database.query(_KERNELS.format(marked), [run_id])
    return (
        steps,
        {part: (total_ms or 0.0) / steps for part, total_ms in parts.items()},
        {(k["name"], k["class"]): (k["launches"] / steps, k["total_us"] / steps / 1e3) for k in kernels},
    )
