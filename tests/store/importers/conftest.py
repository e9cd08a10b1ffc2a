"""Small hand-made files of each format, and the real ones where they are."""

from pathlib import Path

import pytest

_TESTS = Path(__file__).resolve().parents[2]
_REAL = _TESTS.parent.parent / "shared" / "data"


@pytest.fixture
def made() -> Path:
    """Folder of files made by hand for these tests."""
    return _TESTS / "data" / "importers"


@pytest.fixture(scope="session")
def real() -> Path:
    """Folder of published measurements; they are not part of this project."""
    if not _REAL.is_dir():
        pytest.skip("needs ../shared/data, others' measurements, which do not come with the project")
    return _REAL
