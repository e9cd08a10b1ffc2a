"""A log of nccl-tests as sections, one per collective: devices, settings, and rows as they are printed.

Lines are recognised by their content, not their position: launchers and NCCL print messages in between, and versions
differ in their columns.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kernelcast.runtime.errors import DataError
from kernelcast.store.importers.csv_table import positive, whole
from kernelcast.store.importers.text_file import Malformed, Skipped, TextFile

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
        """Number of nodes, and of devices per node.

        Raises:
            Malformed: no device list, several groups, or different numbers of devices per node.
        """
        if not self.hosts:
            raise Malformed("the test lists no devices ('#  Rank  0 … on HOST device …')")
        if len(self.groups) > 1:
            raise Malformed(f"{len(self.groups)} groups ran at once, expected one")
        per_node = {self.hosts.count(host) for host in set(self.hosts)}
        if len(per_node) > 1:
            numbers = ", ".join(map(str, sorted(per_node)))
            raise Malformed(f"nodes have different numbers of devices ({numbers}), expected the same on all")
        return len(set(self.hosts)), per_node.pop()


def read_sections(file: TextFile, skipped: Skipped) -> list[Section]:
    """The tests of a log.

    Raises:
        DataError: the file is not a log of nccl-tests, or `skipped` is strict and a row is malformed.
    """
    sections = list(_sections(file, skipped))
    if not sections:
        raise DataError(f"{file.path}: is not a log of nccl-tests: no line '# nThread … nGpus …' in it")
    return sections


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
    is_empty = named["count"] == "0"
    return LogRow(
        line=number,
        size_bytes=0 if is_empty else whole(named["size"], "size"),
        count=0 if is_empty else whole(named["count"], "count"),
        type_name=named["type"],
        reduction=named.get("redop", ""),
        out_of_place_us=positive(times[0], "time"),
        in_place_us=positive(times[1], "in-place time") if len(times) == 2 and times[1] != "N/A" else None,
    )
