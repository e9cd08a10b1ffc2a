"""How fast traces are read, compared with HolisticTraceAnalysis (MIT, pip: HolisticTraceAnalysis).

Both read every trace in FOLDER in turn, each in processes of its own that hold nothing else: kernelcast with
`read_trace`, once as it is and once with the arguments of every event parsed too (it parses them when they are read
for), HolisticTraceAnalysis with `parse_trace_dataframe` and its default parser. Times are medians over the
repetitions after imports and one run to warm up; memory is what a process's peak grows by while it reads the file once.
"""

import subprocess
import sys
from pathlib import Path
from statistics import median

from kernelcast.benchmarks.harness import Bench, script
from kernelcast.docs.markdown import table

AIM = 5.0

# What each process runs: read a path per line from stdin, answer seconds and the growth of its peak memory in bytes.
_LOOP = """
import resource, sys, time
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
warm = sys.argv[1] == "time"
for line in sys.stdin:
    path = line.strip()
    try:
        if warm:
            read(path)
        before, start = peak(), time.perf_counter()
        read(path)
        print(time.perf_counter() - start, peak() - before, flush=True)
    except Exception as error:
        print("error", type(error).__name__, flush=True)
"""
READERS = {
    "kernelcast": "from pathlib import Path\nfrom kernelcast.collector.traces.kineto import read_trace\n"
    "def read(path): return read_trace(Path(path))\n",
    "kernelcast, arguments too": "from pathlib import Path\nfrom kernelcast.collector.traces.kineto import read_trace\n"
    "from kernelcast.collector.traces.arguments import arguments_of\n"
    "def read(path):\n    trace = read_trace(Path(path))\n"
    "    return trace, [arguments_of(event) for event in trace.events]\n",
    "HolisticTraceAnalysis": "import logging\nlogging.disable(logging.CRITICAL)\n"
    "import warnings\nwarnings.simplefilter('ignore')\n"
    "from hta.common.trace_parser import parse_trace_dataframe\nfrom hta.configs.parser_config import ParserConfig\n"
    "def read(path): return parse_trace_dataframe(path, ParserConfig.get_default_cfg())\n",
}
OURS, OURS_WITH_ARGUMENTS, THEIRS = READERS


class Reader:
    """A process that reads traces on request."""

    def __init__(self, python: str, code: str, mode: str) -> None:
        self.process = subprocess.Popen(
            [python, "-c", code + _LOOP, mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def read(self, path: Path) -> tuple[float, float] | None:
        """Seconds and bytes, or None where the reader refuses the file."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        first, second = self.process.stdout.readline().split()
        return None if first == "error" else (float(first), float(second))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(
    files: list[Path], pythons: dict[str, str], repeat: int
) -> dict[Path, dict[str, tuple[float, float]]]:
    """Median seconds and megabytes per file and reader; what refuses a file is absent."""
    found: dict[Path, dict[str, tuple[float, float]]] = {path: {} for path in files}
    readers = {name: Reader(pythons[name], code, "time") for name, code in READERS.items()}
    times: dict[tuple[Path, str], list[float]] = {}
    for _ in range(repeat):
        for path in files:
            for name, reader in readers.items():
                if answer := reader.read(path):
                    times.setdefault((path, name), []).append(answer[0])
    for reader in readers.values():
        reader.close()
    for (path, name), seconds in times.items():
        alone = Reader(pythons[name], READERS[name], "memory")
        answer = alone.read(path)
        alone.close()
        found[path][name] = median(seconds), (answer[1] if answer else 0.0) / 1e6
    return found


def rows_of(found: dict[Path, dict[str, tuple[float, float]]]) -> tuple[list[list[str]], list[list[float]]]:
    """Rows of the table; ratios of time, of time with arguments, of memory where it is measurable."""
    rows, ratios = [], []
    for path, by_reader in found.items():
        row = [path.name, f"{path.stat().st_size / 1e6:.2f}"]
        refused = " and ".join(name for name in (OURS, THEIRS) if name not in by_reader)
        if refused:
            rows.append([*row, f"refused by {refused}", *[""] * 7])
            continue
        (ours, ours_mb), (more, _), (theirs, theirs_mb) = (by_reader[name] for name in READERS)
        own = [theirs / ours, theirs / more, *([theirs_mb / ours_mb] if ours_mb >= 1 else [])]
        ratios.append(own)
        times = [f"{ours * 1e3:.1f}", f"{more * 1e3:.1f}", f"{theirs * 1e3:.0f}"]
        in_memory = [f"{ours_mb:.0f}", f"{theirs_mb:.0f}", f"{own[2]:.1f}" if len(own) > 2 else ""]
        rows.append([*row, *times, *(f"{one:.1f}" for one in own[:2]), *in_memory])
    return rows, ratios


HEADS = (
    "trace", "MB packed", "ms", "with arguments ms", "HTA ms", "ratio", "with arguments", "MB", "HTA MB", "ratio",
)  # fmt: skip


@script(
    page="ingesting.md",
    repeat=7,
    options={
        "folder": {"type": Path},
        "--hta-python": {"required": True, "help": "Python with HolisticTraceAnalysis"},
    },
)
def main(bench: Bench) -> None:
    given = bench.given
    versions = "from importlib.metadata import version; print(version('HolisticTraceAnalysis'))"
    done = subprocess.run([given.hta_python, "-c", versions], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{given.hta_python}: has no HolisticTraceAnalysis, expected: make bench-parse")
    files = sorted(given.folder.rglob("*.json.gz"))
    if not files:
        sys.exit(f"{given.folder}: holds no *.json.gz, expected traces")
    pythons = {OURS: sys.executable, OURS_WITH_ARGUMENTS: sys.executable, THEIRS: given.hta_python}
    rows, ratios = rows_of(measure(files, pythons, bench.repeat))
    in_time, with_arguments = ([one[place] for one in ratios] for place in (0, 1))
    in_memory = median(one[2] for one in ratios if len(one) > 2)
    lines = [
        "",
        f"HolisticTraceAnalysis {done.stdout.strip()} (HTA), medians of {bench.repeat}, one run.",
        "",
        *table(HEADS, rows, is_padded=False),
        "",
        f"Median of the ratios: {median(in_time):.1f} in time, {median(with_arguments):.1f} with every argument "
        f"parsed, {in_memory:.1f} in memory; the least in time is {min(in_time):.1f}, with arguments "
        f"{min(with_arguments):.1f} (aim: {AIM:g}).",
        "\n",
    ]
    bench.publish("\n".join(lines))
