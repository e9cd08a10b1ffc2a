"""The digest of the measuring code."""

from pathlib import Path

import kernelcast.collector.code_digest as module
from kernelcast.collector.code_digest import code_digest


def test_it_is_stable_and_covers_files_that_exist() -> None:
    assert code_digest() == code_digest()
    assert len(code_digest()) == 32
    int(code_digest(), 16)
    folder = Path(module.__file__).parent
    assert all(any(folder.glob(pattern)) for pattern in module._MEASURING)
