"""Random mutants: cosmic-ray's changes of single tokens, each token as likely as any other."""

import ast
import difflib
import random
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
MUTATED = tuple(Path(name.split(".")[1]) for name in _PACKAGES if name.count(".") == 1)
_LEFT_OUT = re.compile(
    r"RemoveDecorator|ReplaceBinaryOperator_(?!Bit)\w+_(BitOr|BitAnd|BitXor|RShift|LShift)$"
    r"|ReplaceComparisonOperator_(Eq_Is|Is_Eq|NotEq_IsNot|IsNot_NotEq)$"
)


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
            compile(mutated, path, "exec")
        except (AttributeError, SyntaxError, ValueError):  # an exception with a dotted name; no Python
            continue
        yield Mutant(path, line, source, mutated)
        count -= 1
        if not count:
            return


def of_each(paths: Sequence[Path], count: int, seed: int) -> list[Mutant]:
    """`count` mutants of every path; a file counts to the longest of the paths that contain it."""
    found: list[Mutant] = []
    for path in paths:
        inner = [one for one in paths if one != path and one.is_relative_to(path)]
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        found += sample([one for one in files if not any(map(one.is_relative_to, inner))], count, seed)
    return found
