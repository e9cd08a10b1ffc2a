"""Code that holds many mutants, each on where `__mutant__(number)` is true: modules are imported once for all."""

import ast
import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.mutants.sample import ROOT, Mutant


def _difference(
    old: Sequence[ast.stmt], new: Sequence[ast.stmt], *, in_function: bool
) -> tuple[ast.stmt, ast.stmt, bool] | None:
    """The innermost statement that differs, its change, and whether it stands in a function."""
    for one, other in zip(old, new, strict=True):
        if ast.dump(one) == ast.dump(other):
            continue
        found = []
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            blocks = [getattr(one, name, None) or [], getattr(other, name, None) or []]
            within = in_function or isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
            if isinstance(blocks[0], list) and blocks[0]:
                setattr(other, name, blocks[0])  # for the comparison of heads
                found += [(name, blocks[1], _difference(*blocks, in_function=within))]
        is_head = ast.dump(one) != ast.dump(other)
        for name, block, _ in found:
            setattr(other, name, block)
        inner = [inside for _, _, inside in found if inside]
        if not is_head and inner and isinstance(inner[0][0], ast.stmt):
            return inner[0]
        return one, other, in_function
    return None


class _Switches(ast.NodeTransformer):
    def __init__(self, changes: dict[ast.stmt, list[tuple[int, ast.stmt]]]) -> None:
        self.changes = changes

    def visit(self, node: ast.AST) -> Any:
        self.generic_visit(node)
        for number, changed in self.changes.get(node, ()) if isinstance(node, ast.stmt) else ():
            asked = ast.parse(f"__mutant__({number})", mode="eval").body
            node = ast.copy_location(ast.If(test=asked, body=[changed], orelse=[node]), node)
        return node


def switched(mutants: dict[int, Mutant]) -> tuple[ast.Module, set[int]]:
    """Source of one file with all of its mutants, each on where `__mutant__(number)` is true, and which these are.

    Others are changed where the module is imported; all functions of the file ask for them.
    """
    tree, changes, inside = ast.parse(next(iter(mutants.values())).source), defaultdict(list), set()
    functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    begins: dict[ast.AST, list[ast.stmt]] = {}
    for number, mutant in mutants.items():
        found = _difference(tree.body, ast.parse(mutant.mutated).body, in_function=False)
        if found is None:
            continue
        if found[2]:
            inside.add(number)
            changes[found[0]].append((number, found[1]))
        else:
            for one in functions:
                begins.setdefault(one, []).append(ast.parse(f"__mutant__({number})").body[0])
    tree = _Switches(changes).visit(tree)
    for function, probes in begins.items():
        at = ast.get_docstring(function) is not None  # type: ignore[arg-type]
        function.body[at:at] = probes  # type: ignore[attr-defined]
    return ast.fix_missing_locations(tree), inside


def codes_of(mutants: Sequence[Mutant]) -> tuple[dict[str, Any], set[int]]:
    """Code of all changed files by path, and the mutants that are switched on there."""
    of_path: dict[Path, dict[int, Mutant]] = defaultdict(dict)
    for number, mutant in enumerate(mutants):
        of_path[mutant.path][number] = mutant
    codes, inside = {}, set()
    with warnings.catch_warnings(action="ignore"):
        for path, found in of_path.items():
            tree, here = switched(found)
            codes[str(ROOT / path)] = compile(tree, str(ROOT / path), "exec")
            inside |= here
    return codes, inside
