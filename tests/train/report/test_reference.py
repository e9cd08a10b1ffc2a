"""Published errors for comparison."""

from pathlib import Path

import pytest

from kernelcast.runtime import DataError
from kernelcast.runtime.operators import Direction
from kernelcast.train.report.reference import Reference

ROOT = Path(__file__).parent.parent.parent
FORWARD, ONCE = Direction.FORWARD, Direction.ONCE


@pytest.fixture
def reference() -> Reference:
    return Reference.read(ROOT / "data" / "importers" / "Example")


def test_an_operator_has_one_error_per_direction_and_dtype(reference: Reference) -> None:
    assert reference.error_of("gemm", FORWARD, "float16", {}) == 0.04
    assert reference.error_of("gemm", Direction.BACKWARD, "float16", {}) == 0.02
    assert reference.error_of("gemm", FORWARD, "float32", {}) is None
    assert reference.error_of("gelu", FORWARD, "float16", {}) is None


def test_a_collective_has_that_of_all_layouts(reference: Reference) -> None:
    assert reference.error_of("all_reduce", ONCE, "float16", {(1, 2): 10}) == 0.015
    assert reference.error_of_layout("all_reduce", ONCE, "float16", (2, 4)) == 0.01
    assert reference.error_of_layout("all_reduce", ONCE, "float16", (1, 2)) is None


def test_else_its_layouts_are_weighted_by_rows(reference: Reference, tmp_path: Path) -> None:
    (tmp_path / "nccl").mkdir()
    head = "GPU,Function,Precision,Nodes,GPUsPerNode,Best_model,Best_config,Best_error%\n"
    rows = "".join(
        f"X,p2p,fp16,{nodes},{gpus},rforest,{{}},{error}\n"
        for nodes, gpus, error in ((1, 2, 0.01), (2, 1, 0.04))
    )
    (tmp_path / "nccl" / "X.csv").write_text(head + rows)
    (tmp_path / "nccl" / "X_p2p_fp16_1_2.csv").write_text("shape,nodes,GPUsPerNode,dur(us)\n1,1,2,1\n")
    found = Reference.read(tmp_path)
    assert found.error_of("point_to_point", ONCE, "float16", {(1, 2): 20, (2, 1): 10}) == pytest.approx(0.02)
    assert found.error_of("point_to_point", ONCE, "float16", {(1, 2): 20, (4, 1): 10}) is None


def test_a_folder_without_any_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        Reference.read(tmp_path / "none")
