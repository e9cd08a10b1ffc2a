"""`make mutate`: random one-token changes of the source; some test should notice each.

    python -m tests.mutants.run --tool .venv-mutate [--mutants 200] [--seed 1] [--near] [--number N]... [PATH]...

cosmic-ray (MIT) makes the changes; its own runner has one test command for all files. A mutant lives in the memory of a
forked process, and of the Pythons that its tests start, so an interrupted run leaves no changed file. Its tests are
those whose file is named like the module, then of some commands the tests of what they call, then the folder that
mirrors its own, then the folders above; --near leaves out the last one. Hypothesis draws the same examples every time.
Exit status 1 where a mutant survived.

Left alone are annotations, decorators, `repr=` and `strict=` (of `zip`, an assertion), bits instead of numbers, which
fail at once, and `is` for `==`, which is the same for None, members and small numbers.
"""

import argparse
import ast
import difflib
import json
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
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
_PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
MUTATED = tuple(name.split(".")[1] for name in _PACKAGES if name.count(".") == 1)
_LEFT_OUT = re.compile(
    r"RemoveDecorator|ReplaceBinaryOperator_(?!Bit)\w+_(BitOr|BitAnd|BitXor|RShift|LShift)$"
    r"|ReplaceComparisonOperator_(Eq_Is|Is_Eq|NotEq_IsNot|IsNot_NotEq)$"
)
# Commands whose tests are in the folder of what they call.
_TESTED_IN = {
    "cli/walltime_k8s": "integrations/kubernetes",
    "cli/validate_": "validate",
    "cli/stack": "validate",
}
_MEMORY_BYTES = 6 << 30
_FOLDER = Path(tempfile.gettempdir()) / f"mutants-{os.getpid()}"
_DURATIONS, _OUTPUT = _FOLDER / "durations.json", _FOLDER / "output.txt"
# hypothesis is imported before pytest starts, once for all.
_PYTEST = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]

# Also of every Python that a test starts.
_PATCH = """
from importlib.machinery import SourceFileLoader
def _changed(loader, name, own=SourceFileLoader.get_code, changed={changed!r}, source={source!r}):
    return compile(source, changed, "exec") if loader.path == changed else own(loader, name)
SourceFileLoader.get_code = _changed
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


def sample(paths: list[Path], count: int, seed: int) -> Iterator[Mutant]:
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


def stages(path: Path) -> list[str]:
    """Paths of tests, nearest first; each is run without those before it."""
    found, room = sorted((ROOT / "tests" / path.parent).glob(f"test_{path.stem[:4]}*.py")), path.parent
    found += [ROOT / "tests" / tests for begin, tests in _TESTED_IN.items() if str(path).startswith(begin)]
    while room.parts:
        folder = ROOT / "tests" / room
        found += [one for one in (folder, folder.with_name(f"test_{folder.name}.py")) if one.exists()]
        room = room.parent
    return [str(one.relative_to(ROOT)) for one in found]


def run(tests: str, ignored: tuple[str, ...], mutant: Mutant | None, cpu_s: int) -> tuple[int, float]:
    """Tests in a forked process: its status as pytest's (negative: a signal), and the CPU seconds that it took."""
    if not (child := os.fork()):
        output = os.open(_OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(20 * cpu_s)  # waiting for ever takes no CPU time
        try:
            os._exit(_pytest(tests, ignored, mutant))
        finally:
            os._exit(1)
    _, status, usage = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime


def _pytest(tests: str, ignored: tuple[str, ...], mutant: Mutant | None) -> int:
    import hypothesis
    import pytest

    if mutant is not None:
        patch = _PATCH.format(changed=str(ROOT / mutant.path), source=mutant.mutated)
        exec(patch)
        (_FOLDER / "sitecustomize.py").write_text(patch)
        os.environ["PYTHONPATH"] = str(_FOLDER)
    quick = {"derandomize": True, "deadline": None, "database": None, "phases": list(hypothesis.Phase)[:3]}
    hypothesis.settings.register_profile("mutants", **quick)  # type: ignore[arg-type]
    hypothesis.settings.load_profile("mutants")
    order = _QuickestFirst()
    paths = [tests, *(f"--ignore={path}" for path in ignored)]
    status = int(pytest.main([*paths, "-m", "not slow and not slurm", *_PYTEST], plugins=[order]))
    if mutant is None:
        _DURATIONS.write_text(json.dumps(order.durations_s))
    return status


class _QuickestFirst:
    """Runs tests in the order of how long they took without a change: most mutants fail a quick one."""

    def __init__(self) -> None:
        self.durations_s: dict[str, float] = json.loads(_DURATIONS.read_text()) if _DURATIONS.exists() else {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: self.durations_s.get(item.nodeid, 0.0))

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.durations_s[report.nodeid] = self.durations_s.get(report.nodeid, 0.0) + report.duration


@cache
def limit_s(tests: str) -> int:
    """CPU seconds that a mutant may take: five times the tests of the unchanged source, which must pass."""
    status, taken_s = run(tests, (), None, 1800)
    if status:
        print(_OUTPUT.read_text()[-2000:])
        sys.exit(f"{tests}: pytest ends with {status} before any change, expected 0")
    return int(5 * taken_s) + 10


def noticed_by(mutant: Mutant, near: bool) -> str:
    """The first tests that fail or take too long, or nothing."""
    nearest = stages(mutant.path)
    for number, tests in enumerate(nearest):
        before = tuple(nearest[:number])
        is_far = near and before and tests == nearest[-1] and len(mutant.path.parts) > 2
        if not is_far and run(tests, before, mutant, limit_s(tests))[0]:
            return tests
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path, default=MUTATED, help="files and folders to change")
    parser.add_argument("--tool", type=Path, required=True, help="virtual environment that holds cosmic-ray")
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--near", action="store_true", help="leave out all tests of a package with folders")
    parser.add_argument("--number", type=int, action="append", help="only these of the sample")
    options = parser.parse_args()
    sys.path += map(str, options.tool.glob("lib/python*/site-packages"))
    os.chdir(ROOT)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    # No test here needs one, and importing them takes longer than most tests.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    paths = [
        path
        for one in map(Path, options.paths)
        for path in (sorted(one.rglob("*.py")) if one.is_dir() else [one])
    ]
    mutants = dict(enumerate(sample(paths, options.mutants, options.seed), start=1))
    # Once for all children; ONNX Runtime has threads, which a fork would lose.
    import hypothesis  # noqa: F401
    import numpy  # noqa: F401
    import onnx  # noqa: F401
    import pytest  # noqa: F401

    tried, noticed = Counter[str](), Counter[str]()
    for number in options.number or mutants:
        mutant = mutants[number]
        room, by = "/".join(mutant.path.parts[:-1][:2]), noticed_by(mutant, options.near)
        tried[room] += 1
        noticed[room] += bool(by)
        print(f"{number:4} {mutant.path}:{mutant.line}: {by or 'SURVIVED'}", flush=True)
        if not by:
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
