"""`kernelcast import`: a command per format of docs/importing.md."""

import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from kernelcast.cli import option
from kernelcast.cli.tables import print_table, text_table
from kernelcast.cli.terminal import Shown, is_quiet, say
from kernelcast.runtime.estimate.step_spread import shares_of
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.views.formatting import seconds
from kernelcast.store import Database, importers
from kernelcast.store.doubts import doubts_text
from kernelcast.store.importers import Description, Imported, Parsed, read_description, store_parsed
from kernelcast.store.importers.job_logs import read_mlperf_steps
from kernelcast.store.importers.nccl_tests import OPERATORS_OF
from kernelcast.store.statistics import percentile
from kernelcast.store.steps import StepTimes

FORMAT = "kernelcast.imported/1"
_SHOWN_PROBLEMS = 20
_COUNTED = ("operator", "role", "direction", "dtype")


def _whole_gib(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    return None if text is None else max(1, round(option.parse_size(text, name="gpu_memory") / 2**30))


_TABLE = tomllib.loads(Path(__file__).with_name("import.toml").read_text(encoding="utf-8"))
_KINDS: Mapping[str, Callable[..., Any]] = {
    "text": option.text,
    "count": option.count,
    "several": option.several,
    "memory": partial(option.text, metavar="SIZE", callback=_whole_gib),
}
_OPTIONS = (
    click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=option.PATH),
    option.database("Database to write; created if missing."),
    option.text("--describe", "TOML file that sets the options below.", type=option.PATH),
    *(_KINDS[one.get("kind", "text")](one["option"], one["name"], one["help"]) for one in _TABLE["fact"]),
    option.several(
        "--variant",
        "variants",
        "Import only this variant of operators measured in several ways (column variant); repeatable.",
    ),
    option.flag("--strict", "Import nothing if a line is malformed."),
)
_FURTHER = {
    "collective": option.choice(
        sorted(OPERATORS_OF),
        "--collective",
        "Collective of the logs, for older versions, which do not name it.",
    ),
    "as-dtype": option.text("--as-dtype", "Convert message sizes to elements of this dtype.", default=""),
    "commit": option.text(
        "--commit",
        "Commit of the repository that the files are from; stored with its address.",
        default="",
    ),
}


@click.group(name="import")
def import_() -> None:
    """Import others' measurements into a database.

    Each row keeps its source: file, digest and licence. An import is stored completely or not at all; repeating it adds
    nothing. Malformed lines are skipped and listed; with --strict, the first one is an error.
    """


def _add_command(name: str, *, reader: str, help: str, example: str, options: Sequence[str] = ()) -> None:
    """Add the command of a format; its reader takes the values of its own `options` by name."""

    @option.json
    def command(**given: Any) -> Shown:
        return _import(getattr(importers, reader), **given)

    for decorate in reversed((*_OPTIONS, *(_FURTHER[one] for one in options))):
        command = decorate(command)
    import_.command(
        name, help=f"{help}\n\n\b\n{example}", short_help=help.partition(":")[0].rstrip(".") + "."
    )(command)


for _name, _row in _TABLE["command"].items():
    _add_command(_name, **_row)


def _described(describe: Path | None, options: dict[str, Any]) -> Description:
    """The fields of the --describe file, overridden by options; removes them from `options`."""
    tables: dict[str, dict[str, Any]] = defaultdict(dict)
    for one in _TABLE["fact"]:
        if (value := options.pop(one["name"])) not in (None, ()):
            tables[one["table"]][one["name"]] = value
    stated = Description(**tables)
    return stated.over(read_description(describe)) if describe else stated


def _import(
    read: Callable[..., Parsed],
    *,
    paths: tuple[Path, ...],
    database_path: Path,
    describe: Path | None,
    variants: tuple[str, ...],
    strict: bool,
    **options: Any,
) -> Shown:
    described = _described(describe, options)
    own = {name: value or "" for name, value in options.items()}
    parsed = read(paths, described=described, strict=strict, **own)
    if variants:
        parsed.keep_variants(variants)
    with Database.open(database_path, create=True) as database:
        imported = store_parsed(database, parsed)
    counts = _counts_of_samples(parsed)

    def show() -> None:
        if not is_quiet():
            _show(parsed, imported, counts)
        there = f", {imported.already_there:,} already there" if imported.already_there else ""
        malformed = f", {len(parsed.problems):,} malformed lines skipped" if parsed.problems else ""
        say(
            f"{database_path}: {imported.added:,} samples added from {parsed.files} file(s){there}{malformed}"
        )

    return Shown(_document(parsed, imported, counts), show)


def _show(parsed: Parsed, imported: Imported, counts: dict[tuple[str, ...], int]) -> None:
    rows = [(*key, f"{count:,}") for key, count in counts.items()]
    click.echo(text_table((*_COUNTED, "samples"), rows))
    for reason, count in sorted(parsed.left_out.items()):
        say(f"left out: {count:,} rows {reason}")
    for problem in parsed.problems[:_SHOWN_PROBLEMS]:
        click.echo(f"skipped: {problem}", err=True)
    if (more := len(parsed.problems) - _SHOWN_PROBLEMS) > 0:
        click.echo(f"skipped: {more:,} more malformed lines", err=True)
    if doubts := doubts_text(imported.doubts, parsed.sample_count):
        say(f"doubtful: {doubts} (reasons are in the view doubtful_sample)")


def _counts_of_samples(parsed: Parsed) -> dict[tuple[str, ...], int]:
    counts: Counter[tuple[str, ...]] = Counter()
    for batch in parsed.runs:
        counts.update((s.operator, s.role, s.direction.value, s.dtype) for s in batch.samples)
    return dict(sorted(counts.items()))


def _document(parsed: Parsed, imported: Imported, counts: dict[tuple[str, ...], int]) -> dict[str, object]:
    return {
        "format": FORMAT,
        "files": parsed.files,
        "added": imported.added,
        "already_there": imported.already_there,
        "doubtful": dict(imported.doubts),
        "samples": [
            {**dict(zip(_COUNTED, key, strict=True)), "count": count} for key, count in counts.items()
        ],
        "left_out": dict(sorted(parsed.left_out.items())),
        "malformed": [{"file": str(p.path), "line": p.line, "problem": p.text} for p in parsed.problems],
    }


STEPS_FORMAT = "kernelcast.imported-steps/1"


@import_.command("mlperf")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=option.PATH)
@option.database("Database to write; created if missing.")
@option.count("--gpus", "Devices of the run.", required=True)
@option.text("--device-name", "The device's name, as its vendor writes it.", default="")
@option.text("--licence", "Licence of the data, SPDX where possible.", default="")
@option.text("--reference", "Publication: an address or a citation.", default="")
@option.json
def mlperf(paths: tuple[Path, ...], database_path: Path, **asked: Any) -> Shown:
    """Import times of single steps from MLPerf Training logs (train_step_time), plain or gzipped.

    `plan --db` takes the spread of step times from them.

    \b
    kernelcast import mlperf result_0.txt --db site.db --gpus 512 --device-name 'NVIDIA B200'
    """
    found = [read_mlperf_steps(path, **asked) for path in paths]
    with Database.open(database_path, create=True) as database:
        added = database.add_all(found)
    rows = [_values(one) for one in found]

    def show() -> None:
        if not is_quiet():
            print_table(
                found,
                ("benchmark", lambda one: one.model_name),
                ("publisher", lambda one: one.publisher),
                ("steps", lambda one: f"{len(one.times_s):,}"),
                ("p50", lambda one: seconds(percentile(one.times_s, 0.5))),
                ("p90 / p50", lambda one: f"{shares_of(one.times_s).p90:.4f}"),
                ("p99 / p50", lambda one: f"{shares_of(one.times_s).p99:.4f}"),
                ("start", lambda one: "" if one.start_s is None else seconds(one.start_s)),
            )
        say(f"{database_path}: {added:,} of {len(found):,} runs added")

    return Shown({"format": STEPS_FORMAT, "added": added, "runs": rows}, show)


def _values(one: StepTimes) -> dict[str, object]:
    return {
        **values_of(one, "publisher", benchmark="model_name", gpus="gpus"),
        "steps": len(one.times_s),
        "p50_s": percentile(one.times_s, 0.5),
        **values_of(shares_of(one.times_s), "p90", "p99", "mean"),
        "start_s": one.start_s,
    }
