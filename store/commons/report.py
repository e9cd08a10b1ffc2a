"""The page of a commons: what sources offer, how old it is, and whether they agree."""

from collections.abc import Sequence
from datetime import UTC, datetime

from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.views.formatting import counted
from kernelcast.runtime.views.page import Markup, bullets, document, element, rows_table, section, table, tile
from kernelcast.store.commons.agreement import Agreement
from kernelcast.store.commons.index import Index
from kernelcast.store.commons.offers import Offer
from kernelcast.store.commons.sources import Source

_MOST_ROWS = 1000


def report_page(
    sources: Sequence[tuple[Source, Index | None]],
    found: Sequence[Offer],
    agreements: Sequence[Agreement],
    database: str,
    now: datetime,
) -> str:
    """A page that loads nothing: sources, a map of operators and sites for every device, and agreement.

    `database` names where the agreement is from, empty without one; ages are counted to `now`.
    """
    outliers = [one for one in agreements if one.is_outlier]
    devices: dict[str, list[Offer]] = {}
    for offer in found:
        devices.setdefault(offer.hardware, []).append(offer)
    tiles = (
        tile("sources", f"{len(sources):,}"),
        tile("devices", f"{len(devices):,}"),
        tile("rows", f"{sum(offer.rows for offer in found):,}"),
        *([tile("outliers", f"{len(outliers):,}", "a site in an operator")] if database else []),
    )
    main = element(
        "main",
        element("dl", *tiles, class_="tiles"),
        *([section("Outliers", bullets(*map(str, outliers)))] if outliers else []),
        section("Sources", _sources(sources) if sources else element("p", "None was added.")),
        section("Who has measured what", *(_map(name, of, now) for name, of in sorted(devices.items()))),
        *([section("Agreement", _agreement(agreements, database))] if database else []),
    )
    title = "Commons"
    soft = f"{counted(len(sources), 'source')}, as of {now:%Y-%m-%d}."
    header = element("header", element("h1", title), element("p", soft, class_="soft"))
    return document(title, header, main, sorts=True)


def _sources(sources: Sequence[tuple[Source, Index | None]]) -> Markup:
    listed = [
        {
            "source": source.name,
            "site": index.about.site if index else "",
            "trust": source.trust,
            "published": index.published_at[:10] if index else "never fetched",
            "rows": sum(part.rows for part in index.parts) if index else 0,
            "licence": index.about.licence if index else "",
            "contact": index.about.contact if index else "",
            "address": source.address,
        }
        for source, index in sources
    ]
    return rows_table(listed, caption="Sources, by the indexes that were fetched last", class_="sortable")


def _map(device: str, found: Sequence[Offer], now: datetime) -> Markup:
    """Operators × sites of a device: rows, and days since the last measurement."""
    sites = sorted({offer.source.name for offer in found})
    cells: dict[str, dict[str, tuple[int, str]]] = {}
    for offer in found:
        for part in offer.parts:
            of_operator = cells.setdefault(part.operator or "steps", {})
            rows, last = of_operator.get(offer.source.name, (0, ""))
            of_operator[offer.source.name] = (rows + part.rows, max(last, part.last_measured_at))
    body = [
        [operator, *(_cell(of_sites.get(site), now) for site in sites)]
        for operator, of_sites in sorted(cells.items())
    ]
    caption = f"{device}: rows, and age of the newest, by operator and source"
    return table(["operator", *sites], body, caption=caption, class_="sortable")


def _cell(cell: tuple[int, str] | None, now: datetime) -> str:
    if cell is None:
        return ""
    rows, last = cell
    return f"{rows:,} · {_age(last, now)}"


def _age(moment: str, now: datetime) -> str:
    try:
        measured = datetime.fromisoformat(moment)
    except ValueError:
        return "undated"
    days = (now - (measured if measured.tzinfo else measured.replace(tzinfo=UTC))).days
    return counted(max(days, 0), "day")


def _agreement(agreements: Sequence[Agreement], database: str) -> Markup:
    if not agreements:
        return element(
            "p", f"{database}: no point was measured by two sites with the same device and software."
        )
    listed = [
        {
            **values_of(one, "site", "operator", "direction", "dtype", "sites", "points"),
            "median_ratio": one.ratio,
            "spread_ratio": one.spread,
            "verdict": "outlier" if one.is_outlier else "",
            **values_of(one, "hardware", "software"),
        }
        for one in agreements[:_MOST_ROWS]
    ]
    more = len(agreements) - len(listed)
    caption = (
        f"{database}: median over points of the site's time over the other site's, or over the median of three or more;"
        f" spread is the 90th over the 10th percentile.{f' The {more:,} closest are left out.' if more else ''}"
    )
    return rows_table(listed, caption=caption, class_="sortable notes")
