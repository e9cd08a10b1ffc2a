"""`kernelcast walltime --k8s`: manifests with the time limits of the Jobs in them."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from kernelcast.cli.manifest import MAX_BYTES, Edit, edited, read_manifests
from kernelcast.cli.terminal import is_quiet
from kernelcast.runtime import DataError, UsageError
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import one_line
from kernelcast.runtime.output_file import check_target, write_pieces
from kernelcast.runtime.small_file import open_regular
from kernelcast.walltime import Answer, KubernetesJob, annotated_job, answer, format_time, whole_seconds
from kernelcast.walltime.kubernetes import MAX_S

STDIN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A manifest's text with time limits set, and notes for the user."""

    text: str
    notes: tuple[str, ...]


def rewrite_file(
    source: str | None, *, options: Mapping[str, str | None], overwrite: bool, output: Path | None
) -> None:
    """Read a manifest, predict its Jobs, and write it to `output` or the standard output.

    Nothing is written when anything goes wrong.

    Raises:
        UsageError: a Job's description is wrong or incomplete, or there is no Job; names document and field.
        DataError: a file cannot be read or written, or is not YAML.
    """
    if source is None:
        raise UsageError("--k8s is given without JOB, expected a manifest's file, or - for standard input")
    if output is not None:
        check_target(output, "--output")
    text, folder = _read(source)
    name = "manifest" if source == STDIN else source
    rewritten = rewrite(text, name=name, folder=folder, options=options, overwrite=overwrite)
    if output is None:
        click.echo(rewritten.text.encode(), nl=False)
    else:
        write_pieces(output, [rewritten.text])
    for note in () if is_quiet() else rewritten.notes:
        click.echo(f"kernelcast: {one_line(note)}", err=True)


def rewrite(
    text: str, *, name: str, folder: Path, options: Mapping[str, str | None], overwrite: bool = False
) -> Rewritten:
    """A manifest's text with the time limits of its Jobs.

    `options` are fields from the command line, `folder` is where relative paths begin and a `kernelcast.toml`
    counts. A Job that has a time limit keeps it unless `overwrite`. When some Jobs have annotations of ours, the
    others are left unchanged.

    Raises:
        UsageError, DataError: as in `rewrite_file`.
    """
    manifests = read_manifests(text, name=name)
    jobs = [
        (manifest, job)
        for manifest in manifests
        if (job := KubernetesJob.read(manifest.value(), where=manifest.where)) is not None
    ]
    if not jobs:
        raise UsageError(f"{name}: has no Job of batch/v1 among {len(manifests)} object(s), expected one")
    described = [(manifest, job, job.given(folder)) for manifest, job in jobs if not job.off]
    if any(given for _, _, given in described):
        described = [entry for entry in described if entry[2]]
    edits: list[Edit] = []
    notes: list[str] = []
    limits: dict[str, int] = {}
    for manifest, job, given in described:
        asked_s = job.asked_s()
        found = answer(
            annotated_job(given, folder=folder, options=options, environment=os.environ),
            allocation=job.allocation(),
            asked_s=None if overwrite else asked_s,
        )
        notes += [f"warning: {job.where}: {warning}" for warning in found.warnings]
        if asked_s is not None and not overwrite:
            notes.append(f"{job.where}: keeps its time limit, {format_time(asked_s)}")
            continue
        limits[job.where] = _limit_s(job, found)
        edits += manifest.limited(limits[job.where], where=job.where)
        notes.append(f"{job.where}: time limit {format_time(limits[job.where])}, as predicted")
    changed = edited(text, edits)
    _check(changed, name=name, count=len(manifests), limits=limits)
    return Rewritten(text=changed, notes=tuple(notes))


def _limit_s(job: KubernetesJob, found: Answer) -> int:
    time_s = max(1, whole_seconds(found.walltime.walltime_s))
    if time_s > MAX_S:
        raise UsageError(f"{job.where}: its time is {time_s} s, expected at most {MAX_S}, Kueue's longest")
    return time_s


def _check(text: str, *, name: str, count: int, limits: Mapping[str, int]) -> None:
    """Check that the written text reads back with the intended limits, whatever the file looked like."""
    try:
        manifests = read_manifests(text, name=name)
        jobs = [KubernetesJob.read(manifest.value(), where=manifest.where) for manifest in manifests]
        written = {job.where: job.limits() for job in jobs if job is not None and job.where in limits}
        for manifest in manifests:
            if any(where.startswith(manifest.where) for where in limits):
                manifest.limited(1, where=manifest.where)  # raises if a key is given twice
    except (UsageError, DataError):
        manifests, written = [], {}
    if len(manifests) != count or written != {where: [limit, limit] for where, limit in limits.items()}:
        raise DataError(f"{name}: a time limit cannot be inserted, expected plain mappings")


def _read(source: str) -> tuple[str, Path]:
    try:
        if source == STDIN:
            content, folder = sys.stdin.buffer.read(MAX_BYTES + 1), Path.cwd()
        else:
            path = Path(source)
            if path.exists() and not path.is_file():
                raise DataError(f"manifest {source}: not a regular file")
            with open_regular(path) as stream:
                content, folder = stream.read(MAX_BYTES + 1), path.absolute().parent
    except OSError as error:
        raise DataError(f"manifest {source}: cannot be read ({error.strerror})") from error
    if len(content) > MAX_BYTES:
        raise DataError(f"manifest {source}: larger than {MAX_BYTES} bytes")
    try:
        return content.decode(), folder
    except UnicodeDecodeError as error:
        raise DataError(f"manifest {source}: not UTF-8 (byte {error.start})") from error
