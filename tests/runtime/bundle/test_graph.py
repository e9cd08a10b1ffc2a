"""Graphs that a bundle may not hold: each is refused before ONNX Runtime sees it."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelcast.runtime import DataError, read_bundle
from kernelcast.runtime.bundle.graph import check_graph
from tests.runtime.bundle.hostile_graphs import HOSTILE, model_of, node, trees_of

_SHIPPED = sorted((Path(__file__).parents[3] / "runtime" / "shipped").rglob("*.kcast"))


@pytest.mark.parametrize("path", _SHIPPED, ids=lambda path: path.stem)
def test_what_ships_passes(path: Path) -> None:
    bundle = read_bundle(path)
    for entry in bundle.manifest.regressors:
        check_graph(bundle.files[entry.file], len(entry.features))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_graphs_are_refused(name: str) -> None:
    make, message = HOSTILE[name]
    with pytest.raises(DataError, match=message) as caught:
        check_graph(make(), 3)
    assert str(caught.value).isprintable()


def test_a_sound_tree_passes() -> None:
    check_graph(trees_of(), 3)


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_one_line(content: bytes) -> None:
    with pytest.raises(DataError) as caught:
        check_graph(content, 3)
    assert str(caught.value).isprintable()


@settings(max_examples=300)
@given(st.data())
def test_any_damage_is_one_line(data: st.DataObject) -> None:
    model = bytearray(trees_of())
    for _ in range(data.draw(st.integers(1, 3))):
        model[data.draw(st.integers(0, len(model) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DataError):
        check_graph(bytes(model), 3)


def test_a_cut_model_is_refused() -> None:
    model = trees_of()
    opsets = model.index(b"ai.onnx.ml", len(model) - 20) - 10  # they follow the graph, and may be fewer
    for size in range(opsets):
        with pytest.raises(DataError):
            check_graph(model[:size], 3)


def test_numbers_are_read_as_protobuf_reads_them() -> None:
    """Negative and large integers have ten bytes; a Gather of them names the requested column."""
    for index in ([-1, 0, 2], [-3]):
        check_graph(model_of([node("Gather", "workload", "index", axis=1)], index=index), 3)
    with pytest.raises(DataError, match="takes columns -4 to 0 of 3"):
        check_graph(model_of([node("Gather", "workload", "index", axis=1)], index=[-4, 0]), 3)
