"""Which rank the others wait for and what it did longer, and which group's links are slow: one line each.

A rank is named if the others wait for it by at least `LEAST_SHARE` of the time, and twice as long as for the typical
other rank. The cause is what it did longer than the other ranks between the same collectives.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from kernelcast.store.database import Database
from kernelcast.store.statistics import weighted_quantile

LEAST_SHARE = 0.01
_CLEARLY = 2.0  # times the delay of the typical other rank
_SAME_FACTOR = 0.5  # of the excess, explained by one factor of all kernels
_SLOW_LINK = 1.25  # times the transfer of other groups
_LOADER = "%DataLoader%"
_PARTS = {"compute": "slow_kernels", "memory": "copies", "host": "slow_host"}

_RANKS = "SELECT * FROM rank_arrival WHERE run_id = ? ORDER BY rank"
_TIME = """
    SELECT count(DISTINCT coalesce(step, '')) AS steps,
        max(arrival_us + wait_us + transfer_us) - min(arrival_us) AS time_us
    FROM collective_match WHERE run_id = ?
"""
_HOST = """
    SELECT rank, sum(total_ns) / 1e6 AS loader_ms FROM host_time JOIN timeline ON number = timeline_number
    JOIN trace ON trace.id = trace_id WHERE run_id = ? AND name LIKE ? AND kind <> 'runtime' GROUP BY rank
"""
_KERNELS = """
    SELECT name, rank = :rank AS is_own, avg(launches) AS launches, avg(total_us) AS total_us FROM (
        SELECT name, rank, sum(launches) AS launches, sum(duration_ns) / 1e3 AS total_us FROM event_sum
        JOIN event_kind ON number = kind_number WHERE class = 'compute' GROUP BY name, rank
    ) GROUP BY name, is_own
"""
_MEMBERS = "SELECT DISTINCT rank FROM collective_match WHERE run_id = ? AND group_ranks = ?"
_LINKS = """
    SELECT collective, group_size, message_bytes, group_ranks, count(*) AS calls, avg(transfer_us) AS transfer_us,
        max(bus_gb_per_s) AS best_gb_per_s
    FROM collective_match WHERE run_id = ? AND is_last AND ranks = group_size AND message_bytes IS NOT NULL
    GROUP BY collective, group_size, message_bytes, group_ranks
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFinding:
    """One cause of waiting.

    `kind`: slow_device (most kernels take longer by one factor), slow_kernels, more_work (more launches), copies,
    data_loader, slow_host, waiting (late for no reason that was recorded) or slow_link, whose `rank` is None.
    """

    kind: str
    rank: int | None
    group_ranks: str
    delay_ms: float  # per step, that others wait for it
    line: str


def rank_findings(database: Database, run_id: str) -> tuple[RankFinding, ...]:
    """Slow ranks and links of a run, the longest delay first; none of a run with one traced rank.

    Within `summed_events`, whose tables it asks.
    """
    [about] = database.query(_TIME, [run_id])
    if not about["time_us"]:
        return ()
    steps, step_ms = about["steps"], about["time_us"] / 1e3 / about["steps"]
    found = [*_slow_links(database.query(_LINKS, [run_id]), steps), *_slow_ranks(database, run_id, steps)]
    named = [one for one in found if one.delay_ms >= LEAST_SHARE * step_ms]
    # Ranks behind a slow link are late without a cause of their own.
    linked = {
        row["rank"]
        for one in named
        if one.kind == "slow_link"
        for row in database.query(_MEMBERS, [run_id, one.group_ranks])
    }
    named = [one for one in named if one.kind != "waiting" or one.rank not in linked]
    return tuple(sorted(named, key=lambda one: -one.delay_ms))


def _slow_ranks(database: Database, run_id: str, steps: int) -> Iterator[RankFinding]:
    ranks = database.query(_RANKS, [run_id])
    loaders = {row["rank"]: row["loader_ms"] for row in database.query(_HOST, [run_id, _LOADER])}
    for row in ranks:
        usual_ms = median(other["delay_ms"] for other in ranks if other is not row)
        if row["delay_ms"] < _CLEARLY * usual_ms or not row["delay_ms"]:
            continue
        extra_ms = {part: row[f"extra_{part}_ms"] for part in _PARTS}
        part = max(extra_ms, key=lambda one: extra_ms[one])
        loader_ms = loaders.get(row["rank"], 0.0) - median(
            loaders.get(other["rank"], 0.0) for other in ranks if other is not row
        )
        kind, cause = _PARTS[part], ""
        if extra_ms[part] < row["delay_ms"] / 4:
            if row["waiting_ms"] >= row["delay_ms"] / 2:
                continue  # it is late because it waited for another rank
            kind, cause = "waiting", "its kernels, copies and host took no longer than the others'"
        elif loader_ms >= sum(extra_ms.values()) / 2:
            kind, cause = "data_loader", f"its data loader takes {loader_ms / steps:,.2f} ms a step longer"
        elif part == "compute":
            kind, cause = _kernels(database.query(_KERNELS, {"rank": row["rank"]}))
        elif part == "memory":
            cause = "its copies and fills take longer"
        else:
            cause = "its device waits for launches: the host is late"
        delay_ms = row["delay_ms"] / steps
        computes, copies, waits = (f"{round(extra_ms[one] / steps, 2) + 0.0:+,.2f} ms" for one in _PARTS)
        yield RankFinding(
            kind=kind,
            rank=row["rank"],
            group_ranks="",
            delay_ms=round(delay_ms, 3),
            line=f"rank {row['rank']} arrives last in {row['times_last']} of {row['collectives']} collectives, by "
            f"up to {row['largest_skew_us'] / 1e3:,.2f} ms; the others wait {delay_ms:,.2f} ms a step for it; between "
            f"collectives it computes {computes}, copies {copies} and waits for its host {waits}: {cause}",
        )


def _kernels(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Why a rank computes longer: more launches, most kernels by one factor, or some kernels."""
    own = {row["name"]: row for row in rows if row["is_own"]}
    others = {row["name"]: row for row in rows if not row["is_own"]}
    more_us = slower_us = 0.0
    ratios: list[tuple[float, float]] = []  # of the mean times, with the others' total
    longest = ("", 0.0)
    for name, row in own.items():
        other = others.get(name)
        usual_us = other["total_us"] / other["launches"] if other else 0.0
        mean_us = row["total_us"] / row["launches"]
        more_us += (row["launches"] - (other["launches"] if other else 0.0)) * (usual_us or mean_us)
        if other and usual_us:
            slower_us += row["launches"] * (mean_us - usual_us)
            ratios.append((mean_us / usual_us, other["total_us"]))
            longest = max(longest, (name, row["launches"] * (mean_us - usual_us)), key=lambda one: one[1])
    if more_us > slower_us:
        return "more_work", "it launches more kernels"
    total_us = sum(weight for _, weight in ratios)
    common = weighted_quantile(ratios, 0.2)  # the factor that four fifths of the time exceed
    if (common - 1) * total_us >= _SAME_FACTOR * slower_us:
        factor = median(ratio for ratio, weight in ratios if weight >= total_us / 100)
        return (
            "slow_device",
            f"most of its kernels take {factor:.2f} × as long: clocks, power, or other work on the device",
        )
    return "slow_kernels", f"some of its kernels take longer, most of all {longest[0][:70]}"


def _slow_links(rows: Sequence[Mapping[str, Any]], steps: int) -> Iterator[RankFinding]:
    """Groups whose transfers take longer than in other groups of the same size."""
    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        alike.setdefault((row["collective"], row["group_size"], row["message_bytes"]), []).append(row)
    slow: dict[str, list[tuple[float, Mapping[str, Any], float]]] = {}
    for groups in alike.values():
        for row in groups if len(groups) > 1 else ():
            usual_us = median(other["transfer_us"] for other in groups if other is not row)
            if row["transfer_us"] >= _SLOW_LINK * usual_us:
                excess_ms = row["calls"] * (row["transfer_us"] - usual_us) / 1e3 / steps
                slow.setdefault(row["group_ranks"], []).append((excess_ms, row, usual_us))
    for group, found in slow.items():
        excess_ms, (_, row, usual_us) = sum(one[0] for one in found), max(found, key=lambda one: one[0])
        yield RankFinding(
            kind="slow_link",
            rank=None,
            group_ranks=group,
            delay_ms=round(excess_ms, 3),
            line=f"the links of group {group} are slow: {row['collective']} of {row['message_bytes']:,} bytes "
            f"transfers in {row['transfer_us'] / 1e3:,.2f} ms, in other groups of the same size in "
            f"{usual_us / 1e3:,.2f} ms, {excess_ms:,.2f} ms a step in all",
        )
