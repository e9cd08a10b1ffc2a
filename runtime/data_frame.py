"""Answers as tables of pandas, which is no dependency: it is imported when it is asked for."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kernelcast.runtime.errors import UsageError

if TYPE_CHECKING:
    from pandas import DataFrame


def data_frame(rows: Iterable[Mapping[str, Any]]) -> "DataFrame":
    """One row each, one column per key.

    Raises:
        UsageError: pandas is not installed.
    """
    try:
        from pandas import DataFrame
    except ModuleNotFoundError as error:
        if error.name != "pandas":
            raise
        raise UsageError(
            "to_pandas needs the package pandas, which is not installed; expected: pip install 'kernelcast[pandas]'"
        ) from error
    return DataFrame(list(rows))
