"""`make mutate`: random one-token changes of the source; some test should notice each.

    python -m tests.mutants.run --tool .venv-mutate [--mutants 60] [--seed 1] [--recorded FILE] [--seconds 60] [PATH]...

cosmic-ray (MIT) makes the changes, N of each PATH; its own runner has one test command for all files. All tests
run once first, with changed statements that say who reaches them. A mutant then meets those tests, the quickest
first, and others of their files (fixtures and caches are shared there), up to some CPU seconds, until one fails, in
a fork of a pytest that has collected all of them. What is changed where a module is imported is reached by whatever
calls a function of it or stands in its folder of tests, and has a process of its own. Pythons that a test starts are
changed too; an interrupted run leaves no changed file. Hypothesis draws the same examples every time. Exit status 1
where one survived.

Left alone are annotations, decorators, `repr=` and `strict=` (of `zip`, an assertion), bits instead of numbers, which
fail at once, and `is` for `==`, which is the same for None, members and small numbers.
"""

import argparse
import builtins
import contextlib
import json
import marshal
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.sample import MUTATED, ROOT, Mutant, of_each
from tests.mutants.switches import codes_of

_MEMORY_BYTES = 6 << 30
_FOLDER = Path(tempfile.gettempdir()) / f"mutants-{os.getpid()}"
# hypothesis is imported before pytest starts, once for all.
_PYTEST = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
_PYTEST += ["-m", "not slow and not quiet and not slurm and not browser"]

# Also of every Python that a test starts: code objects by file, and what they ask: whether a mutant is on.
_PATCH = """
import builtins, marshal, os
from importlib.machinery import SourceFileLoader
with open({codes!r}, "rb") as _file:
    _codes = marshal.load(_file)
def _changed(loader, name, own=SourceFileLoader.get_code, codes=_codes):
    return codes[loader.path] if loader.path in codes else own(loader, name)
SourceFileLoader.get_code = _changed
def _reached(number, seen=set(), file=os.open({reached!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)):
    if number not in seen:  # emptied before each test
        seen.add(number)
        os.write(file, f"{{number}} {{os.environ.get('PYTEST_CURRENT_TEST')}}\\n".encode())
builtins.__mutant__ = int(os.environ["MUTANT"]).__eq__ if "MUTANT" in os.environ else _reached
"""


def _beside(path: Path) -> list[str]:
    found = (ROOT / "tests" / path.parent).glob("test_*.py")
    return [str(one.relative_to(ROOT)) for one in found]


class _Order:
    """Runs tests in a given order, and keeps how long each took, or that it failed."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.order = {one: number for number, one in enumerate(ids)}
        self.took_s: dict[str, float] = defaultdict(float)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: self.order.get(item.nodeid, 0))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        begin_s = sum(os.times()[:4])
        yield
        self.took_s[item.nodeid] += (
            sum(os.times()[:4]) - begin_s
        )  # busy machines only lengthen what is waited for

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.took_s[report.nodeid] += float("inf") if report.failed else 0.0


def run(
    name: str, tests: Sequence[str], codes: dict[str, Any], cpu_s: int, *options: str, plugin: Any = None
) -> int:
    """Status of pytest in a forked process with changed code (negative: a signal); files begin with `name`."""
    output, patch = _FOLDER / f"{name}.txt", _FOLDER / name / "sitecustomize.py"
    patch.parent.mkdir()
    (code_file := _FOLDER / f"{name}.codes").write_bytes(marshal.dumps(codes))
    patch.write_text(_PATCH.format(codes=str(code_file), reached=str(_FOLDER / f"{name}.reached")))
    (arguments := _FOLDER / f"{name}.ids").write_text("\n".join(tests))
    if not (child := os.fork()):
        try:
            os.setsid()
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(file, 1)
            os.dup2(file, 2)
            _limit(cpu_s)
            exec(patch.read_text(), {})
            os.environ["PYTHONPATH"] = str(patch.parent)
            os._exit(
                _pytest(
                    name, [f"@{arguments}", f"--basetemp={_FOLDER / name / 'tmp'}", *options], tests, plugin
                )
            )
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    shutil.rmtree(patch.parent, ignore_errors=True)
    return os.waitstatus_to_exitcode(status)


def _pytest(name: str, arguments: list[str], tests: Sequence[str], plugin: Any) -> int:
    import hypothesis

    quick = {"derandomize": True, "deadline": None, "database": None, "phases": list(hypothesis.Phase)[:3]}
    hypothesis.settings.register_profile("mutants", **quick)  # type: ignore[arg-type]
    hypothesis.settings.load_profile("mutants")
    status = int(
        pytest.main([*arguments, *_PYTEST], plugins=[order := _Order(tests), *filter(None, [plugin])])
    )
    (_FOLDER / f"{name}.json").write_text(json.dumps(order.took_s))
    return status


class _Recorder:
    """Each test reports what it reaches; each file begins with empty caches, else its first test alone reaches them."""

    path: Path | None = None

    def pytest_runtest_setup(self, item: Any) -> None:
        builtins.__mutant__.__defaults__[0].clear()  # type: ignore[attr-defined]
        if item.path != self.path:
            modules = [module for name, module in sys.modules.items() if name.startswith("kernelcast.")]
            for value in [one for module in modules for one in vars(module).values()]:
                if isinstance(value, type(cache(_beside))):
                    value.cache_clear()
        self.path = item.path


class _Forks:
    """Runs tests of each mutant in a fork of a pytest that has collected all of them, until one fails."""

    def __init__(self, name: str, tests: dict[int, list[str]], took_s: dict[str, float], jobs: int) -> None:
        self.name, self.tests, self.took_s, self.jobs = name, tests, took_s, jobs
        self.failed = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.failed = self.failed or (report.nodeid if report.failed else "")

    def pytest_runtestloop(self, session: Any) -> bool:
        items = {item.nodeid: item for item in session.items}
        running: dict[int, int] = {}
        for number, tests in (*self.tests.items(), *[(-1, [])] * self.jobs):
            while len(running) >= self.jobs or (number < 0 and running):
                child, status = os.wait()
                done = running.pop(child)
                by = Path(f"{_FOLDER}/{self.name}.{done}.by")
                text = by.read_text() if by.exists() else f"status {os.waitstatus_to_exitcode(status)}"
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
                shutil.rmtree(_FOLDER / f"tmp{done}", ignore_errors=True)
                with (_FOLDER / f"{self.name}.done").open("a") as file:
                    print(done, text, file=file)
            if number >= 0:
                if not (child := os.fork()):
                    self._run(session, number, [items[one] for one in tests if one in items])
                running[child] = number
        return True

    def _run(self, session: Any, number: int, items: list[Any]) -> None:
        try:
            os.setsid()
            _limit(int(4 * sum(self.took_s.get(one.nodeid, 1.0) for one in items)) + 30)
            builtins.__mutant__ = number.__eq__  # type: ignore[attr-defined]
            os.environ["MUTANT"] = str(number)
            (folder := _FOLDER / f"tmp{number}").mkdir()
            session.config._tmp_path_factory._basetemp = folder
            for item, following in zip(items, [*items[1:], None], strict=False):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self.failed:
                    break
            (_FOLDER / f"{self.name}.{number}.by").write_text(self.failed or "SURVIVED")
            os._exit(0)
        finally:
            os._exit(1)


def _limit(cpu_s: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(4 * cpu_s)  # waiting for ever takes no CPU time


def record(codes: dict[str, Any], tests: Sequence[str], jobs: int) -> dict[str, Any]:
    """One run of the tests: how long each took that passed, and those that reach each mutant's statement."""
    files = sorted(
        str(file) for one in tests for file in (Path(one).rglob("test_*.py") if Path(one).is_dir() else [one])
    )
    with ThreadPoolExecutor(jobs) as pool:
        list(
            pool.map(
                lambda n: run(
                    f"record{n}", files[n::jobs], codes, 7200, "-rf", "--tb=no", plugin=_Recorder()
                ),
                range(jobs),
            )
        )
    took_s: dict[str, float] = {}
    reached: dict[str, dict[str, bool]] = defaultdict(dict)
    for number in range(jobs):
        print((_FOLDER / f"record{number}.txt").read_text()[-1500:])
        took_s |= json.loads((_FOLDER / f"record{number}.json").read_text())
        for line in (_FOLDER / f"record{number}.reached").read_text().splitlines():
            key, _, test = line.partition(" ")
            reached[key][test.rpartition(" (")[0]] = True
    took_s = {test: time_s for test, time_s in took_s.items() if time_s < float("inf")}
    return {
        "took_s": took_s,
        "reached": {key: sorted(set(found) & set(took_s)) for key, found in reached.items()},
    }


def chosen(
    path: Path, reaching: Sequence[str], took_s: dict[str, float], seconds: float, *, is_inside: bool
) -> list[str]:
    """Tests for a mutant of `path`, in a function or not, quickest first: those that reach it, then others of their
    files, and of the folder of tests for `path` where calls of functions do not tell.
    """
    files = {one.partition("::")[0] for one in reaching}
    if not (files and is_inside):
        files |= set(_beside(path))
    others = [one for one in took_s if one.partition("::")[0] in files and one not in set(reaching)]
    found: list[str] = []
    total_s = 0.0
    for one in (*sorted(reaching, key=took_s.__getitem__), *sorted(others, key=took_s.__getitem__)):
        total_s += took_s[one]
        if total_s > seconds and found:
            break
        found.append(one)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path, default=MUTATED, help="files and folders to change")
    parser.add_argument("--tool", type=Path, required=True, help="virtual environment that holds cosmic-ray")
    parser.add_argument("--mutants", type=int, default=60, help="of each path")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--recorded", type=Path, help="keeps which tests reach what, for the same sample again"
    )
    parser.add_argument("--range", type=int, nargs=2, default=(1, 10**9), help="only these of each path")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="choose among these")
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests for a mutant")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    sys.path += map(str, options.tool.glob("lib/python*/site-packages"))
    os.chdir(ROOT)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    # No test here needs one, and importing them takes longer than most tests.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    recorded = (
        json.loads(options.recorded.read_text()) if options.recorded and options.recorded.exists() else {}
    )
    if "mutants" in recorded:
        mutants = [Mutant(Path(path), *others) for path, *others in recorded["mutants"]]
        if any((ROOT / one.path).read_text() != one.source for one in mutants):
            sys.exit(f"{options.recorded}: of another source")
    else:
        mutants = of_each(options.paths, options.mutants, options.seed)
    codes, inside = codes_of(mutants)
    # Once for all children; ONNX Runtime has threads, which a fork would lose.
    for module in (
        "numpy",
        "onnx",
        "hypothesis",
        "pytest",
        "torch",
        "sklearn.ensemble",
        "click",
        "rich",
        "yaml",
    ):
        __import__(module)
    if "mutants" not in recorded:
        recorded = recorded or record(codes, options.tests, options.jobs)
        recorded["mutants"] = [(str(one.path), *one[1:]) for one in mutants]
        if options.recorded:
            options.recorded.write_text(json.dumps(recorded))
    begin, end = options.range
    asked = [one for one in range(len(mutants)) if begin <= one % options.mutants + 1 <= end]
    reached, took_s = recorded["reached"], recorded["took_s"]
    tests = {
        one: chosen(
            mutants[one].path,
            reached.get(str(one), []),
            took_s,
            options.seconds,
            is_inside=one in inside,
        )
        for one in asked
    }
    tried, noticed = Counter[str](), Counter[str]()
    for number, by in noticing(mutants, codes, inside, tests, took_s, options.jobs):
        room, mutant = str(options.paths[number // options.mutants]), mutants[number]
        tried[room] += 1
        noticed[room] += by != "SURVIVED"
        print(f"{number:4} {mutant.path}:{mutant.line}: {by}", flush=True)
        if by == "SURVIVED":
            print(f"     of {len(tests[number])} tests, {len(reached.get(str(number), []))} reach it")
            print(mutant.diff, flush=True)
    print("\n| room | mutants | noticed |\n|---|--:|--:|")
    for room in sorted(tried):
        print(f"| {room} | {tried[room]} | {noticed[room]} |")
    print(f"| all, seed {options.seed} | {tried.total()} | {noticed.total()} |")
    sys.exit(noticed.total() < tried.total())


def noticing(
    mutants: Sequence[Mutant],
    codes: dict[str, Any],
    inside: set[int],
    tests: dict[int, list[str]],
    took_s: dict[str, float],
    jobs: int,
) -> Iterator[tuple[int, str]]:
    """Each mutant with the first test that fails, what else ended it, or SURVIVED."""
    yield from ((number, "SURVIVED") for number, found in tests.items() if not found)
    tests = {number: found for number, found in tests.items() if found}
    switched_on = {number: found for number, found in tests.items() if number in inside}
    files = {one.partition("::")[0] for found in switched_on.values() for one in found}
    forks = _Forks("forks", switched_on, took_s, jobs)
    with ThreadPoolExecutor(jobs) as pool:
        session = pool.submit(run, "forks", sorted(files), codes, 10**6, plugin=forks)
        done, seen, is_over = _FOLDER / "forks.done", 0, not files
        fresh = [one for one in tests if one not in inside]
        while not is_over:
            is_over = session.done()
            found = done.read_text().splitlines() if done.exists() else []
            # Functions that decorate run where a module is imported.
            reached = (_FOLDER / "forks.reached").read_text().splitlines() if found else []
            for line in found[seen:]:
                number, _, by = line.partition(" ")
                if by == "SURVIVED" and f"{number} None" in reached:
                    fresh.append(int(number))
                else:
                    yield int(number), by
            seen = len(found)
            time.sleep(0 if is_over else 1)
        if seen < len(switched_on):
            print((_FOLDER / "forks.txt").read_text()[-3000:])
        yield from pool.map(lambda one: (one, _fresh(one, mutants[one], tests[one], took_s)), fresh)


def _fresh(number: int, mutant: Mutant, tests: list[str], took_s: dict[str, float]) -> str:
    path, name = str(ROOT / mutant.path), f"mutant{number}"
    with warnings.catch_warnings(action="ignore"):
        code = compile(mutant.mutated, path, "exec")
    seconds = int(4 * sum(took_s[one] for one in tests)) + 60
    if not (status := run(name, tests, {path: code}, seconds, "-x", "-rfE", "--tb=no")):
        return "SURVIVED"
    text = (_FOLDER / f"{name}.txt").read_text()
    by = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    return by[0] if by else f"status {status}: " + text[-200:].replace("\n", " | ")


if __name__ == "__main__":
    _FOLDER.mkdir()
    try:
        main()
    finally:
        shutil.rmtree(_FOLDER, ignore_errors=True)
