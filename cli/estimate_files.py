"""`predict --trace FILE` and `--html FILE`: the files that an estimate is written to."""

from dataclasses import dataclass
from pathlib import Path

import click

from kernelcast.runtime import Estimate, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateFiles:
    """Which files were asked for.

    Raises:
        UsageError: one cannot be written where it shall be, or both are the same.
    """

    trace: str | None
    html: str | None

    def __post_init__(self) -> None:
        asked = [
            (option, Path(path)) for option, path in (("--trace", self.trace), ("--html", self.html)) if path
        ]
        if not asked:
            return
        from kernelcast.runtime.output_file import check_target

        for option, path in asked:
            check_target(path, option)
        if len({path.resolve() for _, path in asked}) < len(asked):
            raise UsageError("--trace and --html are the same file, expected two")

    def write(self, estimate: Estimate) -> None:
        """Write the files asked for and name them on standard error: standard output may be JSON."""
        # Loaded when asked for: predictions without files do not wait for it.
        if self.trace:
            from kernelcast.runtime.views.chrome_trace import write_chrome_trace

            write_chrome_trace(estimate, Path(self.trace))
            click.echo(f"wrote {self.trace}: open it in ui.perfetto.dev or chrome://tracing", err=True)
        if self.html:
            from kernelcast.runtime.views.estimate_page import write_page

            write_page(estimate, Path(self.html))
            click.echo(f"wrote {self.html}", err=True)
