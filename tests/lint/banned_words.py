"""Refuses words and file names that need a second reading, and suggests others (`make lint`).

    python -m tests.lint.banned_words              # everything in CHECKED
    python -m tests.lint.banned_words PATH...      # these files and folders
    python -m tests.lint.banned_words --count      # findings per folder, of everything

Read are docstrings, comments and string literals with a space of Python files (f-strings with `{}` for their values),
prose of Markdown pages without code and generated tables, and TOML, SQL and JavaScript files whole.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

CHECKED = (".",)
"""What `make lint` checks, as git pathspecs."""

EXCEPT = (
    "collector/measuring/gloo_threads.py",
    "explore/assets/vendor/",
    "tests/data/",
    "tests/lint/",
    "tests/store/schemas/",
)
"""A text that is part of stored fingerprints, what others wrote, this table, and schemas of old versions."""

WRITTEN_BY_CODE = ("commands", "fields", "json", "schema", "sql", "validation", "scoreboard")
"""Pages of docs/ whose text stands in code, or in docs/validation/."""

WORDS = {
    r"besides?": "next to, overlapped with, with, and",
    r"so many": "a name or formula for the number: N, every N-th",
    r"(says?|said|saying) so": "prints a message, states it",
    r"(is|are|was|were|be) there": "exists, is present",
    r"(that|what|who|which) there (is|are)": "every, all, exists",
    r"(tells?|told|telling)( \w+){0,3} apart": "distinguish",
    r"of (which|whom)": "two sentences, or including",
    r"decides? nothing": "has no effect",
    r"those of": "the noun again",
    r"^(that of|those)": "the noun: The fields of X",
    r"(?<=is |as ) ?that of|(are|was|were|than|by|from|with|like) that of": "the noun again",
    r"as many as": "up to N, the same number of",
    r"such as (are|is|have|has)": "a noun with an adjective",
    r"what (\w+ ){1,4}(has|have)(?! been)": "the noun: the fields of X, what X contains",
    r"(cut|measured|named|called|given|written|stored|asked|made|kept|split|done) so(?=[.,;:)]|$)": "that way",
    r"anew": "again",
    r"dear(er|est)": "more expensive, longest",
    r"somebody|somebody's": "a user, someone",
    r"nobody|nobody's": "nothing, no one, no caller",
    r"rid of": "clear, remove",
    r"nothing but": "only",
    r"no part in": "not used for, held out from",
    r"not said": "not stated",
    r"otherwise than": "unlike, different from",
    r"weigh(s|ing)? the same": "equally weighted",
    r"(is|are|was|were|be|been|when|if|where|unless|not) (first )?asked": "requested, given, evaluated, predicted",
    r"asked (for|about|with|as if|otherwise)": "requested, given, evaluated, predicted",
    r"expected (it|not)(?=[ ,.;:]|$)": "the value that is expected, or why it has no effect",
    r"(neither|both) of (\w+|\{\}) and (\w+|\{\}) (is |are )?given": "neither A nor B is given, A and B are both given",
    r"(predicted (is|are)|asked are) ": "but X was predicted, instead of X",
    r"(is|are|was|were) said to": "predicted, stated",
    r"outside (of )?what": "not allowed, outside the range",
    r"(takes?|taken|took) (it |them |one |merges )?back": "revert, undo, override",
    r"where none (is|was|has|does)": "without X, if X is missing",
    r"(with|on|of) as many (devices|gpus|nodes|processes)": "the same number of",
}
"""Regular expressions of whole words, and what to write instead."""

FILE_NAMES = {
    "children": "what they are children of",
    "found": "what was found",
    "implied": "what is implied",
    "kept": "what is kept",
    "known": "what is known",
    "lingering": "what lingers",
    "pieces": "what they are pieces of",
    "remembering": "cache",
    "shown": "what is shown",
    "unread": "what is not read",
    "wish": "goal, target",
    "words": "messages, texts, terms",
}
"""File names (without suffix) that do not name their content, and what to name instead."""

_PATTERNS = [(re.compile(rf"\b(?:{word})\b", re.IGNORECASE), instead) for word, instead in WORDS.items()]
_MARKED = re.compile(r"<!-- ([^>]+) -->.*?<!-- end of \1 -->", re.DOTALL)
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`|^<!-- run.*?-->|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
_WHOLE = (".toml", ".sql", ".js")


class Finding(NamedTuple):
    """A banned word or name, where it stands, and what to write instead."""

    path: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word} → {self.instead}"


def findings(path: Path, root: Path = ROOT) -> Iterator[Finding]:
    """What is banned in one file, its name included, in the order of its lines."""
    name = path.relative_to(root).as_posix()
    if path.stem in FILE_NAMES:
        yield Finding(name, 1, path.name, FILE_NAMES[path.stem])
    found = [
        Finding(name, first + text.count("\n", 0, match.start()), " ".join(match[0].split()), instead)
        for first, text in _texts(path)
        for pattern, instead in _PATTERNS
        for match in pattern.finditer(text)
    ]
    yield from sorted(found, key=lambda one: one.line)


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a file with the line that each starts on."""
    if path.suffix not in (".py", ".md", *_WHOLE):
        return
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _of_python(content)
    elif path.suffix == ".md" and path.stem not in WRITTEN_BY_CODE:
        # Lines keep their numbers.
        for part in (_MARKED, _CODE):
            content = part.sub(lambda match: "\n" * match[0].count("\n"), content)
        yield 1, content
    elif path.suffix in _WHOLE:
        yield 1, content


def _of_python(content: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    tree = ast.parse(content)
    formatted = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    within = {id(part) for node in formatted for part in node.values}
    for node in formatted:
        parts = [one.value if isinstance(one, ast.Constant) else "{}" for one in node.values]
        yield node.lineno, "".join(map(str, parts))
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in within else None
        if isinstance(text, str) and " " in text:
            yield node.lineno, text


def files_of(paths: Iterable[str], root: Path = ROOT) -> list[Path]:
    """Files of the repository at or below some paths, new ones too, without `EXCEPT`."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *paths],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    return [
        root / name
        for name in dict.fromkeys(listed)
        if not name.startswith(EXCEPT) and (root / name).is_file()
    ]


def main() -> int:
    """Print what is banned; 1 where something is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", help="instead of CHECKED")
    parser.add_argument("--count", action="store_true", help="only count, by folder")
    given = parser.parse_args()
    paths = given.paths or (["."] if given.count else CHECKED)
    found = [one for path in files_of(paths) for one in findings(path)]
    if given.count:
        for folder, count in sorted(Counter(one.path.rpartition("/")[0] or "." for one in found).items()):
            print(f"{count:5} {folder}")
        for word, count in Counter(one.instead for one in found).most_common():
            print(f"{count:5} → {word}")
    else:
        print("\n".join(map(str, found)) or "no banned words")
    return 1 if found and not given.count else 0


if __name__ == "__main__":
    sys.exit(main())
