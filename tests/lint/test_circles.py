"""No module imports itself by way of others, also not inside a function or for types alone."""

import ast
import subprocess
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
ALLOWED = {
    # In a notebook an answer shows itself; the import happens when it is asked for.
    ("kernelcast.runtime.estimate.estimate", "kernelcast.runtime.views.notebook"),
    ("kernelcast.runtime.search.result", "kernelcast.runtime.views.notebook"),
}


def modules() -> dict[str, Path]:
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    paths = [Path(name) for name in listed if not name.startswith(("tests/", "docs/"))]
    return {
        ".".join(("kernelcast", *path.with_suffix("").parts)).removesuffix(".__init__"): ROOT / path
        for path in paths
        if (ROOT / path).exists()
    }


def imported_by(path: Path, known: dict[str, Path]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in names}
    return found & known.keys()


def circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_by_way_of_others() -> None:
    known = modules()
    graph = {
        name: {other for other in imported_by(path, known) if (name, other) not in ALLOWED and other != name}
        for name, path in known.items()
    }
    assert len(graph) > 300
    assert circle(graph) == []


def test_a_circle_is_found() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == {"a", "b", "c"}
