"""Options that several verbs share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

device_option = click.option(
    "--device", default="auto", show_default=True, help="cpu, cuda, or auto: the GPU where there is one."
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Threads that one process computes with on a CPU.",
)
dtype_option = click.option(
    "--dtype", default="float32", show_default=True, help="float32, bfloat16 or float16."
)
plan_option = click.option(
    "--plan", default="quick", show_default=True, help="A plan that ships, or a TOML file like it."
)
again_option = click.option(
    "--again", is_flag=True, help="Measure what the database already holds once more."
)
site_option = click.option("--site", default="", help="Your site's name, stored as free text.")


def database_option(help_text: str) -> Callable[[F], F]:
    """Make the required `--db FILE`."""
    return click.option(
        "--db",
        "database_path",
        required=True,
        type=click.Path(path_type=Path, dir_okay=False),
        help=help_text,
    )


database_argument = click.argument(
    "database_path", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False)
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
max_size_option = click.option(
    "--max-size-gib",
    "max_size_bytes",
    type=click.FloatRange(min=0, min_open=True),
    default=16.0,
    show_default=True,
    callback=lambda context, parameter, value: int(value * 2**30),
    help="Refuse databases that are larger.",
)
