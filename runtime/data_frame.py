"""Answers as tables of pandas, which is an optional dependency, imported on use."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kernelcast.runtime.errors import needs_extra

if TYPE_CHECKING:
    from pandas import DataFrame


def data_frame(rows: Iterable[Mapping[str, Any]]) -> "DataFrame":
    """One row each, one column per key; UsageError where pandas is not installed."""
    with needs_extra("to_pandas", "pandas"):
        from pandas import DataFrame
    return DataFrame(list(rows))
