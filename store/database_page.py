"""What a database holds as one self-contained page of HTML: coverage, noise, and hardware side by side."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from kernelcast.runtime.views.formatting import percent
from kernelcast.runtime.views.markup import Markup, element
from kernelcast.runtime.views.page import SORT, document, section, table, tile
from kernelcast.store.database import Database

_MOST_ROWS = 2000
_COVERAGE = f"""
    SELECT operator, direction, dtype, load, hardware, sum(samples) AS samples,
        sum(CASE WHEN status = 'ok' THEN workloads ELSE 0 END) AS workloads,
        sum(CASE WHEN status = 'ok' THEN 0 ELSE samples END) AS failures
    FROM coverage GROUP BY operator, direction, dtype, load, hardware, compute_id
    ORDER BY operator, direction, dtype, load, hardware LIMIT {_MOST_ROWS}
"""
_NOISE = f"""
    SELECT operator, direction, dtype, hardware, samples, mean_spread_percent, max_spread_percent,
        mean_over_quiet_percent
    FROM operator_noise ORDER BY mean_spread_percent DESC, operator, direction LIMIT {_MOST_ROWS}
"""
_PAIRS = """
    SELECT hardware_one, hardware_two, operator, direction, dtype, speedup_of_two FROM hardware_side_by_side
    WHERE speedup_of_two > 0 ORDER BY hardware_one, hardware_two, operator, direction, dtype
"""
_FLAGS = """
    SELECT flag, count(*) AS samples, count(DISTINCT operator) AS operators, min(detail) AS example
    FROM doubtful_sample GROUP BY flag ORDER BY samples DESC
"""


def database_page(database: Database, name: str) -> str:
    """The page of a database that is called `name`; headings of tables sort.

    Raises:
        DataError: the file is damaged or locked.
    """
    counts = database.row_counts()
    [dates] = database.query("SELECT min(measured_at) AS first, max(measured_at) AS last FROM sample")
    hardware = database.hardware_list()
    between = f"{dates['first'][:10]} to {dates['last'][:10]}" if dates["first"] else "nothing measured"
    header = element(
        "header",
        element("h1", name),
        element("p", "; ".join(one.description for one in hardware) or "no hardware", class_="soft"),
        element(
            "dl",
            tile("samples", f"{counts['sample']:,}", between),
            tile("kinds of hardware", f"{len(hardware):,}"),
            tile("software", f"{len(database.software_list()):,}", "stacks that measured"),
            tile("kernels", f"{counts['kernel']:,}", "stored one by one"),
            class_="tiles",
        ),
    )
    return document(f"Database {name}", header, element("main", *_sections(database)), script=SORT)


def _sections(database: Database) -> Iterator[Markup]:
    coverage = database.query(_COVERAGE)
    rows = [
        (one["operator"], one["direction"], one["dtype"], one["load"], one["hardware"],
         _number(one["workloads"]), _number(one["samples"]), _number(one["failures"] or None))
        for one in coverage
    ]  # fmt: skip
    heads = ("operator", "direction", "type", "load", "hardware", "workloads", "samples", "failures")
    yield _table(
        "Coverage", heads, rows, "Workloads are distinct sizes; samples count what was measured again.", 5
    )
    noise = database.query(_NOISE)
    rows = [
        (one["operator"], one["direction"], one["dtype"], one["hardware"], _number(one["samples"]),
         _percent(one["mean_spread_percent"]), _percent(one["max_spread_percent"]),
         _percent(one["mean_over_quiet_percent"]))
        for one in noise
    ]  # fmt: skip
    heads = (
        "operator",
        "direction",
        "type",
        "hardware",
        "samples",
        "mean spread",
        "largest spread",
        "over quiet",
    )
    note = (
        "Spread of a sample's repetitions: (90th - 10th percentile) / median; over quiet: how far the paper's "
        "statistic lies above the 10th percentile. Noisiest first."
    )
    yield _table("Noise", heads, rows, note, 4)
    flags = [(one["flag"], one["example"] or "", _number(one["operators"]), _number(one["samples"]))
             for one in database.query(_FLAGS)]  # fmt: skip
    if flags:
        yield _table(
            "Doubtful samples", ("flag", "for example", "operators", "samples"), flags, "By flag.", 2
        )
    yield _side_by_side(database)


def _side_by_side(database: Database) -> Markup:
    """Per two kinds of hardware, geometric means of the ratios of their times at the same points."""
    logs: defaultdict[tuple[str, str], defaultdict[tuple[str, ...], list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in database.connection.execute(_PAIRS):
        logs[row[0], row[1]][tuple(row[2:5])].append(math.log(row[5]))
    heads = ("operator", "direction", "type", "points", "two is faster by", "least", "most")
    pairs = [
        element(
            "div",
            element("h3", f"{one} (one) and {two} (two)"),
            _sorted(
                heads,
                [
                    (
                        *key,
                        _number(len(all_)),
                        _factor(sum(all_) / len(all_)),
                        _factor(min(all_)),
                        _factor(max(all_)),
                    )
                    for key, all_ in operators.items()
                ],
                "The same points on both; means are geometric. Below 1 the first is faster.",
                3,
            ),
        )
        for (one, two), operators in logs.items()
    ]
    nothing = element("p", "No point was measured on two kinds of hardware.", class_="soft")
    return section("Hardware side by side", *(pairs or [nothing]))


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], note: str, texts: int) -> Markup:
    if not rows:
        return section(title, element("p", "Nothing to show.", class_="soft"))
    cut = [element("p", f"The first {_MOST_ROWS:,} rows.", class_="soft")] if len(rows) == _MOST_ROWS else []
    return section(title, *cut, _sorted(heads, rows, note, texts))


def _sorted(heads: Sequence[str], rows: Sequence[Sequence[str]], note: str, texts: int) -> Markup:
    return table(
        heads, rows, caption=f"{note} A heading sorts.", text_columns=range(texts), class_="sortable"
    )


def _number(value: Any) -> str:
    return "" if value is None else element("data", f"{value:,}", value=str(value))


def _percent(value: float | None) -> str:
    return "" if value is None else element("data", percent(value / 100), value=str(value))


def _factor(log: float) -> str:
    value = math.exp(log)
    return element("data", f"{value:.2f} ×", value=f"{value:.6f}")
