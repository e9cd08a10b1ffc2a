"""The `kernelcast` command: finds a verb's file, and turns every error into one line and an exit code."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from kernelcast.cli.lazy import LazyGroup, Verb
from kernelcast.cli.terminal import coloured, remember_typed
from kernelcast.runtime.errors import KernelcastError, one_line
from kernelcast.runtime.spelling import nearest_names

INTERRUPTED = 130
READER_GONE = 141
"""The exit status in a shell after a broken pipe: 128 + SIGPIPE."""

# Raised for a verb without arguments since click 8.2; before, click shows the help itself.
_NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())


_NUMBERS = {
    f"is not a valid {kind}{in_range}.": f"is not a {name}."
    for kind, name in {"integer": "whole number", "float": "number"}.items()
    for in_range in (" range", "")
}
"""What click says of a text that is no number, and what is said here."""

VERBS: Mapping[str, Verb] = {
    "probe": Verb("probe", "probe", "collector", "Show this machine's fingerprints."),
    "collect": Verb("collect", "collect", "collector", "Measure operators and collectives into a database."),
    "import": Verb("import_", "import_", "store", "Import others' measurements into a database."),
    "ingest": Verb("ingest", "ingest", "collector", "Add profiler traces of real runs to a database."),
    "trace": Verb("trace", "trace", "collector", "Ask traces of real runs where a step's time goes."),
    "db": Verb("db", "db", "store", "Look into, verify, merge, compare and share databases."),
    "hardware": Verb("hardware", "hardware", "", "List the hardware whose measurements ship."),
    "fabric": Verb("fabric", "fabric", "", "Describe what connects devices, and show collectives on it."),
    "stack": Verb("stack", "stack", "", "Fit and list what training software does to sums of operators."),
    "models": Verb("models", "models", "", "List built-in models, or how a model's file is read."),
    "train": Verb("train", "train", "train", "Fit regressors and write them as an ONNX bundle."),
    "calibrate": Verb("calibrate", "calibrate", "", "Correct a bundle by a few measured steps."),
    "bundle": Verb("bundle", "bundle", "", "Look into, verify, compare and sign bundles."),
    "predict": Verb("predict", "predict", "", "Predict a training step from a bundle."),
    "search": Verb("search", "search_", "", "Find the fastest layouts of a model on a number of devices."),
    "walltime": Verb("walltime", "walltime", "", "Predict how long a job takes, for people and schedulers."),
    "explore": Verb("explore", "explore", "serve", "Explore layouts, databases and traces in the browser."),
    "serve": Verb("serve", "serve", "serve", "Answer predictions over HTTP, from a warm bundle."),
    "compare": Verb(
        "compare",
        "compare",
        "collector",
        "Say whether a real run is as fast as predicted, and if not, why.",
    ),
    "validate": Verb("validate", "validate", "", "Predict steps that were measured, and compare."),
    "demo": Verb("demo", "demo", "all", "Do all of it on this machine and check it against real steps."),
}


class ReaderGone(Exception):
    """Nobody reads what is printed any more. No OSError: click would end with status 1 on it."""


@contextmanager
def noticing_readers() -> Iterator[None]:
    """Turn a broken pipe into `ReaderGone`: verbs write to no other pipe that ends before they do."""
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGone from error


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by the shell: >&-
            stream.flush()


class MainGroup(LazyGroup):
    """The root: its verbs' output is out when it ends, or nobody reads it any more."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse; --help prints here already."""
        words = tuple(args)  # click takes words out of the list
        with noticing_readers():
            context = super().make_context(info_name, args, parent, color=coloured(), **extra)
        remember_typed(context, words)
        return context

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; what it printed is out when it ends."""
        try:
            with noticing_readers():
                status = super().invoke(ctx)
                _flush()
        except KeyboardInterrupt as error:
            # Of a KeyboardInterrupt, click ends a line that nobody began unless a terminal shows ^C there.
            if sys.stderr.isatty():
                raise
            raise click.Abort from error
        return status


@click.group(
    cls=MainGroup,
    verbs=VERBS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="kernelcast", message="%(package)s %(version)s")
def kernelcast() -> None:
    """Predict how long a distributed LLM training step takes, from operators measured on the hardware.

    \b
    kernelcast demo
    kernelcast collect compute --plan quick --db bench.db
    kernelcast train --db bench.db -o here.kcast
    kernelcast predict --bundle here.kcast --model model.toml --pp 2 --micro-batch 4 --micro-batches 8
    """


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; never shows a traceback for an error that kernelcast raises on purpose."""
    try:
        _run(arguments)
    except (ReaderGone, BrokenPipeError):
        # What could not be printed is still buffered, and would be tried again when Python ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                os.dup2(nowhere, stream.fileno())
        sys.exit(READER_GONE)


def _run(arguments: list[str] | None) -> NoReturn:
    try:
        status = kernelcast.main(arguments, prog_name="kernelcast", standalone_mode=False)
    except KernelcastError as error:
        click.echo(f"kernelcast: error: {one_line(str(error))}", err=True)
        sys.exit(error.exit_code)
    except _NO_ARGUMENTS as error:
        error.show()  # the help
        sys.exit(error.exit_code)
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption):
            error = click.NoSuchOption(error.option_name, possibilities=_meant(error), ctx=error.ctx)
        message = error.format_message()
        for clicks, ours in _NUMBERS.items():
            message = message.replace(clicks, ours)
        click.echo(f"kernelcast: error: {message}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        verb = next(iter(sys.argv[1:] if arguments is None else arguments), "")
        kept = (
            "what was measured is stored" if verb in ("collect", "demo") else "nothing was left half-written"
        )
        click.echo(f"kernelcast: interrupted; {kept}", err=True)
        sys.exit(INTERRUPTED)
    except OSError as error:
        # A full disk, a folder without permission.
        click.echo(f"kernelcast: error: {error}", err=True)
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)


def _meant(error: click.NoSuchOption) -> list[str]:
    """Suggestions for a misspelled option; click's own are too loose (`--dp` for `--tp`)."""
    if error.ctx is None:
        return []
    options = [name for parameter in error.ctx.command.get_params(error.ctx) for name in parameter.opts]
    return nearest_names(error.option_name, options)


if __name__ == "__main__":
    main()
