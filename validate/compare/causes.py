"""Why a step is slower than predicted: causes with the time that each costs a step, and the evidence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from kernelcast.runtime import Estimate
from kernelcast.runtime.request.fields import AS_MEASURED
from kernelcast.validate.compare.rows import FUSED_ATTENTION, PRODUCTS, Row
from kernelcast.validate.compare.traced_steps import TracedSteps

LEAST_SHARE = 0.03
"""A cause below this share of the step is not named."""
_COMMON = 0.2  # of the products' time may be slowed down less than what counts as common to all
_MOST_OPERATORS = 5
_MOST_ABSENT = 3
_ABSENT = 0.01  # of the predicted operators' time
_UNEVEN = 1.2  # slowest step / typical one
_MORE_DATA = 1.1
_ATTENTION = (*FUSED_ATTENTION, "fused_causal_softmax", "softmax", "causal_mask_fill", "batched_gemm")
_ATTENTION_ROLES = ("attention_scores", "attention_values")
_KIND_OF_ATTENTION = (*FUSED_ATTENTION, "fused_causal_softmax", "softmax")
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One cause: seconds of a step that it costs, and one line of what is known.

    `kind`: attention, rank, link, host, all_reduce (or another collective), clocks, waiting, uneven, operator
    or unknown_kernels.
    """

    kind: str
    excess_s: float
    line: str


def find_causes(
    traced: TracedSteps, estimate: Estimate, operators: Sequence[Row], collectives: Sequence[Row]
) -> tuple[Cause, ...]:
    """The causes that cost at least `LEAST_SHARE` of the step, the longest first; their times may overlap."""
    step_s = traced.step_s(traced.typical)
    clocks = list(_clocks(operators))
    products_s = sum(row.predicted_s or 0.0 for row in _products(operators))
    slowdown = 1 + clocks[0].excess_s / products_s if clocks else 1.0
    found = [
        *_attention(operators, slowdown, estimate.parallelism.attention_kernel),
        *_slow_ranks(traced),
        *_late_host(traced),
        *_communication(collectives),
        *clocks,
        *_slow_operators(operators, slowdown),
        *_unknown_kernels(operators),
        *_uneven(traced),
    ]
    costly = [one for one in found if one.excess_s >= LEAST_SHARE * step_s]
    # Waiting for a slow rank or a late host has its cause there.
    explains = any(one.kind in ("rank", "link", "host") for one in costly)
    named = [one for one in costly if one.kind != "waiting" or not explains]
    return tuple(sorted(named, key=lambda one: -one.excess_s))


def _attention(operators: Sequence[Row], slowdown: float, kernel: str) -> Iterator[Cause]:
    """Attention by another kernel than predicted: fused where unfused was expected, or unfused where fused was.

    A common slowdown of all products is not counted. `kernel` is the predicted one.
    """
    rows = [row for row in operators if _is_attention(row)]
    excess_s = sum(row.excess_s for row in rows)
    expected = [
        name for name in _KIND_OF_ATTENTION if any(r.operator == name and r.predicted_s for r in rows)
    ]
    ran = [name for name in _KIND_OF_ATTENTION if any(r.operator == name and r.measured_s for r in rows)]
    if expected and ran != expected:
        named = " and ".join(ran).replace("softmax", "products with a softmax") or "no kernel that is known"
        line = (
            f"attention ran as {named}, but was predicted as {expected[0]}: not the expected attention kernel"
        )
    else:
        predicted_s = sum(row.predicted_s or 0.0 for row in rows)
        ratio = sum(row.measured_s or 0.0 for row in rows) / (predicted_s or 1.0)
        excess_s -= (slowdown - 1) * predicted_s
        variants = sorted({variant for row in rows for variant in row.variants})
        high_s = sum(row.high_s or 0.0 for row in rows)
        if ratio * predicted_s <= slowdown * high_s:
            return
        which = f" ({', '.join(variants)})" if variants else ""
        wanted = "" if kernel == AS_MEASURED else f", {kernel}"
        line = f"attention{which} takes {ratio:.2f} × the predicted time: perhaps not the expected kernel{wanted}"
    yield Cause(kind="attention", excess_s=excess_s, line=line)


def _is_attention(row: Row) -> bool:
    return row.operator in _ATTENTION or any(role in row.name for role in _ATTENTION_ROLES)


def _slow_ranks(traced: TracedSteps) -> Iterator[Cause]:
    """Ranks and links that the ranks wait for in collectives."""
    for found in traced.findings:
        yield Cause(
            kind="rank" if found.rank is not None else "link", excess_s=found.delay_ms / 1e3, line=found.line
        )


def _late_host(traced: TracedSteps) -> Iterator[Cause]:
    """Gaps in which a device waited for its host: of the rank that has most of them."""
    late = {
        rank: median(traced.parts_s[rank][step]["idle_host"] for step in traced.steps)
        for rank in traced.ranks
    }
    rank = max(late, key=lambda one: late[one])
    gaps = [gap for gap in traced.gaps if gap.rank == rank]  # the longest first
    where = ""
    if gaps:
        scope = f" in {gaps[0].scope}" if gaps[0].scope else ""
        where = f"; the longest, {gaps[0].time_s * 1e3:,.1f} ms, ends with {gaps[0].name}{scope}"
    loader_s = median(traced.loader_s.get((rank, step), 0.0) for step in traced.steps)
    if loader_s > late[rank] / 2:
        where = f"; the data loader takes {loader_s * 1e3:,.1f} ms a step{where}"
    alone = "" if len(late) == 1 or min(late.values()) > late[rank] / 2 else f" of rank {rank}"
    yield Cause(
        kind="host",
        excess_s=late[rank],
        line=f"gaps of the host{alone}: the device waits {late[rank] * 1e3:,.1f} ms a step for its next launch{where}",
    )


def _communication(collectives: Sequence[Row]) -> Iterator[Cause]:
    """Exposed collectives beyond the prediction; the rank that waits least for others shows what transfers take."""
    for row in collectives:
        by_rank = row.by_rank_s or {}
        least_s = min(by_rank.values(), default=0.0)
        predicted_s = row.predicted_s or 0.0
        size, wanted = row.measured_bytes / _MIB, row.predicted_bytes / _MIB
        excess_s = least_s - predicted_s
        if row.measured_bytes > _MORE_DATA * row.predicted_bytes:
            # The messages that were not predicted, at the rate of all of them.
            extra_s = (row.measured_s or 0.0) * (1 - row.predicted_bytes / row.measured_bytes)
            yield Cause(
                kind=row.operator,
                excess_s=max(extra_s, excess_s),
                line=f"exposed {row.name}: {row.launches:.0f} calls with {size:,.1f} MiB a step, predicted: "
                f"{row.calls} with {wanted:,.1f} MiB",
            )
        elif least_s > (row.high_s or 0.0):
            yield Cause(
                kind=row.operator,
                excess_s=excess_s,
                line=f"exposed {row.name}: {least_s * 1e3:,.1f} ms a step on the rank that waits least, above the "
                f"interval of the predicted {predicted_s * 1e3:,.1f} ms: less is hidden, or the network is slower",
            )
        waits = max(by_rank.values(), default=0.0) - least_s
        if waits > 0 and len(by_rank) > 1:
            waiting = max(by_rank, key=lambda one: by_rank[one])
            yield Cause(
                kind="waiting",
                excess_s=waits,
                line=f"rank {waiting} waits {waits * 1e3:,.1f} ms a step in {row.name} for a later rank",
            )


def _products(operators: Sequence[Row]) -> list[Row]:
    return [
        row for row in operators if row.operator in PRODUCTS and row.is_matched and not _is_attention(row)
    ]


def _clocks(operators: Sequence[Row]) -> Iterator[Cause]:
    """Matrix products of all shapes are slow: no kernel's fault. The fastest rank counts."""
    ratios = []
    for row in _products(operators):
        ranks = [time_s for time_s in (row.by_rank_s or {}).values() if time_s]
        # The row sums stages; the fastest rank has the same share of it as of one stage.
        fastest = min(ranks) / (sum(ranks) / len(ranks))
        ratios.append((fastest * (row.ratio or 0.0), row.predicted_s or 0.0))
    if len(ratios) < 3:
        return
    common = _weighted(ratios, _COMMON)
    if common > 1:
        low, high = min(ratio for ratio, _ in ratios), max(ratio for ratio, _ in ratios)
        yield Cause(
            kind="clocks",
            excess_s=(common - 1) * sum(weight for _, weight in ratios),
            line=f"clocks: matrix products of all shapes take longer, {_weighted(ratios, 0.5):.2f} × the predicted "
            f"time ({low:.2f} to {high:.2f}), on every rank: lower clocks, a power limit, or other work on the device",
        )


def _weighted(values: Sequence[tuple[float, float]], share: float) -> float:
    """The value that this share of the weight is at most."""
    wanted, sum_ = share * sum(weight for _, weight in values), 0.0
    for value, weight in sorted(values):
        sum_ += weight
        if sum_ >= wanted:
            return value
    return 0.0


def _slow_operators(operators: Sequence[Row], slowdown: float) -> Iterator[Cause]:
    """The longest operators above their interval; of products only what a common slowdown does not explain."""
    slow = [row for row in operators if row.is_slow and not _is_attention(row)]
    for row in slow[:_MOST_OPERATORS]:
        factor = slowdown if row.operator in PRODUCTS else 1.0
        excess_s = (row.measured_s or 0.0) - factor * (row.predicted_s or 0.0)
        yield Cause(
            kind="operator",
            excess_s=excess_s,
            line=f"{row.name} ({row.pass_}) takes {(row.measured_s or 0.0) * 1e3:,.2f} ms a step, predicted: "
            f"{(row.predicted_s or 0.0) * 1e3:,.2f} ms ({(row.low_s or 0.0) * 1e3:,.2f} to "
            f"{(row.high_s or 0.0) * 1e3:,.2f})",
        )


def _unknown_kernels(operators: Sequence[Row]) -> Iterator[Cause]:
    """Unpredicted kernels, less predicted operators that were not found: they may be the same under another name."""
    extra = [row for row in operators if row.predicted_s is None and not _is_attention(row)]
    missing = [row for row in operators if row.measured_s is None and not _is_attention(row)]
    missing_s = sum(row.predicted_s or 0.0 for row in missing)
    predicted_s = sum(row.predicted_s or 0.0 for row in operators)
    missing.sort(key=lambda row: -(row.predicted_s or 0.0))
    absent = ", ".join(list(dict.fromkeys(row.name for row in missing))[:_MOST_ABSENT])
    extra_s = sum(row.measured_s or 0.0 for row in extra)
    longest = sorted(extra, key=lambda row: -(row.measured_s or 0.0))[:3]
    named = ", ".join(f"{row.name} ({row.pass_}) {(row.measured_s or 0.0) * 1e3:,.1f} ms" for row in longest)
    yield Cause(
        kind="unknown_kernels",
        excess_s=extra_s - missing_s,
        line=f"kernels that were not predicted take {extra_s * 1e3:,.1f} ms a step ({named}); predicted operators "
        f"that the trace does not show take {missing_s * 1e3:,.1f} ms"
        f"{f' ({absent}: perhaps not fused)' if missing_s > _ABSENT * predicted_s else ''}",
    )


def _uneven(traced: TracedSteps) -> Iterator[Cause]:
    times = [traced.step_s(step) for step in traced.steps]
    typical_s = traced.step_s(traced.typical)
    if max(times) >= _UNEVEN * typical_s:
        yield Cause(
            kind="uneven",
            excess_s=sum(times) / len(times) - typical_s,
            line=f"steps differ: {min(times) * 1e3:,.1f} to {max(times) * 1e3:,.1f} ms, the typical one "
            f"{typical_s * 1e3:,.1f} ms",
        )
