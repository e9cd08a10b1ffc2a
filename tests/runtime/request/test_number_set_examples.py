"""What docstrings show is what happens."""

import doctest

from kernelcast.runtime.request import field_types


def test_examples_of_docstrings() -> None:
    result = doctest.testmod(field_types)
    assert result.attempted > 0
    assert result.failed == 0
