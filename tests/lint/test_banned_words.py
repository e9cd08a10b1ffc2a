"""Folders that are checked hold no banned word; each kind of text is read."""

from pathlib import Path

import pytest

from tests.lint.banned_words import CHECKED, ROOT, files_of, findings

PYTHON = '''"""A module beside others."""

SIZE = 1  # so many
NAME = "beside"


def f(x):
    """Two lines,

    the second says so.
    """
    raise ValueError(
        f"{x}: nobody"
        f" knows {x}"
    )
'''
PAGE = """Text that says so.

```
code beside code
```

<!-- table -->
beside
<!-- end of table -->
`beside`, anew
"""


def test_checked_are_all_folders_but_some() -> None:
    checked = {path.relative_to(ROOT).parts[0] for path in files_of(CHECKED)}
    assert {"cli", "docs", "tests", "README.md", "schema.sql"} <= checked
    left_out = [pattern.removeprefix(":!") for pattern in CHECKED if pattern.startswith(":!")]
    assert all(files_of([path]) for path in left_out)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("module.py", PYTHON, [(1, "beside"), (3, "so many"), (10, "says so"), (13, "nobody")]),
        ("page.md", PAGE, [(1, "says so"), (10, "anew")]),
        ("table.toml", 'help = "those of\\nothers"\n# told apart', [(1, "those of"), (2, "told apart")]),
        ("known.py", "", [(1, "known.py")]),
        ("short.py", '"""Those that are asked for."""', [(1, "Those"), (1, "are asked"), (1, "asked for")]),
        ("data.bin", "beside", []),
    ],
)
def test_texts_of_a_file(tmp_path: Path, name: str, content: str, expected: list[tuple[int, str]]) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    found = [(one.line, one.word) for one in findings(path, tmp_path)]
    assert [(line, word) for line, word in found] == expected


def test_fields_words_are_not_banned(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        '"""Overlapped collectives of an operator; the other half is exposed."""\n', encoding="utf-8"
    )
    assert list(findings(path, tmp_path)) == []
