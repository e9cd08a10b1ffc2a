"""What the benchmarks share: arguments, parts in new processes, ways timed in turn, and tables in pages of docs/."""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kernelcast.docs.markdown import fill
from kernelcast.runtime.bundle.file import write_bundle
from kernelcast.runtime.catalogue import hardware_bundle

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SHIPPED = "a100-sxm"
"""The default hardware: its bundle has measured operators for all layers of a GPT."""

Part = Callable[..., Mapping[str, float]]


def script(
    *,
    page: str = "",
    repeat: int = 0,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    **parts: Part,
) -> Callable[[Callable[["Bench"], None]], Callable[["Bench"], None]]:
    """Decorates the last function of a script, which runs where the script is the program.

    `repeat` is the default of `--repeat`, 0: no such option. With `page`, a file in docs/, `--write [FILE]` puts what
    is published between the marks named like the script. `options` are other arguments and their settings, as argparse
    takes them. `parts` run alone in a process.
    """
    known: dict[str, Mapping[str, Any]] = dict(options or {})
    if repeat:
        known["--repeat"] = {
            "type": int,
            "default": repeat,
            "metavar": "N",
            "help": f"repetitions [{repeat}]",
        }
    if page:
        about = f"put the result between the marks of a page [docs/{page}]"
        known["--write"] = {
            "type": Path, "nargs": "?", "const": DOCS / page, "metavar": "PAGE", "help": about
        }  # fmt: skip

    def run(main: Callable[["Bench"], None]) -> Callable[["Bench"], None]:
        if main.__module__ == "__main__":
            main(Bench(main.__globals__["__file__"], main.__globals__["__doc__"], known, parts))
        return main

    return run


class Bench:
    """A script that runs: its arguments, `given`, its parts, and the page with its table.

    A process that was started for a part runs it, prints its numbers and ends here.
    """

    def __init__(
        self, script: str, doc: str, options: Mapping[str, Mapping[str, Any]], parts: Mapping[str, Part]
    ) -> None:
        if sys.argv[1:2] == ["--part"]:
            name, values = sys.argv[2:]
            found = dict(parts[name](**json.loads(values)))
            print(json.dumps(found | {"peak_mb": peak_mb()}))
            sys.exit()
        self._script, self._load = Path(script), os.getloadavg()[0]
        parser = argparse.ArgumentParser(
            description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        for name, settings in options.items():
            parser.add_argument(name, **settings)
        self.given = parser.parse_args()
        self.repeat: int = getattr(self.given, "repeat", 1)
        self._page: Path | None = getattr(self.given, "write", None)

    def part(self, name: str, /, *, repeat: int | None = None, **arguments: object) -> dict[str, float]:
        """Medians of the numbers that a part answers in `repeat` new processes; `peak_mb` (MiB) is the largest."""
        command = [sys.executable, str(self._script), "--part", name, json.dumps(arguments, default=str)]
        answers: list[dict[str, float]] = []
        for _ in range(repeat or self.repeat):
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            answers.append(json.loads(done.stdout))
        medians = {key: statistics.median(one[key] for one in answers) for key in answers[0]}
        return medians | {"peak_mb": max(one["peak_mb"] for one in answers)}

    def publish(self, text: str, section: str = "", *, is_printed: bool = True) -> None:
        """Print a text, and write it into the page where `--write` is given, into its `section` if it has several."""
        if is_printed:
            print(text)
        if self._page is not None:
            mark = self._script.stem.replace("_", "-")
            fill(self._page, f"{mark}, {section}" if section else mark, text)

    def machine(self, *packages: str) -> str:
        """CPU, cores, load before, versions of Python and of packages, in one line without a stop."""
        lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
        names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
        versions = [f"Python {platform.python_version()}", *(f"{one} {version(one)}" for one in packages)]
        return (
            f"{names[0] if names else platform.machine()}, {os.cpu_count()} core(s), load average before "
            f"{self._load:.1f}; {', '.join(versions)}"
        )


# A process begins as a copy of the one that starts it, whose memory counts as its own: a small one starts it.
_STARTER = """
import json, os, subprocess, sys, time
begin = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(json.dumps([time.perf_counter() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
sys.exit(os.waitstatus_to_exitcode(status))
"""


def process(words: Sequence[str], **options: Any) -> tuple[float, float, float]:
    """Seconds, CPU seconds and peak memory (MiB) of a new process, whose output is dropped; `options` as of Popen."""
    starter = [sys.executable, "-I", "-S", "-c", _STARTER, *words]
    done = subprocess.run(starter, stdout=subprocess.PIPE, check=False, text=True, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: ended with {done.returncode}")
    wall_s, cpu_s, peak = json.loads(done.stdout)
    return wall_s, cpu_s, peak


def write_shipped_bundle(path: Path) -> None:
    """Write the operators of `SHIPPED` as a file, as `kernelcast hardware` does."""
    bundle = hardware_bundle(SHIPPED)
    write_bundle(path, bundle.manifest, bundle.files)


def seconds_of(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def in_turn(
    ways: Mapping[str, Callable[[], Any]],
    repeat: int,
    *,
    warm_up: int = 0,
    time_s: Callable[..., Any] = seconds_of,
) -> dict[str, float]:
    """Median seconds of several ways, one round after the other: a drifting clock is as fast for each of them.

    `time_s` calls a way and answers its time; by default it is timed.
    """
    rounds = [{name: float(time_s(work)) for name, work in ways.items()} for _ in range(warm_up + repeat)]
    return {name: statistics.median(one[name] for one in rounds[warm_up:]) for name in ways}


def peak_mb() -> float:
    """Peak memory of this process, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
