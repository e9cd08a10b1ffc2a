"""Do sites agree? The same point on the same device with the same software, measured by two sites or more.

A row's site is the source that it was pulled from; rows that were measured here are of the site `own`. Rows of other
merges belong to their signer, or to the merged file.
"""

import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from kernelcast.runtime.dataclass import dataclass, replace
from kernelcast.runtime.errors import UsageError, either
from kernelcast.runtime.operators import OPERATORS
from kernelcast.store.commons.sources import Source, read_sources, write_sources
from kernelcast.store.connection import connect
from kernelcast.store.database_file import check_file
from kernelcast.store.merges import Reverted, revert_merges, stored_merges
from kernelcast.store.sqlite_errors import reported

OWN = "own"
_TOLERATED = 1.1
"""Sites that are within 10 % of the others are no outliers, however small the others' differences are."""
_TIMES_THE_OTHERS = 3.0
_FEWEST_POINTS = 3

_POINTS = """
SELECT coalesce(owner.site, ?) AS site, sample.operator, sample.direction, sample.dtype, sample.vector, sample.variant,
    iif(sample.load = 'sustained', 'sustained', ''), sample.statistic, run.compute_id, coalesce(run.fabric_id, ''),
    run.software_id, run.conditions, sample.time_us
FROM sample JOIN run ON run.id = sample.run_id
LEFT JOIN temp.owner ON owner.number = (
    SELECT min(merge_number) FROM merged_row WHERE table_name = 'sample' AND row_id = sample.id)
WHERE sample.status = 'ok'
ORDER BY 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12
"""


def distrust(name: str, databases: Sequence[Path]) -> list[tuple[Path, Reverted]]:
    """Stop pulling from a source, and remove its rows from databases; rows that a second source has stay.

    UsageError for an unknown source; DataError where a database cannot be opened or written: it is unchanged then, and
    the source is distrusted.
    """
    sources = read_sources()
    if name not in (known := [one.name for one in sources]):
        raise UsageError(
            f"source {name!r:.80} is unknown, expected {either(known) if known else 'one (commons add)'}"
        )
    write_sources([replace(one, is_distrusted=one.is_distrusted or one.name == name) for one in sources])
    pulled = next(one for one in sources if one.name == name).pulled()
    return [
        (path, revert_merges(path, lambda merges: [one for one in merges if one.file_digest in pulled]))
        for path in databases
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far a site is from the others in one operator, on one device (or fabric) with one set of software.

    `ratio` is the median over points of the site's time over the other site's, or over the median of three sites or
    more; `spread` is the 90th over the 10th percentile of the same.
    """

    site: str
    hardware: str
    software: str
    operator: str
    direction: str
    dtype: str
    sites: int
    points: int
    ratio: float
    spread: float
    is_outlier: bool

    def __str__(self) -> str:
        return (
            f"{self.site} is {self.ratio:.2f} × the median of {self.sites} sites in {self.operator}"
            f" ({self.direction}, {self.dtype}) on {self.hardware}, {self.points:,} points"
        )


def site_of_merges(connection: sqlite3.Connection, sources: list[Source]) -> dict[str, str]:
    pulled = {digest: source.name for source in sources for digest in source.pulled()}
    return {
        one.id: pulled.get(one.file_digest) or one.signer or f"file {one.id[:12]}"
        for one in stored_merges(connection)
    }


def agreement(path: Path) -> list[Agreement]:
    """Agreement of all sites in a database, outliers first, then the largest differences.

    A site is an outlier if three or more sites measured an operator at three points or more, and it is more than 10 %
    off, and more than three times as far off as the median site. Of two sites that differ, neither is named. DataError
    where the database cannot be read.
    """
    check_file(path)
    sources = read_sources()
    with reported(path), closing(connect(path, read_only=False)) as connection:  # migrated if it is older
        connection.execute("CREATE TEMP TABLE owner (number INTEGER PRIMARY KEY, site TEXT)")
        connection.executemany(
            "INSERT INTO temp.owner SELECT number, ?2 FROM merge WHERE id = ?1",
            site_of_merges(connection, sources).items(),
        )
        described = {
            row_id: text
            for table in ("hardware", "fabric", "software")
            for row_id, text in connection.execute(f"SELECT id, description FROM {table}")
        }
        logs = _logs(connection)
    found = [one for key, of_sites in logs.items() for one in _compared(key, of_sites, described)]
    return sorted(
        found, key=lambda one: (not one.is_outlier, -abs(math.log(one.ratio)), one.operator, one.site)
    )


_Key = tuple[str, str, str, str, str]  # operator, direction, dtype, device or fabric, software
_Logs = dict[str, list[tuple[int, float]]]  # of each site: sites at a point, and the logarithm of the ratio


def _logs(connection: sqlite3.Connection) -> dict[_Key, _Logs]:
    found: dict[_Key, _Logs] = {}
    cursor = connection.execute(_POINTS, (OWN,))
    for place, rows in groupby(cursor, itemgetter(*range(1, 12))):
        times: dict[str, list[float]] = {}
        for row in rows:
            times.setdefault(row[0], []).append(row[-1])
        if len(times) < 2:
            continue
        operator, direction, dtype, *_, compute, fabric, software, _ = place
        known = OPERATORS.get(operator)
        device = fabric if known is not None and known.is_collective else compute
        logs = {site: math.log(median(of_site)) for site, of_site in times.items()}
        of_sites = found.setdefault((operator, direction, dtype, device, software), {})
        for site, log in logs.items():
            others = [one for other, one in logs.items() if other != site or len(logs) > 2]
            of_sites.setdefault(site, []).append((len(logs), log - median(others)))
    return found


def _compared(key: _Key, of_sites: _Logs, described: dict[str, Any]) -> Iterator[Agreement]:
    operator, direction, dtype, device, software = key
    most = max(sites for logs in of_sites.values() for sites, _ in logs)
    # Points of three sites decide who is right; where there are some, points of two do not count.
    kept = {site: [log for sites, log in logs if sites >= min(most, 3)] for site, logs in of_sites.items()}
    middles = {site: median(logs) for site, logs in kept.items() if logs}
    usual = median(map(abs, middles.values()))
    limit = max(math.log(_TOLERATED), _TIMES_THE_OTHERS * usual)
    for site, middle in middles.items():
        logs = kept[site]
        tenths = quantiles(logs, n=10, method="inclusive") if len(logs) > 1 else [0.0] * 9
        yield Agreement(
            site=site,
            hardware=described.get(device, "no device"),
            software=described.get(software, ""),
            operator=operator,
            direction=direction,
            dtype=dtype,
            sites=len(middles) if most > 2 else 2,
            points=len(logs),
            ratio=math.exp(middle),
            spread=math.exp(tenths[-1] - tenths[0]),
            is_outlier=most > 2 and len(logs) >= _FEWEST_POINTS and abs(middle) > limit,
        )
