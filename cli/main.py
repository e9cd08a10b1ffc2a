"""The `kernelcast` command: imports a verb's module, and turns every error into one line and an exit code."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from kernelcast.cli.lazy import LazyGroup, Verb
from kernelcast.cli.terminal import printable_streams, remember_typed
from kernelcast.runtime.errors import KernelcastError, nearest_names, one_line

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
"""Click's words for invalid numbers, and ours."""

VERBS: Mapping[str, Verb] = {
    "probe": Verb("probe", "probe", "collector", "Show this machine's fingerprints."),
    "collect": Verb("collect", "collect", "collector", "Measure operators and collectives into a database."),
    "import": Verb("import_", "import_", "store", "Import others' measurements into a database."),
    "ingest": Verb("ingest", "ingest", "collector", "Add profiler traces of real runs to a database."),
    "trace": Verb("trace", "trace", "collector", "Report, compare and export traces of real runs."),
    "db": Verb("db", "db", "store", "Inspect, verify, merge, compare, export and query databases."),
    "commons": Verb("commons", "commons", "store", "Publish measurements, and pull from other sites."),
    "hardware": Verb("hardware", "hardware", "", "List devices and the source of their operators' times."),
    "fabric": Verb("fabric", "fabric", "", "Describe networks and show times of collectives on them."),
    "stack": Verb("stack", "stack", "", "Fit and list software stacks: corrections for training software."),
    "models": Verb("models", "models", "", "List built-in models, or show how a model file is read."),
    "train": Verb("train", "train", "train", "Fit regressors and write them as an ONNX bundle."),
    "calibrate": Verb("calibrate", "calibrate", "", "Correct a bundle by a few measured steps."),
    "bundle": Verb("bundle", "bundle", "", "Inspect, verify, compare and sign bundles."),
    "predict": Verb("predict", "predict", "", "Predict the time of a training step."),
    "plan": Verb("plan", "plan_", "", "Plan a whole training run: failures, checkpoints, days, price."),
    "search": Verb("search", "search_", "", "Find the fastest layouts of a model on a number of devices."),
    "walltime": Verb(
        "walltime", "walltime", "", "Predict the time limit of a job, for people and schedulers."
    ),
    "explore": Verb("explore", "explore", "serve", "Explore layouts, databases and traces in the browser."),
    "serve": Verb("serve", "serve", "serve", "Serve predictions over HTTP."),
    "compare": Verb("compare", "compare", "collector", "Compare a real run with its prediction."),
    "validate": Verb("validate", "validate", "", "Compare predictions with measured steps and collectives."),
    "demo": Verb("demo", "demo", "all", "Measure, train, predict and compare on this machine."),
}


class ReaderGone(Exception):
    """The reader of the output is gone. Not an OSError, on which click would exit with status 1."""


@contextmanager
def noticing_readers() -> Iterator[None]:
    """Turn a broken pipe into `ReaderGone`: verbs write to no other pipe that can break."""
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGone from error


class MainGroup(LazyGroup):
    """The root group: flushes its verbs' output, and notices when the reader is gone."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line, with control characters escaped in all that it prints."""
        with printable_streams():
            return super().main(*args, **extra)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse; --help prints here already. Click drops no colours: the streams do."""
        words = tuple(args)  # click takes words out of the list
        with noticing_readers():
            context = super().make_context(info_name, args, parent, color=True, **extra)
        remember_typed(context, words)
        return context

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb and flush its output."""
        try:
            with noticing_readers():
                status = super().invoke(ctx)
                for stream in (sys.stdout, sys.stderr):
                    if stream is not None:  # closed by the shell: >&-
                        stream.flush()
        except KeyboardInterrupt as error:
            # On KeyboardInterrupt click prints a newline, wanted only after the ^C of a terminal.
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
        with printable_streams():
            _run(arguments)
    except (ReaderGone, BrokenPipeError):
        # Unprinted output is still buffered; Python would write it again at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                os.dup2(nowhere, stream.fileno())
        sys.exit(READER_GONE)


def _run(arguments: list[str] | None) -> NoReturn:
    try:
        status = kernelcast.main(arguments, prog_name="kernelcast", standalone_mode=False)
    except KernelcastError as error:
        # Imported here: commands must start fast.
        from kernelcast.runtime.request.field_types import option_name

        click.echo(f"kernelcast: error: {error.line(option_name)}", err=True)
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
        click.echo(f"kernelcast: error: {one_line(message)}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        verb = next(iter(sys.argv[1:] if arguments is None else arguments), "")
        kept = (
            "measured points are stored" if verb in ("collect", "demo") else "no file was left half-written"
        )
        click.echo(f"kernelcast: interrupted; {kept}", err=True)
        sys.exit(INTERRUPTED)
    except OSError as error:
        # A full disk, a folder without permission.
        click.echo(f"kernelcast: error: {one_line(str(error))}", err=True)
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
