"""JSON has no infinity and no NaN."""

import json
import math
from typing import NoReturn

from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime.json_text import json_text

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


def _refuse(name: str) -> NoReturn:
    raise AssertionError(name)


@given(_VALUES)
def test_every_document_is_json(document: object) -> None:
    json.loads(json_text(document), parse_constant=_refuse)


def test_null_stands_for_what_is_no_number() -> None:
    assert json_text({"a": [math.inf, 1.5, (-math.inf, math.nan)]}) == '{"a": [null, 1.5, [null, null]]}'
    assert json_text({"a": "µ"}, is_ascii=False) == '{"a": "µ"}'
