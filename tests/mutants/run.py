"""`make mutate`: random one-token changes of the source; some test should notice each.

    python -m tests.mutants.run --tool .venv-mutate [--mutants 60] [--first 1] [--seed 1] [--recorded FILE] [--number N]...
        [--tests PATH]... [--seconds 15] [--jobs 2] [PATH]...

cosmic-ray (MIT) makes the changes, so many of each PATH; its own runner has one test command for all files. All tests
run once first, with a probe at every changed statement, which tells what tests reach it. A mutant then meets
those, the quickest first, and others of their files (fixtures and caches are shared there), up to so many seconds, until
one fails. What is changed where a module is imported is reached by whatever calls a function of it, else by the tests
named like it. A mutant lives in the memory of a forked process, and of the Pythons that its tests start, so an
interrupted run leaves no changed file. Hypothesis draws the same examples every time. Exit status 1 where a mutant survived.

Left alone are annotations, decorators, `repr=` and `strict=` (of `zip`, an assertion), bits instead of numbers, which
fail at once, and `is` for `==`, which is the same for None, members and small numbers.
"""

import argparse
import ast
import difflib
import json
import marshal
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
_PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
MUTATED = tuple(Path(name.split(".")[1]) for name in _PACKAGES if name.count(".") == 1)
_LEFT_OUT = re.compile(
    r"RemoveDecorator|ReplaceBinaryOperator_(?!Bit)\w+_(BitOr|BitAnd|BitXor|RShift|LShift)$"
    r"|ReplaceComparisonOperator_(Eq_Is|Is_Eq|NotEq_IsNot|IsNot_NotEq)$"
)
_MEMORY_BYTES = 6 << 30
_FOLDER = Path(tempfile.gettempdir()) / f"mutants-{os.getpid()}"
# hypothesis is imported before pytest starts, once for all.
_PYTEST = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
_PYTEST += ["-m", "not slow and not slurm and not browser"]

# Also of every Python that a test starts: code objects by file, and what their probes call.
_PATCH = """
import builtins, marshal, os
from importlib.machinery import SourceFileLoader
with open({codes!r}, "rb") as _file:
    _codes = marshal.load(_file)
def _changed(loader, name, own=SourceFileLoader.get_code, codes=_codes):
    return codes[loader.path] if loader.path in codes else own(loader, name)
SourceFileLoader.get_code = _changed
def _reached(number, seen=set(), file=os.open({reached!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)):
    key = number, os.environ.get("PYTEST_CURRENT_TEST")
    if key not in seen:
        seen.add(key)
        os.write(file, f"{{number}} {{key[1]}}\\n".encode())
builtins.__reached__ = _reached
"""


class Mutant(NamedTuple):
    """A file of the repository with one token changed."""

    path: Path
    line: int
    source: str
    mutated: str

    @property
    def diff(self) -> str:
        """The change as a unified diff."""
        lines = self.source.splitlines(), self.mutated.splitlines()
        return "\n".join(difflib.unified_diff(*lines, str(self.path), str(self.path), n=1, lineterm=""))


def places(path: Path) -> Iterator[tuple[int, list[tuple[str, int]]]]:
    """Line of every token that can be changed, and the changes: cosmic-ray's operators and their occurrences."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.operators.provider import OperatorProvider

    source, provider, found = (ROOT / path).read_text(), OperatorProvider(), defaultdict(list)
    nodes, left_alone = list(ast_nodes(get_ast(source))), list(_left_alone(ast.parse(source)))
    for name in provider:
        if not provider[name].arguments() and not _LEFT_OUT.search(name):
            positions = (begin for node in nodes for begin, _ in provider[name]().mutation_positions(node))
            for occurrence, position in enumerate(positions):
                found[position].append((name, occurrence))
    lines = source.splitlines()
    for (line, column), changes in sorted(found.items()):
        is_star = lines[line - 1].startswith("*,", column)  # of parameters, none of a product
        if not is_star and not any(begin <= (line, column) < end for begin, end in left_alone):
            yield line, changes


def _left_alone(tree: ast.AST) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    for node in ast.walk(tree):
        inside = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        keywords = [node] if isinstance(node, ast.keyword) and node.arg in ("repr", "strict") else []
        for one in filter(None, (*inside, *getattr(node, "decorator_list", ()), *keywords)):
            yield (one.lineno, one.col_offset), (one.end_lineno, one.end_col_offset)


def sample(paths: Sequence[Path], count: int, seed: int) -> Iterator[Mutant]:
    """Mutants at random places, every token as likely as any other; the same for a seed and a source."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.operators.provider import OperatorProvider

    generator, everywhere = random.Random(seed), [(path, *place) for path in paths for place in places(path)]
    print(f"{len(everywhere):,} tokens of {len(paths)} files can be changed")
    for path, line, changes in generator.sample(everywhere, len(everywhere)):
        name, occurrence = generator.choice(changes)
        source = (ROOT / path).read_text()
        try:
            mutated = mutate_code(source, OperatorProvider()[name](), occurrence)
        except AttributeError:  # cosmic-ray cannot replace an exception with a dotted name
            continue
        yield Mutant(path, line, source, mutated)
        count -= 1
        if not count:
            return


def _of_each(paths: Sequence[Path], count: int, seed: int) -> list[Mutant]:
    """So many mutants of every path; a file counts to the longest of the paths that contain it."""
    found: list[Mutant] = []
    for path in paths:
        inner = [one for one in paths if one != path and one.is_relative_to(path)]
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        found += sample([one for one in files if not any(map(one.is_relative_to, inner))], count, seed)
    return found


def _probed(source: str, lines: dict[int, list[int]]) -> ast.Module:
    """The source where the statement around line L reports lines[L]: those numbers of mutants."""
    tree = ast.parse(source)
    blocks = [
        (owner, block)
        for owner in ast.walk(tree)
        for block in (getattr(owner, name, None) for name in ("body", "orelse", "finalbody"))
        if isinstance(block, list)
    ]
    for line, numbers in lines.items():
        around = [
            (one.end_lineno - one.lineno, block, one)
            for owner, block in blocks
            for one in block
            if isinstance(one, ast.stmt) and one.lineno <= line <= (one.end_lineno or 0)
        ]
        functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        inside = [one for one in functions if one.body[0].lineno <= line <= (one.end_lineno or 0)]
        for number in numbers:
            probe = ast.parse(f"__reached__({number})").body[0]
            if inside:
                _, block, statement = min(around, key=lambda one: one[0])
                block.insert(block.index(statement), probe)
            for function in () if inside else functions:
                function.body.insert(ast.get_docstring(function) is not None, probe)
    return ast.fix_missing_locations(tree)


def _named_like(path: Path) -> list[str]:
    found = (ROOT / "tests" / path.parent).glob(f"test_{path.stem[:4]}*.py")
    return [str(one.relative_to(ROOT)) for one in found]


class _Order:
    """Runs tests in a given order, and keeps how long each took, or that it failed."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.order = {one: number for number, one in enumerate(ids)}
        self.took_s: dict[str, float] = defaultdict(float)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: self.order.get(item.nodeid, 0))

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.took_s[report.nodeid] += float("inf") if report.failed else report.duration


def run(name: str, tests: Sequence[str], codes: dict[str, Any], cpu_s: int, *options: str) -> int:
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
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
            resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.alarm(4 * cpu_s)  # waiting for ever takes no CPU time
            exec(patch.read_text(), {})
            os.environ["PYTHONPATH"] = str(patch.parent)
            os._exit(
                _pytest(name, [f"@{arguments}", f"--basetemp={_FOLDER / name / 'tmp'}", *options], tests)
            )
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    shutil.rmtree(patch.parent, ignore_errors=True)
    return os.waitstatus_to_exitcode(status)


def _pytest(name: str, arguments: list[str], tests: Sequence[str]) -> int:
    import hypothesis
    import pytest

    quick = {"derandomize": True, "deadline": None, "database": None, "phases": list(hypothesis.Phase)[:3]}
    hypothesis.settings.register_profile("mutants", **quick)  # type: ignore[arg-type]
    hypothesis.settings.load_profile("mutants")
    status = int(pytest.main([*arguments, *_PYTEST], plugins=[order := _Order(tests)]))
    (_FOLDER / f"{name}.json").write_text(json.dumps(order.took_s))
    return status


def record(mutants: Sequence[Mutant], tests: Sequence[str], jobs: int) -> dict[str, Any]:
    """One run of the tests: how long each took that passed, and those that reach each mutant's statement."""
    lines: dict[Path, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, mutant in enumerate(mutants):
        lines[mutant.path][mutant.line].append(number)
    codes = {
        str(ROOT / path): compile(_probed((ROOT / path).read_text(), found), str(ROOT / path), "exec")
        for path, found in lines.items()
    }
    files = sorted(
        str(file) for one in tests for file in (Path(one).rglob("test_*.py") if Path(one).is_dir() else [one])
    )
    with ThreadPoolExecutor(jobs) as pool:
        list(
            pool.map(lambda n: run(f"record{n}", files[n::jobs], codes, 7200, "-rf", "--tb=no"), range(jobs))
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


def chosen(mutant: Mutant, reaching: Sequence[str], took_s: dict[str, float], seconds: float) -> list[str]:
    """Tests for a mutant, quickest first: those that reach it, then others of their files."""
    files = {one.partition("::")[0] for one in reaching} or set(_named_like(mutant.path))
    others = [one for one in took_s if one.partition("::")[0] in files and one not in set(reaching)]
    found, total_s = [], 0.0
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
        "--recorded", type=Path, help="keeps here which tests reach what, for the same sample again"
    )
    parser.add_argument("--number", type=int, action="append", help="only these of the sample")
    parser.add_argument("--range", type=int, nargs=2, default=(1, 10**9), help="only these of each path")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="choose among these")
    parser.add_argument("--also", nargs="+", default=[], help="tests that every mutant meets first")
    parser.add_argument("--seconds", type=float, default=15.0, help="of tests for a mutant")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    sys.path += map(str, options.tool.glob("lib/python*/site-packages"))
    os.chdir(ROOT)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    # No test here needs one, and importing them takes longer than most tests.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    mutants = _of_each(options.paths, options.mutants, options.seed)
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
    if options.recorded is None or not options.recorded.exists():
        recorded = record(mutants, options.tests, options.jobs) | {
            "lines": [f"{one.path}:{one.line}" for one in mutants]
        }
        if options.recorded is not None:
            options.recorded.write_text(json.dumps(recorded))
    else:
        recorded = json.loads(options.recorded.read_text())
    if recorded["lines"] != [f"{one.path}:{one.line}" for one in mutants]:
        sys.exit(f"{options.recorded}: of another sample or source")

    def notice(number: int) -> tuple[int, str]:
        mutant = mutants[number]
        reaching = recorded["reached"].get(str(number), [])
        tests = chosen(mutant, reaching, recorded["took_s"], options.seconds)
        seconds = sum(recorded["took_s"][one] for one in tests)
        path = str(ROOT / mutant.path)
        try:
            code = compile(mutant.mutated, path, "exec")
        except (SyntaxError, ValueError):
            return number, "no Python"
        name = f"mutant{number}"
        for asked in filter(None, (options.also, tests)):
            status = run(name, asked, {path: code}, int(4 * seconds) + 60, "-x", "-rfE", "--tb=no")
            text = (_FOLDER / f"{name}.txt").read_text()
            if status:
                by = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
                return number, by[0] if by else f"status {status}: " + text[-200:].replace("\n", " | ")
        return number, f"SURVIVED {len(tests)} tests, {len(reaching)} reach it"

    asked = options.number or [
        number
        for number in range(len(mutants))
        if options.range[0] <= number % options.mutants + 1 <= options.range[1]
    ]
    tried, noticed = Counter[str](), Counter[str]()
    with ThreadPoolExecutor(options.jobs) as pool:
        for number, by in pool.map(notice, asked):
            room, mutant = str(options.paths[number // options.mutants]), mutants[number]
            tried[room] += 1
            noticed[room] += (survived := not by.startswith("SURVIVED"))
            print(f"{number:4} {mutant.path}:{mutant.line}: {by}", flush=True)
            if not survived:
                print(mutant.diff, flush=True)
    print("\n| room | mutants | noticed |\n|---|--:|--:|")
    for room in sorted(tried):
        print(f"| {room} | {tried[room]} | {noticed[room]} |")
    share = noticed.total() / tried.total()
    print(f"| all, seed {options.seed} | {tried.total()} | {noticed.total()} ({share:.1%}) |")
    sys.exit(share < 1)


if __name__ == "__main__":
    _FOLDER.mkdir()
    try:
        main()
    finally:
        shutil.rmtree(_FOLDER)
