"""`kernelcast import`: a command per format of docs/importing.md."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kernelcast.cli.options import PATH, RenamedOption, database_option, json_option
from kernelcast.cli.sizes import parse_size
from kernelcast.cli.tables import text_table
from kernelcast.cli.terminal import is_quiet, print_json, say
from kernelcast.store import Database
from kernelcast.store.doubts import doubts_text
from kernelcast.store.importers import (
    Description,
    Imported,
    Parsed,
    read_aiconfigurator,
    read_csv_files,
    read_description,
    read_estimate_train_time,
    read_liger,
    read_nccl_tests,
    read_simumax,
    read_vidur,
    read_vtrain,
    store_parsed,
)
from kernelcast.store.importers.nccl_tests import OPERATORS_OF

FORMAT = "kernelcast.imported/1"
_SHOWN_PROBLEMS = 20
_COUNTED = ("operator", "role", "direction", "dtype")

F = TypeVar("F", bound=Callable[..., Any])


def _whole_gib(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    return None if text is None else max(1, round(parse_size(text, name="gpu_memory") / 2**30))


_DESCRIBING = (
    click.option(
        "--describe",
        type=PATH,
        help="TOML file with the fields of the following options.",
    ),
    click.option("--device-name", help="The device's name, as its maker writes it."),
    click.option(
        "--gpu-memory",
        "memory_gib",
        cls=RenamedOption,
        old=["--memory-gib"],
        rewritten=lambda text: f"{text}GiB",
        metavar="SIZE",
        callback=_whole_gib,
        help="Memory of a device, such as 80GiB; kept in whole GiB.",
    ),
    click.option("--gpus-per-node", type=click.IntRange(min=1), help="Devices that a node has."),
    click.option("--link", "links", multiple=True, help="What connects a node's devices; repeatable."),
    click.option("--nic", "nics", multiple=True, help="A network card between nodes; repeatable."),
    click.option("--torch", help="PyTorch version."),
    click.option("--driver", help="GPU driver version."),
    click.option("--cuda", help="CUDA (or ROCm) version."),
    click.option("--nccl", help="NCCL version."),
    click.option("--licence", help="Licence of the data, SPDX where possible."),
    click.option("--reference", help="Where it was published: an address or a citation."),
    click.option("--site", help="Who measured, stored as free text."),
    click.option(
        "--variant",
        "variants",
        multiple=True,
        help="Of operators measured in several ways, keep only this one (column variant); repeatable.",
    ),
    click.option("--strict", is_flag=True, help="Import nothing where a line is malformed."),
    json_option,
)
_FIELDS = {
    "hardware": ("device_name", "memory_gib"),
    "fabric": ("gpus_per_node", "links", "nics"),
    "software": ("torch", "driver", "cuda", "nccl"),
    "source": ("licence", "reference", "site"),
}


def _importing(command: F) -> F:
    """PATH…, --db, what describes the measurements, --strict and --json."""
    for option in reversed(_DESCRIBING):
        command = option(command)
    command = database_option("The database; created if missing.")(command)
    paths = click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=PATH)
    return paths(command)


_commit_option = click.option(
    "--commit", default="", help="Commit of the repository that the files are from; kept with its address."
)


@click.group(name="import")
def import_() -> None:
    """Import others' measurements into a database.

    Each row keeps where it comes from: file, digest, licence. An import is stored whole or not at all, and
    repeating it adds nothing. Malformed lines are skipped and shown; with --strict the first one ends it.
    """


@import_.command()
@_importing
def csv(paths: tuple[Path, ...], **options: Any) -> None:
    """Import CSV files: operator, role, dtype, workload (or raw parameters) and time_us per row.

    \b
    kernelcast import csv times.csv --db bench.db --device-name 'NVIDIA H100 80GB HBM3'
    """
    _import(read_csv_files, paths, options)


@import_.command("estimate-train-time")
@_importing
def estimate_train_time(paths: tuple[Path, ...], **options: Any) -> None:
    """Import the method's authors' data: folders of a site with operator/ and nccl/ in them.

    \b
    kernelcast import estimate-train-time Perlmutter --db perlmutter.db
    """
    _import(read_estimate_train_time, paths, options)


@import_.command("nccl-tests")
@_importing
@click.option(
    "--collective",
    type=click.Choice(sorted(OPERATORS_OF)),
    help="Which one, for logs of older versions, which do not name it.",
)
@click.option("--as-dtype", default="", help="Count messages as elements of this dtype, with as many bytes.")
def nccl_tests(paths: tuple[Path, ...], collective: str | None, as_dtype: str, **options: Any) -> None:
    """Import logs of nccl-tests, all of one cluster in one go.

    \b
    kernelcast import nccl-tests all_reduce.log sendrecv.log --db fabric.db --as-dtype float16
    """
    _import(read_nccl_tests, paths, options, collective=collective or "", as_dtype=as_dtype)


@import_.command()
@_importing
def vtrain(paths: tuple[Path, ...], **options: Any) -> None:
    """Import vTrain's all-reduces inside a node: AR_GPU2.csv and so on.

    \b
    kernelcast import vtrain trace/a100/AR_GPU*.csv --db a100.db --device-name 'NVIDIA A100-SXM4-80GB' \\
      --gpus-per-node 8
    """
    _import(read_vtrain, paths, options)


@import_.command()
@_importing
def vidur(paths: tuple[Path, ...], **options: Any) -> None:
    """Import Vidur's collectives inside a node: all_reduce.csv and send_recv.csv.

    \b
    kernelcast import vidur a100_dgx/all_reduce.csv --db a100.db --device-name 'NVIDIA A100-SXM4-80GB' \\
      --gpus-per-node 8
    """
    _import(read_vidur, paths, options)


@import_.command()
@_importing
@_commit_option
def aiconfigurator(paths: tuple[Path, ...], commit: str, **options: Any) -> None:
    """Import aiconfigurator's GEMM, context attention, MoE and NCCL: Parquet files or folders.

    \b
    kernelcast import aiconfigurator systems/data/h100_sxm --db h100.db --commit 095f58a51
    """
    _import(read_aiconfigurator, paths, options, commit=commit)


@import_.command()
@_importing
@_commit_option
def simumax(paths: tuple[Path, ...], commit: str, **options: Any) -> None:
    """Import SimuMax's systems: linears, grouped products and attention, forward and backward.

    \b
    kernelcast import simumax configs/system/b200_bf16_ceperm.json --db b200.db --commit 4dcaae51
    """
    _import(read_simumax, paths, options, commit=commit)


@import_.command()
@_importing
@_commit_option
def liger(paths: tuple[Path, ...], commit: str, **options: Any) -> None:
    """Import Liger-Kernel's benchmarks of norms, RoPE, SwiGLU, losses and embeddings.

    \b
    kernelcast import liger benchmark/data/all_benchmark_data.csv --db liger.db --variant liger
    """
    _import(read_liger, paths, options, commit=commit)


def _described(options: dict[str, Any]) -> Description:
    """The options, over the fields of the file of --describe."""
    stated = Description(
        **{
            table: {name: options[name] for name in names if options[name] not in (None, ())}
            for table, names in _FIELDS.items()
        }
    )
    return stated.over(read_description(options["describe"])) if options["describe"] else stated


def _import(
    read: Callable[..., Parsed], paths: tuple[Path, ...], options: dict[str, Any], **own: str
) -> None:
    parsed = read(paths, described=_described(options), strict=options["strict"], **own)
    if options["variants"]:
        parsed.keep_variants(options["variants"])
    with Database.open(options["database_path"], create=True) as database:
        imported = store_parsed(database, parsed)
    counts = _counts(parsed)
    if options["as_json"]:
        print_json(_document(parsed, imported, counts))
        return
    if not is_quiet():
        _show(parsed, imported, counts)
    there = f", {imported.already_there:,} already there" if imported.already_there else ""
    malformed = f", {len(parsed.problems):,} malformed lines skipped" if parsed.problems else ""
    say(
        f"{options['database_path']}: {imported.added:,} samples added from {parsed.files} file(s)"
        f"{there}{malformed}"
    )


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
        say(f"doubtful: {doubts} (view doubtful_sample says why)")


def _counts(parsed: Parsed) -> dict[tuple[str, ...], int]:
    """Samples by operator, role, direction and dtype."""
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
