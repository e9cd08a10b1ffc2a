"""What docstrings show is what happens."""

import doctest

from kernelcast.runtime.request import number_set


def test_examples_of_docstrings() -> None:
    result = doctest.testmod(number_set)
    assert result.attempted > 0
    assert result.failed == 0
