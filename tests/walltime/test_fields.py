"""Fields of a job's description: what each accepts, from TOML and as text, and that nothing else gets through."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime import UsageError
from kernelcast.walltime import FIELDS
from kernelcast.walltime.fields import SITE_ONLY, give

HERE = Path("/folder")


def read(name: str, value: object) -> Any:
    found = give([(name, value)], origin="file", folder=HERE, site=name in SITE_ONLY)
    return found[name].value


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("tokens", "1e9", 10**9),
        ("tokens", 1e9, 10**9),
        ("tokens", "1_000_000", 10**6),
        ("tokens", "2.5e3", 2_500),
        ("tokens", 10**18, 10**18),
        ("pp", "4", 4),
        ("steps", 10**12, 10**12),
        ("checkpoint_every", "1000000000000", 10**12),
        ("zero", 0, 0),
        ("margin", "15%", 0.15),
        ("margin", "0.15", 0.15),
        ("margin", 0, 0.0),
        ("price", "2.5", 2.5),
        ("startup", "5m", 300.0),
        ("startup", 90, 90.0),
        ("max_time", "1-00:00:00", 86_400.0),
        ("max_time", "36600-00:00:00", 36_600 * 86_400.0),
        ("recompute", "full", "full"),
        ("cp", "2", 2),
        ("ep", "64", 64),
        ("expert_tp", 2, 2),
        ("context_exchange", "all_to_all", "all_to_all"),
        ("expert_imbalance", "1.3", 1.3),
        ("schedule", "zero_bubble", "zero_bubble"),
        ("sequence_parallel", "true", True),
        ("sequence_parallel", False, False),
        ("layer_counts", "3,2", (3, 2)),
        ("layer_counts", [3, 2], (3, 2)),
        ("bundle", "b.kcast", "/folder/b.kcast"),
        ("bundle", "/b.kcast", "/b.kcast"),
        ("model", "llama-2-7b", "llama-2-7b"),
        ("model", "m.toml", "/folder/m.toml"),
        ("model", "a/m", "/folder/a/m"),
        ("models", "m", "/folder/m"),
    ],
)
def test_accepts(name: str, value: object, expected: object) -> None:
    found = read(name, value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tokens", "1e", "tokens is '1e', expected a whole number from 1 to 1e18"),
        ("tokens", 0, "tokens is 0, expected a whole number"),
        ("tokens", "1e19", "tokens is '1e19'"),
        ("steps", 10**12 + 1, "steps is 1000000000001, expected a whole number from 1 to 1e12"),
        ("tokens", "1e999", "tokens is '1e999'"),
        ("max_time", "36601-00:00:00", "max_time is '36601-00:00:00', expected seconds"),
        ("tokens", "1" * 60, "tokens is '111"),
        ("tokens", 1.5, "tokens is 1.5"),
        ("tokens", True, "tokens is true"),
        ("tokens", float("nan"), "tokens is nan"),
        ("tokens", float("inf"), "tokens is inf"),
        ("tokens", "٣", "tokens is "),
        ("pp", "-1", "pp is '-1', expected a whole number from 1 to 1000000"),
        ("zero", 4, "zero is 4, expected a whole number from 0 to 3"),
        ("margin", "-1%", "margin is '-1%', expected a fraction from 0 to 10 or a percentage"),
        ("margin", "11", "margin is '11'"),
        ("price", "-1", "price is '-1', expected a number from 0 to 1e+09"),
        ("startup", "soon", "startup is 'soon', expected seconds, or a time such as 90s"),
        ("startup", -1, "startup is -1"),
        ("max_time", 0, "max_time is 0, expected seconds, or a time such as 90s"),
        ("startup", "99999999d", "startup is "),
        ("recompute", "some", "recompute is 'some', expected none, selective or full"),
        ("sequence_parallel", "yes", "sequence_parallel is 'yes', expected true or false"),
        ("sequence_parallel", 1, "sequence_parallel is 1"),
        ("layer_counts", "3,", "layer_counts is '3,', expected whole numbers"),
        ("layer_counts", [], "layer_counts is []"),
        ("bundle", "", "bundle is '', expected a file's path"),
        ("bundle", 3, "bundle is 3"),
        ("bundle", "a\0b", "bundle is "),
        ("model", "x" * 5_000, "model is "),
        ("colour", "red", "field 'colour' is unknown, known are bundle, hardware, model, "),
    ],
)
def test_refuses(name: str, value: object, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(name, value)
    text = str(raised.value)
    assert text.startswith(f"file: {message}")
    assert text.isprintable()
    assert len(text) < 200 + sum(len(field) + 2 for field in FIELDS)


def test_the_folder_of_models_is_the_sites() -> None:
    with pytest.raises(UsageError, match=r"^file: field models is set here, expected only in the site file$"):
        give([("models", "m")], origin="file", folder=HERE)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=60),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(FIELDS)), anything)
def test_whatever_is_given_is_read_or_refused_in_one_line(name: str, value: object) -> None:
    try:
        found, message = read(name, value), ""
    except UsageError as error:
        found, message = None, str(error)
    if found is None:
        assert message.isprintable()
    else:
        # What was read is stable: read again, it is the same.
        assert read(name, list(found) if isinstance(found, tuple) else found) == found


def test_old_names_are_read_as_the_new_ones() -> None:
    found = give([("mp", "2"), ("encoder_counts", "3,1")], origin="file", folder=HERE)
    assert {name: one.value for name, one in found.items()} == {"tp": 2, "layer_counts": (3, 1)}
    with pytest.raises(UsageError) as raised:
        give([("mp", "x")], origin="file", folder=HERE)
    assert str(raised.value) == "file: mp is 'x', expected a whole number from 1 to 1000000"


def test_a_field_by_two_names_is_one_line() -> None:
    with pytest.raises(UsageError) as raised:
        give([("tp", 2), ("mp", 2)], origin="file", folder=HERE)
    assert str(raised.value) == "file: mp is given again, first in file (mp is an old name of tp)"
