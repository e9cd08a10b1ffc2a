"""`kernelcast db query`."""

import csv
import sys
from pathlib import Path

import click

from kernelcast.cli.options import database_argument, max_size_option, time_option
from kernelcast.cli.tables import table_lines
from kernelcast.cli.terminal import data_width
from kernelcast.runtime.json_text import json_text
from kernelcast.store.querying import DEFAULT_TIME_LIMIT_S, Answer, answer


@click.command()
@database_argument
@click.argument("sql")
@click.option(
    "--format",
    "form",
    type=click.Choice(("table", "csv", "json")),
    default="table",
    show_default=True,
    help="How the answer is printed.",
)
@time_option("--time-limit", "time_limit_s", DEFAULT_TIME_LIMIT_S, "End a query that computes for longer.")
@max_size_option
def query(database_path: Path, sql: str, form: str, time_limit_s: float, max_size_bytes: int) -> None:
    """Ask a question in SQL. The database is only read; anything else is refused.

    schema.sql lists tables and views, docs/sql.md frequent questions.

    \b
    kernelcast db query bench.db "SELECT operator, roles, direction, samples FROM coverage"
    kernelcast db query bench.db "SELECT * FROM operator_time" --format csv > times.csv
    """
    with answer(database_path, sql, max_size_bytes=max_size_bytes, time_limit_s=time_limit_s) as found:
        {"table": _table, "csv": _csv, "json": _json}[form](found)


def _table(found: Answer) -> None:
    rows = (["" if value is None else _shown(value) for value in row] for row in found.rows)
    for line in table_lines(found.columns, rows, width=data_width()):
        click.echo(line)


def _shown(value: object) -> str:
    return " ".join(str(value).split()) if isinstance(value, str) else str(value)


def _csv(found: Answer) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(found.columns)
    writer.writerows(found.rows)


def _json(found: Answer) -> None:
    """One object per row, in a list, written as it is read; JSON has no infinity, which SQL computes as 9e999."""
    click.echo("[", nl=False)
    for index, row in enumerate(found.rows):
        values = dict(zip(found.columns, map(_plain, row), strict=True))
        click.echo((",\n " if index else "\n ") + json_text(values, is_ascii=False), nl=False)
    click.echo("\n]")


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value
