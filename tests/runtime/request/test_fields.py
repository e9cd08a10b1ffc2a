"""The table of request fields: it describes the typed objects completely, and old names stay accepted."""

from dataclasses import MISSING, fields
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import ModelConfig, Parallelism, UsageError
from kernelcast.runtime.errors import unknown_field
from kernelcast.runtime.request.field_types import FLAG, Field
from kernelcast.runtime.request.fields import LAYOUT, MODEL, REQUEST, SEARCH, renamed
from kernelcast.runtime.request.layout import read_layout, read_request

FIELDS = [*MODEL.values(), *REQUEST.values(), *SEARCH.values()]
SIZES = {"hidden_size": 64, "sequence_length": 32, "attention_heads": 4, "vocabulary_size": 100}


@pytest.mark.parametrize(("table", "kind"), [(MODEL, ModelConfig), (LAYOUT, Parallelism)])
def test_the_typed_objects_are_those_of_the_table(table: dict[str, Field], kind: Any) -> None:
    hints = get_type_hints(kind)
    assert set(table) == {field.name for field in fields(kind)}
    for field in fields(kind):
        row = table[field.name]
        if field.default is not MISSING:
            assert field.default == row.default
        if row.kind.types == (str,) and row.kind.values:
            assert get_args(hints[field.name]) == row.kind.values
        assert (row.kind is FLAG) is (hints[field.name] is bool)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_a_row_is_complete(field: Field) -> None:
    assert field.help.endswith(".")
    assert "\n" not in field.help
    assert field.default is None or field.kind.accepts(field.default)
    assert field.schema["description"].startswith(field.help)


@given(
    st.sampled_from(FIELDS), st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
)
def test_what_is_accepted_reads_as_itself(field: Field, value: object) -> None:
    if field.kind.accepts(value):
        assert field.kind.read(value) == value
    read = field.kind.read(value)
    assert read is None or field.kind.accepts(read)


def test_old_names_mean_the_same() -> None:
    layout = {"pp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 2}
    assert renamed({"mp": 2, "encoder_counts": [3], **layout}, LAYOUT) == {
        "tp": 2,
        "layer_counts": [3],
        **layout,
    }
    old = ModelConfig.from_document({"encoders": 3, **SIZES}, where="file", name="x")
    assert old == ModelConfig.from_document({"layers": 3, **SIZES}, where="file", name="x")


def test_both_names_of_a_field_are_one_line() -> None:
    with pytest.raises(UsageError, match=r"^tp and mp are both given, expected only tp$"):
        renamed({"mp": 2, "tp": 2}, LAYOUT)
    with pytest.raises(UsageError, match=r"^file: layers and encoders are both given, expected only layers$"):
        ModelConfig.from_document({"encoders": 3, "layers": 3, **SIZES}, where="file", name="x")


def test_an_unknown_field_says_what_was_meant() -> None:
    assert str(unknown_field("hiden_size", MODEL)).startswith(
        "field 'hiden_size' is unknown (did you mean hidden_size?)"
    )
    assert str(unknown_field("context_parallel", LAYOUT)).startswith(
        "field 'context_parallel' is unknown, known are pp, "
    )


def test_a_layout_is_read_from_plain_values() -> None:
    values = {"tp": 2, "micro_batch": 1, "global_batch": 8, "layer_counts": [4], "colour": "red"}
    assert read_layout(values) == Parallelism(
        pp=1, tp=2, dp=1, micro_batch=1, micro_batches=8, layer_counts=(4,)
    )
    asked = read_request({**values, "gpus_per_node": 4, "timeline": "closed-form"})
    assert (asked["cluster"].gpus_per_node, asked["timeline"], asked["bucket_entries"]) == (
        4,
        "closed-form",
        1_260_000_000,
    )
    assert read_request(values)["cluster"] is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"micro_batches": 1}, "micro_batch is not given, expected a whole number from 1 to 1000000"),
        ({"micro_batch": 1}, "neither micro_batches nor global_batch is given, expected one of them"),
        (
            {"micro_batch": 1, "micro_batches": 1, "global_batch": 1},
            "micro_batches and global_batch are both given, expected one of them",
        ),
        ({"micro_batch": 1, "micro_batches": 1, "pp": "2"}, "pp is '2', expected a whole number from 1 to"),
    ],
)
def test_a_layout_that_is_none(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_layout(values)
    assert str(caught.value).startswith(message)
