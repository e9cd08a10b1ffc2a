"""`kernelcast import`: a command per format of docs/importing.md."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from kernelcast.cli.options import PATH, Shown, database_option, json_option, parse_size
from kernelcast.cli.tables import print_table, text_table
from kernelcast.cli.terminal import is_quiet, say
from kernelcast.runtime.estimate.step_spread import shares_of
from kernelcast.runtime.views.formatting import seconds
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
from kernelcast.store.importers.job_logs import read_mlperf_steps
from kernelcast.store.importers.nccl_tests import OPERATORS_OF
from kernelcast.store.statistics import percentile
from kernelcast.store.steps import StepTimes

FORMAT = "kernelcast.imported/1"
_SHOWN_PROBLEMS = 20
_COUNTED = ("operator", "role", "direction", "dtype")


def _whole_gib(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    return None if text is None else max(1, round(parse_size(text, name="gpu_memory") / 2**30))


_FIELDS = {
    "hardware": ("device_name", "memory_gib"),
    "fabric": ("gpus_per_node", "links", "nics"),
    "software": ("torch", "driver", "cuda", "nccl"),
    "source": ("licence", "reference", "site"),
}
_OPTIONS = (
    click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=PATH),
    database_option("Database to write; created if missing."),
    click.option("--describe", type=PATH, help="TOML file with the fields of the following options."),
    click.option("--device-name", help="The device's name, as its vendor writes it."),
    click.option(
        "--gpu-memory",
        "memory_gib",
        metavar="SIZE",
        callback=_whole_gib,
        help="Memory of a device, such as 80GiB; rounded to whole GiB.",
    ),
    click.option("--gpus-per-node", type=click.IntRange(min=1), help="Devices per node."),
    click.option("--link", "links", multiple=True, help="Link between the devices of a node; repeatable."),
    click.option("--nic", "nics", multiple=True, help="Network card between nodes; repeatable."),
    click.option("--torch", help="PyTorch version."),
    click.option("--driver", help="GPU driver version."),
    click.option("--cuda", help="CUDA (or ROCm) version."),
    click.option("--nccl", help="NCCL version."),
    click.option("--licence", help="Licence of the data, SPDX where possible."),
    click.option("--reference", help="Publication: an address or a citation."),
    click.option("--site", help="Site that measured, as free text."),
    click.option(
        "--variant",
        "variants",
        multiple=True,
        help="Import only this variant of operators measured in several ways (column variant); repeatable.",
    ),
    click.option("--strict", is_flag=True, help="Import nothing if a line is malformed."),
)
_commit_option = click.option(
    "--commit", default="", help="Commit of the repository that the files are from; stored with its address."
)


@click.group(name="import")
def import_() -> None:
    """Import others' measurements into a database.

    Each row keeps its source: file, digest and licence. An import is stored completely or not at all; repeating it adds
    nothing. Malformed lines are skipped and listed; with --strict, the first one is an error.
    """


def _add_format(
    name: str, read: Callable[..., Parsed], text: str, *examples: str, own: Sequence[Callable[..., Any]] = ()
) -> None:
    """Add the command of a format. `read` takes the values of its `own` options by name."""

    @json_option
    def command(**options: Any) -> Shown:
        return _import(read, **options)

    for option in reversed((*_OPTIONS, *own)):
        command = option(command)
    import_.command(name, help="\n".join((text, "", "\b", *examples)))(command)


_add_format(
    "csv",
    read_csv_files,
    "Import CSV files with operator, role, dtype, workload (or raw parameters) and time_us in each row.",
    "kernelcast import csv times.csv --db bench.db --device-name 'NVIDIA H100 80GB HBM3'",
)
_add_format(
    "estimate-train-time",
    read_estimate_train_time,
    "Import the data of the method's authors: folders of a site with operator/ and nccl/ in them.",
    "kernelcast import estimate-train-time Perlmutter --db perlmutter.db",
)
_add_format(
    "nccl-tests",
    read_nccl_tests,
    "Import logs of nccl-tests, all of one cluster at once.",
    "kernelcast import nccl-tests all_reduce.log sendrecv.log --db fabric.db --as-dtype float16",
    own=(
        click.option(
            "--collective",
            type=click.Choice(sorted(OPERATORS_OF)),
            help="Collective of the logs, for older versions, which do not name it.",
        ),
        click.option("--as-dtype", default="", help="Convert message sizes to elements of this dtype."),
    ),
)
_add_format(
    "vtrain",
    read_vtrain,
    "Import vTrain's all-reduces inside a node: AR_GPU2.csv and so on.",
    "kernelcast import vtrain trace/a100/AR_GPU*.csv --db a100.db --device-name 'NVIDIA A100-SXM4-80GB' \\",
    "  --gpus-per-node 8",
)
_add_format(
    "vidur",
    read_vidur,
    "Import Vidur's collectives inside a node: all_reduce.csv and send_recv.csv.",
    "kernelcast import vidur a100_dgx/all_reduce.csv --db a100.db --device-name 'NVIDIA A100-SXM4-80GB' \\",
    "  --gpus-per-node 8",
)
_add_format(
    "aiconfigurator",
    read_aiconfigurator,
    "Import aiconfigurator's GEMM, context attention, MoE and NCCL: Parquet files or folders.",
    "kernelcast import aiconfigurator systems/data/h100_sxm --db h100.db --commit 095f58a51",
    own=(_commit_option,),
)
_add_format(
    "simumax",
    read_simumax,
    "Import SimuMax's systems: linears, grouped GEMMs and attention, forward and backward.",
    "kernelcast import simumax configs/system/b200_bf16_ceperm.json --db b200.db --commit 4dcaae51",
    own=(_commit_option,),
)
_add_format(
    "liger",
    read_liger,
    "Import Liger-Kernel's benchmarks of norms, RoPE, SwiGLU, losses and embeddings.",
    "kernelcast import liger benchmark/data/all_benchmark_data.csv --db liger.db --variant liger",
    own=(_commit_option,),
)


def _described(describe: Path | None, options: dict[str, Any]) -> Description:
    """The fields of the --describe file, overridden by options; removes them from `options`."""
    given = {table: {name: options.pop(name) for name in names} for table, names in _FIELDS.items()}
    stated = Description(
        **{
            table: {name: value for name, value in fields.items() if value not in (None, ())}
            for table, fields in given.items()
        }
    )
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
    counts = _counts(parsed)

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


STEPS_FORMAT = "kernelcast.imported-steps/1"


@import_.command("mlperf")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=PATH)
@database_option("Database to write; created if missing.")
@click.option("--gpus", type=click.IntRange(min=1), required=True, help="Devices of the run.")
@click.option("--device-name", default="", help="The device's name, as its vendor writes it.")
@click.option("--licence", default="", help="Licence of the data, SPDX where possible.")
@click.option("--reference", default="", help="Publication: an address or a citation.")
@json_option
def mlperf(
    *, paths: tuple[Path, ...], database_path: Path, gpus: int, device_name: str, licence: str, reference: str
) -> Shown:
    """Import times of single steps from MLPerf Training logs (train_step_time), also gzipped.

    `plan --db` takes the scatter of steps from them.

    \b
    kernelcast import mlperf result_0.txt --db site.db --gpus 512 --device-name 'NVIDIA B200'
    """
    found = [
        read_mlperf_steps(path, gpus=gpus, device_name=device_name, licence=licence, reference=reference)
        for path in paths
    ]
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
    shares = shares_of(one.times_s)
    return {
        "publisher": one.publisher,
        "benchmark": one.model_name,
        "gpus": one.gpus,
        "steps": len(one.times_s),
        "p50_s": percentile(one.times_s, 0.5),
        "p90": shares.p90,
        "p99": shares.p99,
        "mean": shares.mean,
        "start_s": one.start_s,
    }
