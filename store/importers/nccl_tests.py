"""Collectives from logs of nccl-tests: rows as workload vectors.

Lines are recognised by their content, not their position: launchers and NCCL print messages in between, and versions
differ in their columns.

In nccl-tests, `size` is the larger of a process's two buffers and `count` the number of elements in the smaller buffer:
the shard of an all-gather, the output of a reduce-scatter, the part of an all-to-all for one process. Workload vectors
have the shard of an all-gather, but the whole input of a reduce-scatter or an all-to-all.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.hardware.devices import ELEMENT_BYTES
from kernelcast.store.importers.description import Description, device_named
from kernelcast.store.importers.parsed import Parsed, TimedRow
from kernelcast.store.importers.tables import (
    LeftOut,
    Malformed,
    Skipped,
    TextFile,
    positive,
    read_text_file,
    whole,
)

_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
OPERATORS_OF: Mapping[str, str] = _DATA["operators"]
"""The operator of each test, without a role."""
_TYPES: Mapping[str, tuple[str, int]] = _DATA["types"]
_GATHERING = ("all_gather", "reduce_scatter", "alltoall")  # size is count × processes
_WHOLE = ("reduce_scatter", "alltoall")  # entries of the vector are the elements of the larger buffer
_ORDINARY_REDUCTIONS = ("", "sum", "none")

_VERSION = re.compile(r"# nccl-tests version (\S+)(?:.*\bnccl-library=(\d+))?")
_STARTING = re.compile(r"# Collective test starting: (\w+?)(?:_perf)?\s*$")
_SETTINGS = re.compile(r"#\s*nThread\b")
_SETTING = re.compile(r"([A-Za-z]\w*(?: iters)?):? (\d+)")
_RANK = re.compile(
    r"#\s+Rank\s+\d+\s+(?:Group\s+(?P<group>\d+)\s+)?Pid\s+\d+\s+on\s+(?P<host>\S+)\s+device\s+\d+\s+"
    r"\[[^\]]*\]\s+(?P<device>\S.*?)\s*$"
)
_COLUMNS = re.compile(r"#\s+size\s+count\s+type\s")
_LIBRARY = re.compile(r"NCCL version (\d+\.\d+\.\d+)\S*?(?:\+cuda(\d+\.\d+))?(?:\s|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """A printed row: a message of `count` elements, and its times out of place and in place (µs)."""

    line: int
    size_bytes: int
    count: int
    type_name: str
    reduction: str
    out_of_place_us: float
    in_place_us: float | None


@dataclass(slots=True, kw_only=True)
class Section:
    """A test of a log. `hosts` has an entry per rank, which is only counted."""

    line: int
    collective: str
    benchmark_version: str
    nccl_version: str
    cuda_version: str = ""
    settings: dict[str, int] = field(default_factory=dict)
    hosts: list[str] = field(default_factory=list)
    devices: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    rows: list[LogRow] = field(default_factory=list)

    def layout(self) -> tuple[int, int]:
        """Number of nodes, and of devices per node; Malformed where nodes have different ones, or none are listed."""
        if not self.hosts:
            raise Malformed("the test lists no devices ('#  Rank  0 … on HOST device …')")
        if len(self.groups) > 1:
            raise Malformed(f"{len(self.groups)} groups ran at once, expected one")
        per_node = {self.hosts.count(host) for host in set(self.hosts)}
        if len(per_node) > 1:
            numbers = ", ".join(map(str, sorted(per_node)))
            raise Malformed(f"nodes have different numbers of devices ({numbers}), expected the same on all")
        return len(set(self.hosts)), per_node.pop()


_Log = tuple[TextFile, list[Section]]


def read_nccl_tests(
    paths: Sequence[Path],
    *,
    described: Description | None = None,
    collective: str = "",
    as_dtype: str = "",
    strict: bool = False,
) -> Parsed:
    """Read logs of one cluster. Devices per node are the largest number that a test used on a node.

    `collective` is the collective of logs of older versions, which do not name it. With `as_dtype`, messages count as
    elements of that dtype; the conditions of the run list the measured types.

    Raises:
        DataError: a file is not such a log, the logs name several devices, or, with `strict`, a line is malformed.
        UsageError: `as_dtype` is unknown.
    """
    if as_dtype and as_dtype not in ELEMENT_BYTES:
        raise UsageError(f"as-dtype: found {as_dtype!r:.40}, expected one of {', '.join(ELEMENT_BYTES)}")
    parsed = Parsed(strict=strict, files=len(paths))
    logs: list[_Log] = []
    for path in paths:
        file = read_text_file(path)
        logs.append((file, list(_sections(file, parsed))))
        if not logs[-1][1]:
            raise DataError(f"{file.path}: is not a log of nccl-tests: no line '# nThread … nGpus …' in it")
        for section in logs[-1][1]:
            section.collective = section.collective or collective
    description = (described or Description()).over(_described_by_logs(logs))
    _check_device(logs, description)
    fabric = description.network()
    for file, sections in logs:
        for section in sections:
            own = description.over(_described_by_section(section, as_dtype))
            with parsed.row(file.path, section.line):
                rows = _rows(section, as_dtype, file, parsed)
                parsed.add_run("import nccl-tests", file, own, rows, fabric=fabric)
    return parsed.checked(paths)


def _described_by_logs(logs: Sequence[_Log]) -> Description:
    """The device and the devices per node of the logs."""
    sections = [section for _, of_file in logs for section in of_file]
    devices = sorted({device for section in sections for device in section.devices})
    hardware = device_named(devices[0]) if devices else {}
    most = max((section.hosts.count(host) for section in sections for host in section.hosts), default=0)
    return Description(hardware=hardware, fabric={"gpus_per_node": most} if most else {})


def _check_device(logs: Sequence[_Log], description: Description) -> None:
    expected = description.compute().device_name
    for file, sections in logs:
        for section in sections:
            if odd := sorted(section.devices - {expected}):
                raise DataError(
                    f"{file.path}:{section.line}: measured on {odd[0]!r:.60}, expected {expected!r:.60} "
                    "as elsewhere; import one kind of device at a time"
                )


def _described_by_section(section: Section, as_dtype: str) -> Description:
    versions = {"nccl": section.nccl_version, "cuda": section.cuda_version}
    conditions: dict[str, object] = {
        "benchmark": f"nccl-tests {section.benchmark_version}".strip(),
        "threads_per_process": section.settings.get("nThread", 1),
        "gpus_per_thread": section.settings.get("nGpus", 1),
        "aggregated_iterations": section.settings.get("agg iters", 1),
        "cuda_graph_launches": section.settings.get("graph", 0),
    }
    if as_dtype:
        conditions["bytes_counted_as"] = as_dtype
        conditions["measured_types"] = sorted({row.type_name for row in section.rows})
    return Description(
        software={name: version for name, version in versions.items() if version}, conditions=conditions
    )


def _sections(file: TextFile, skipped: Skipped) -> Iterator[Section]:
    version = library = cuda = collective = ""
    section: Section | None = None
    columns: Sequence[str] = ()
    for number, line in enumerate(file.text.split("\n"), start=1):
        if line.lstrip()[:1].isdigit():
            if section is not None and columns:
                with skipped.row(file.path, number):
                    section.rows.append(_row(number, line.split(), columns))
        elif match := _VERSION.match(line):
            version, library, collective = match[1], _library_version(match[2] or ""), ""
        elif match := _STARTING.match(line):
            collective = match[1]
        elif _SETTINGS.match(line):
            if section is not None:
                yield section
            section = Section(
                line=number,
                collective=collective,
                benchmark_version=version,
                nccl_version=library,
                cuda_version=cuda,
                settings={name: int(value) for name, value in _SETTING.findall(line)},
            )
            columns, collective = (), ""
        elif match := _LIBRARY.search(line):
            library, cuda = match[1], match[2] or ""
            if section is not None:
                section.nccl_version, section.cuda_version = library, cuda
        elif section is not None and (match := _RANK.match(line)):
            section.hosts.append(match["host"])
            section.devices.add(match["device"])
            section.groups.add(match["group"] or "0")
        elif section is not None and _COLUMNS.match(line):
            columns = line.lstrip("# ").split()
    if section is not None:
        yield section


def _library_version(code: str) -> str:
    """`22902` as 2.29.2, and `2804` (before 2.9) as 2.8.4."""
    if not code:
        return ""
    number = int(code)
    if number < 10_000:
        return f"{number // 1000}.{number // 100 % 10}.{number % 100}"
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


def _row(number: int, cells: Sequence[str], columns: Sequence[str]) -> LogRow:
    if len(cells) != len(columns):
        raise Malformed(f"found {len(cells)} values, expected {len(columns)} ({' '.join(columns):.60} …)")
    wrong = [cell for name, cell in zip(columns, cells, strict=True) if name == "#wrong"]
    if any(cell not in ("0", "N/A") for cell in wrong):
        raise Malformed(f"the test found wrong results (#wrong {' and '.join(wrong)})")
    named = dict(zip(columns, cells, strict=True))
    times = [cell for name, cell in zip(columns, cells, strict=True) if name == "time"]
    if not 1 <= len(times) <= 2:
        raise Malformed(f"found {len(times)} columns called time, expected one or two")
    if named["count"] == "0":
        raise LeftOut("of empty messages")
    return LogRow(
        line=number,
        size_bytes=whole(named["size"], "size"),
        count=whole(named["count"], "count"),
        type_name=named["type"],
        reduction=named.get("redop", ""),
        out_of_place_us=positive(times[0], "time"),
        in_place_us=positive(times[1], "in-place time") if len(times) == 2 and times[1] != "N/A" else None,
    )


def _rows(section: Section, as_dtype: str, file: TextFile, skipped: Skipped) -> Iterator[TimedRow]:
    if not section.collective:
        raise Malformed(
            "the log does not say which collective this test is ('# Collective test starting: …')"
        )
    name = OPERATORS_OF.get(section.collective)
    if name is None:
        skipped.left_out[f"of {section.collective}: no operator for it"] += len(section.rows)
        return
    nodes, gpus_per_node = section.layout()
    if nodes * gpus_per_node == 1:
        skipped.left_out["of one process alone"] += len(section.rows)
        return
    iterations = section.settings.get("iters", 0)
    for row in section.rows:
        with skipped.row(file.path, row.line):
            entries, dtype = _message(section, row, nodes * gpus_per_node, as_dtype)
            for place, time_us in (("out-of-place", row.out_of_place_us), ("in-place", row.in_place_us)):
                if time_us is not None:
                    yield TimedRow(
                        line=row.line,
                        operator=name,
                        dtype=dtype,
                        vector=(entries, nodes, gpus_per_node),
                        time_us=time_us,
                        statistic=f"mean of {iterations or 'several'}",
                        repetition_count=iterations,
                        variant=_variant(section, row, place, nodes * gpus_per_node),
                    )


def _message(section: Section, row: LogRow, processes: int, as_dtype: str) -> tuple[int, str]:
    """Entries of the workload vector, and torch's name of their type."""
    if row.type_name not in _TYPES:
        raise Malformed(f"type: found {row.type_name!r:.40}, expected one of {', '.join(_TYPES)}")
    dtype, element_bytes = _TYPES[row.type_name]
    smaller = row.count * element_bytes
    larger = smaller * processes if section.collective in _GATHERING else smaller
    if row.size_bytes != larger:
        raise Malformed(
            f"size {row.size_bytes} does not fit count {row.count} of {row.type_name}, expected {larger}"
        )
    dtype = as_dtype or dtype
    if not dtype:
        raise LeftOut(f"of {row.type_name}: no dtype of a training step")
    message_bytes = larger if section.collective in _WHOLE else smaller
    entries, rest = divmod(message_bytes, ELEMENT_BYTES[dtype])
    if rest:
        raise Malformed(f"{message_bytes} bytes are no whole number of {dtype} elements")
    return entries, dtype


def _variant(section: Section, row: LogRow, place: str, processes: int) -> str:
    parts = [place]
    if section.collective == "sendrecv" and processes > 2:
        parts.append("ring")  # every process sends to the next one at the same time
    if row.reduction not in _ORDINARY_REDUCTIONS:
        parts.append(row.reduction)
    return ", ".join(parts)
