"""`kernelcast serve`: its options. What it answers, and how it starts and stops, is in tests/serve."""

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from kernelcast.cli.main import kernelcast
from kernelcast.cli.serve import serve

ROOT = Path(__file__).parent.parent.parent


def run(*options: str) -> Result:
    return CliRunner().invoke(kernelcast, ["serve", *options])


@pytest.mark.parametrize(
    "options",
    [
        ["--workers", "0"],
        ["--waiting", "-1"],
        ["--max-search", "x"],
    ],
)
def test_limits_are_numbers_that_let_something_through(options: list[str]) -> None:
    result = run("--bundle", "x", "--socket", "/x/y", *options)
    assert (result.exit_code, options[0] in result.stderr) == (2, True)


def test_the_service_s_unit_uses_options_that_there_are() -> None:
    unit = (ROOT / "integrations" / "systemd" / "kernelcast.service").read_text(encoding="utf-8")
    found = re.search(r"^ExecStart=\S+/kernelcast serve (.*)$", unit, re.MULTILINE)
    assert found is not None
    with serve.make_context("serve", found[1].split()) as context:
        assert context.params["socket_path"] == "/run/kernelcast/socket"
    # Where the client for Slurm asks, too.
    ask = (ROOT / "integrations" / "slurm" / "kernelcast-ask").read_text(encoding="utf-8")
    assert "${KERNELCAST_SOCKET:-/run/kernelcast/socket}" in ask


def test_the_page_names_every_option() -> None:
    page = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    options = [
        option
        for option in serve.params
        if isinstance(option, click.Option) and option.name not in ("help", "quiet")
    ]
    assert [option.opts[0] for option in options if f"`{option.opts[0]}" not in page] == []
