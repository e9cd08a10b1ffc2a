"""A database as one self-contained page of HTML: coverage, noise, doubtful samples, hardware side by side."""

import math
from collections.abc import Mapping

from kernelcast.runtime.views.page import Markup, document, element, rows_table, section, tile
from kernelcast.store.database import Database

_MOST_ROWS = 2000

_TABLES: Mapping[str, tuple[str, str]] = {
    "Coverage": (
        "Workloads are distinct sizes; samples also count repeated measurements of the same size.",
        """
        SELECT operator, direction, dtype, load, hardware,
            sum(CASE WHEN status = 'ok' THEN workloads ELSE 0 END) AS workloads, sum(samples) AS samples,
            nullif(sum(CASE WHEN status = 'ok' THEN 0 ELSE samples END), 0) AS failures
        FROM coverage GROUP BY operator, direction, dtype, load, hardware, compute_id
        ORDER BY operator, direction, dtype, load, hardware
        """,
    ),
    "Noise": (
        "Spread of a sample's repetitions: (90th - 10th percentile) / median. Over quiet: excess of the paper's "
        "statistic over the 10th percentile. Noisiest first.",
        """
        SELECT operator, direction, dtype, hardware, samples, mean_spread_percent, max_spread_percent,
            mean_over_quiet_percent
        FROM operator_noise ORDER BY mean_spread_percent DESC, operator, direction
        """,
    ),
    "Doubtful samples": (
        "Samples by flag.",
        """
        SELECT flag, min(detail) AS example, count(DISTINCT operator) AS operators, count(*) AS samples
        FROM doubtful_sample GROUP BY flag ORDER BY samples DESC
        """,
    ),
    "Hardware side by side": (
        "Time on hardware one / time on hardware two at points measured on both: geometric mean, least and most.",
        """
        SELECT operator, direction, dtype, count(*) AS points, exp(avg(ln(speedup_of_two))) AS speedup_of_two_ratio,
            min(speedup_of_two) AS least_ratio, max(speedup_of_two) AS most_ratio, hardware_one, hardware_two
        FROM hardware_side_by_side WHERE speedup_of_two > 0
        GROUP BY hardware_one, hardware_two, operator, direction, dtype
        """,
    ),
}
"""Caption and query by title, in the order of the page."""


def database_page(database: Database, name: str) -> str:
    """The page of a database called `name`; a click on a heading sorts the table.

    Raises:
        DataError: the file is damaged or locked.
    """
    counts = database.row_counts()
    [dates] = database.query("SELECT min(measured_at) AS first, max(measured_at) AS last FROM sample")
    hardware = database.hardware_list()
    between = f"{dates['first'][:10]} to {dates['last'][:10]}" if dates["first"] else "nothing measured"
    tiles = (
        tile("samples", f"{counts['sample']:,}", between),
        tile("kinds of hardware", f"{len(hardware):,}"),
        tile("software stacks", f"{len(database.software_list()):,}"),
        tile("kernels", f"{counts['kernel']:,}", "stored one by one"),
    )
    header = element(
        "header",
        element("h1", name),
        element("p", "; ".join(one.description for one in hardware) or "no hardware", class_="soft"),
        element("dl", *tiles, class_="tiles"),
    )
    # SQLite has logarithms only where it was compiled with them.
    database.connection.create_function("ln", 1, math.log, deterministic=True)
    database.connection.create_function("exp", 1, math.exp, deterministic=True)
    tables = (_table(database, title, caption, sql) for title, (caption, sql) in _TABLES.items())
    return document(f"Database {name}", header, element("main", *tables), sorts=True)


def _table(database: Database, title: str, caption: str, sql: str) -> Markup:
    rows = database.query(f"{sql} LIMIT {_MOST_ROWS}")
    if not rows:
        return section(title, element("p", "No rows.", class_="soft"))
    cut = f" The first {_MOST_ROWS:,} rows." if len(rows) == _MOST_ROWS else ""
    return section(title, rows_table(rows, caption=f"{caption}{cut} A heading sorts.", class_="sortable"))
