"""Published errors for comparison."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime import DataError
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry, model_file
from kernelcast.runtime.operators import Direction
from kernelcast.train.fit import Trained
from kernelcast.train.report.reference import Reference

ROOT = Path(__file__).parent.parent.parent
FORWARD = Direction.FORWARD


@pytest.fixture
def reference() -> Reference:
    return Reference.read(ROOT / "data" / "importers" / "Example")


@pytest.fixture
def entry(trained: Trained) -> Callable[..., RegressorEntry]:
    """The entry of a small training's regressor, in another direction or dtype."""

    def make(operator: str, **changes: object) -> RegressorEntry:
        [found] = [one for one in trained.manifest.regressors if one.operator == operator]
        direction = changes.get("direction", found.direction)
        return replace(found, **changes, file=model_file(operator, direction))  # type: ignore[arg-type]

    return make


Entry = Callable[..., RegressorEntry]


def test_a_role_has_one_error_per_direction_and_dtype(reference: Reference, entry: Entry) -> None:
    assert reference.error_of(entry("gemm", direction=FORWARD), "qkv", {}) == 0.04
    assert reference.error_of(entry("gemm"), "qkv", {}) == 0.02
    assert reference.error_of(entry("gemm"), "mlp_up", {}) is None
    assert reference.error_of(entry("gemm", dtype="float32"), "qkv", {}) is None
    assert reference.error_of(entry("gelu"), "", {}) is None


def test_a_collective_has_that_of_all_layouts(reference: Reference, entry: Entry) -> None:
    assert reference.error_of(entry("all_reduce"), "tensor", {(1, 2): 10}) == 0.015
    assert reference.error_of(entry("all_reduce"), "data", {(1, 2): 10}) is None
    assert reference.error_of_layout(entry("all_reduce"), "tensor", (2, 4)) == 0.01
    assert reference.error_of_layout(entry("all_reduce"), "tensor", (1, 2)) is None


def test_else_its_layouts_are_weighted_by_rows(tmp_path: Path, entry: Entry) -> None:
    (tmp_path / "nccl").mkdir()
    head = "GPU,Function,Precision,Nodes,GPUsPerNode,Best_model,Best_config,Best_error%\n"
    rows = "".join(
        f"X,allreduce,fp16,{nodes},{gpus},rforest,{{}},{error}\n"
        for nodes, gpus, error in ((1, 2, 0.01), (2, 1, 0.04))
    )
    (tmp_path / "nccl" / "X.csv").write_text(head + rows)
    (tmp_path / "nccl" / "X_allreduce_fp16_1_2.csv").write_text("shape,nodes,GPUsPerNode,dur(us)\n1,1,2,1\n")
    found, reduce = Reference.read(tmp_path), entry("all_reduce")
    assert found.error_of(reduce, "tensor", {(1, 2): 20, (2, 1): 10}) == pytest.approx(0.02)
    assert found.error_of(reduce, "tensor", {(1, 2): 20, (4, 1): 10}) is None


def test_a_folder_without_any_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        Reference.read(tmp_path / "none")
