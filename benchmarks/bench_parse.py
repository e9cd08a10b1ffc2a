"""How fast traces are read, beside HolisticTraceAnalysis (MIT, pip: HolisticTraceAnalysis).

    python benchmarks/bench_parse.py FOLDER --hta-python .venv-hta/bin/python [--repeat 7] [--write docs/ingesting.md]

Both read every trace in FOLDER in turn, each in processes of its own that hold nothing else: kernelcast with
`read_trace`, once as it is and once with the arguments of every event parsed too (it parses them when they are asked
for), HolisticTraceAnalysis with `parse_trace_dataframe` and its default parser. Times are medians over the
repetitions after imports and one run to warm up; memory is what a process's peak grows by while it reads the file once.
"""

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

from kernelcast.validate.markdown import fill

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
        found[path][name] = statistics.median(seconds), (answer[1] if answer else 0.0) / 1e6
    return found


def table(found: dict[Path, dict[str, tuple[float, float]]]) -> str:
    """The figures as Markdown."""
    lines = [
        "| trace | MB packed | ms | with arguments ms | HTA ms | ratio | with arguments | MB | HTA MB | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    ratios, ratios_with, memory = [], [], []
    for path, by_reader in found.items():
        if THEIRS not in by_reader or OURS not in by_reader:
            refused = " and ".join(name for name in (OURS, THEIRS) if name not in by_reader)
            lines.append(
                f"| {path.name} | {path.stat().st_size / 1e6:.2f} | refused by {refused} | | | | | | | |"
            )
            continue
        (ours, ours_mb), (more, _), (theirs, theirs_mb) = (by_reader[name] for name in READERS)
        ratios.append(theirs / ours)
        ratios_with.append(theirs / more)
        ratio_mb = ""
        if ours_mb >= 1:
            memory.append(theirs_mb / ours_mb)
            ratio_mb = f"{theirs_mb / ours_mb:.1f}"
        packed_mb = path.stat().st_size / 1e6
        lines.append(
            f"| {path.name} | {packed_mb:.2f} | {ours * 1e3:.1f} | {more * 1e3:.1f} | {theirs * 1e3:.0f} | "
            f"{theirs / ours:.1f} | {theirs / more:.1f} | {ours_mb:.0f} | {theirs_mb:.0f} | {ratio_mb} |"
        )
    return "\n".join(lines) + (
        f"\n\nMedian of the ratios: {statistics.median(ratios):.1f} in time, {statistics.median(ratios_with):.1f} with "
        f"every argument parsed, {statistics.median(memory):.1f} in memory; the least in time is {min(ratios):.1f}, "
        f"with arguments {min(ratios_with):.1f} (aim: {AIM:g})."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--hta-python", required=True, help="Python of an environment with HolisticTraceAnalysis."
    )
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="Put the table between the marks of this page."
    )
    arguments = parser.parse_args()
    versions = "from importlib.metadata import version; print(version('HolisticTraceAnalysis'))"
    done = subprocess.run([arguments.hta_python, "-c", versions], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{arguments.hta_python}: has no HolisticTraceAnalysis, expected: make bench-parse")
    files = sorted(arguments.folder.rglob("*.json.gz"))
    if not files:
        sys.exit(f"{arguments.folder}: holds no *.json.gz, expected traces")
    pythons = {OURS: sys.executable, OURS_WITH_ARGUMENTS: sys.executable, THEIRS: arguments.hta_python}
    text = (
        f"HolisticTraceAnalysis {done.stdout.strip()} (HTA), medians of {arguments.repeat}, one run.\n\n"
        + table(measure(files, pythons, arguments.repeat))
    )
    print(text)
    if arguments.write:
        fill(arguments.write, "bench-parse", f"\n{text}\n\n")


if __name__ == "__main__":
    main()
