"""`kernelcast walltime --k8s`: manifests with the time limits of the Jobs in them.

Reading and writing YAML loses comments, quotes and `0644`, so limits are inserted into the text at
the positions that PyYAML reports. The result is parsed again to check that it contains them. YAML 1.1, like kubectl.
"""

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from kernelcast.cli.terminal import is_quiet
from kernelcast.runtime import DataError, UsageError
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import one_line
from kernelcast.runtime.output_file import check_target, write_pieces
from kernelcast.runtime.small_file import STDIN, read_small_input
from kernelcast.walltime import Answer, KubernetesJob, annotated_job, answer, format_time, whole_seconds
from kernelcast.walltime.kubernetes import DEADLINE, LABEL, MAX_S


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
    changed, notes = rewrite(text, name=name, folder=folder, options=options, overwrite=overwrite)
    if output is None:
        click.echo(changed.encode(), nl=False)
    else:
        write_pieces(output, [changed])
    for note in () if is_quiet() else notes:
        click.echo(f"kernelcast: {one_line(note)}", err=True)


def rewrite(
    text: str, *, name: str, folder: Path, options: Mapping[str, str | None], overwrite: bool = False
) -> tuple[str, list[str]]:
    """A manifest's text with the time limits of its Jobs, and notes for the user; errors as in `rewrite_file`.

    `options` are fields from the command line, `folder` is where relative paths begin and a `kernelcast.toml`
    counts. A Job that has a time limit keeps it unless `overwrite`. When some Jobs have annotations of ours, the
    others are left unchanged.
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
    return changed, notes


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
    content = read_small_input(source, where=f"manifest {source}", most_bytes=MAX_BYTES)
    folder = Path.cwd() if source == STDIN else Path(source).absolute().parent
    try:
        return content.decode(), folder
    except UnicodeDecodeError as error:
        raise DataError(f"manifest {source}: not UTF-8 (byte {error.start})") from error


MAX_BYTES = 16 << 20
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One object of a file. `where` names it: `job.yaml document 2`."""

    where: str
    text: str
    node: yaml.Node

    def value(self) -> Any:
        """The object as dictionaries and lists; DataError for a date that does not exist, or another language's tag."""
        loader = yaml.SafeLoader("")
        try:
            # A copy, because merging keys (<<) changes the nodes.
            return loader.construct_document(copy.deepcopy(self.node))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise DataError(f"{self.where}: not a manifest ({_problem(error)})") from error
        finally:
            loader.dispose()

    def limited(self, time_s: int, *, where: str) -> list["Edit"]:
        """What to change in the text so that this Job has this time limit, in place of any other.

        `where` names the Job in UsageErrors: a key on the way is given twice, merged in, or holds no mapping.
        """
        return [
            self._set(("spec", DEADLINE), str(time_s), where),
            self._set(("metadata", "labels", LABEL), f'"{time_s}"', where),
        ]

    def _set(self, path: tuple[str, ...], value: str, where: str) -> "Edit":
        key, node = self.node, self.node
        for depth, name in enumerate(path):
            if not isinstance(node, yaml.MappingNode):
                raise UsageError(f"{where}: {'.'.join(path[:depth])} is empty, expected a mapping")
            if any(key.tag == _MERGE for key, _ in node.value):
                merged = ".".join(path[:depth]) or "the Job"
                raise UsageError(f"{where}: {merged} has a merge key (<<), expected plain keys")
            found = [pair for pair in node.value if pair[0].value == name]
            if len(found) > 1:
                line = found[1][0].start_mark.line + 1
                raise UsageError(f"{where}: {name} is given again in line {line}, expected once")
            if not found:
                return self._insertion(key, node, path[depth:], value)
            key, node = found[0]
        return Edit(begin=node.start_mark.index, end=node.end_mark.index, text=value)

    def _insertion(
        self, key: yaml.Node, mapping: yaml.MappingNode, names: tuple[str, ...], value: str
    ) -> "Edit":
        """Put nested names and a value at the beginning of the mapping that `key` has."""
        if mapping.flow_style:
            inner = f'"{names[-1]}": {value}'
            for name in reversed(names[:-1]):
                inner = f'"{name}": {{{inner}}}'
            begin = mapping.start_mark.index + 1
            return Edit(begin=begin, end=begin, text=inner + (", " if mapping.value else ""))
        # On its own line right below the key, so that comments stay above the lines they describe.
        begin = self.text.index("\n", key.end_mark.index) + 1
        line_end = "\r\n" if self.text[:begin].endswith("\r\n") else "\n"
        indent = " " * mapping.start_mark.column
        lines = [f"{indent}{'  ' * depth}{name}:" for depth, name in enumerate(names)]
        lines[-1] += f" {value}"
        return Edit(begin=begin, end=begin, text="".join(line + line_end for line in lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A replacement of the characters `begin` to `end` (exclusive) of a text."""

    begin: int
    end: int
    text: str


def read_manifests(text: str, *, name: str) -> list[Manifest]:
    """The objects of a file, those in Lists included, without empty documents; DataError with the line if not YAML."""
    try:
        nodes = [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if node is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"{name}: not YAML ({_problem(error)})") from error
    found: list[Manifest] = []
    for number, node in enumerate(nodes, start=1):
        where = f"{name} document {number}"
        items = _items(node)
        if items is None:
            found.append(Manifest(where=where, text=text, node=node))
        else:
            found += [
                Manifest(where=f"{where} item {index}", text=text, node=item)
                for index, item in enumerate(items, start=1)
            ]
    return found


def edited(text: str, edits: list[Edit]) -> str:
    for edit in sorted(edits, key=lambda edit: edit.begin, reverse=True):
        text = text[: edit.begin] + edit.text + text[edit.end :]
    return text


def _items(node: yaml.Node) -> list[yaml.Node] | None:
    """The items of a `kind: List`, as `kubectl get -o yaml` writes; None for everything else."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    values = {key.value: value for key, value in pairs if isinstance(key, yaml.ScalarNode)}
    items = values.get("items")
    if isinstance(items, yaml.SequenceNode) and getattr(values.get("kind"), "value", None) == "List":
        return list(items.value)
    return None


def _problem(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    lines = str(problem or error).splitlines() or [type(error).__name__]
    return f"line {mark.line + 1}: {lines[0]}" if mark is not None else lines[0]
