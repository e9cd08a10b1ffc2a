"""The figures of a training and the table that they make."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernelcast.runtime.bundle.regressor_entry import PRIOR, HeldOut
from kernelcast.runtime.operators import Direction
from kernelcast.train.fit import Trained
from kernelcast.train.report.figures import TrainingFigures, figures, table_rows
from kernelcast.train.report.reference import Reference
from kernelcast.train.selection import relative_errors

PUBLISHED = Path(__file__).parent.parent.parent / "data" / "importers" / "Example"


def with_errors(trained: Trained, **changes: object) -> TrainingFigures:
    """The figures of a training whose entries had other ones."""
    entries = tuple(replace(entry, **changes) for entry in trained.manifest.regressors)  # type: ignore[arg-type]
    return figures(replace(trained, manifest=replace(trained.manifest, regressors=entries)))


def test_means_leave_the_collectives_out(trained: Trained) -> None:
    found = figures(trained)
    errors = {o.entry.operator: o.entry.validation_error for o in found.operators}
    assert set(errors) == {"all_reduce", "gelu", "gemm"}
    assert found.mean_validation_error == pytest.approx((errors["gelu"] + errors["gemm"]) / 2)
    assert found.mean_collective_error == errors["all_reduce"]
    assert found.rows == 24 + 24 + 36
    assert found.size_bytes == sum(entry.size_bytes for entry in trained.manifest.regressors)


def test_collectives_alone_have_a_mean(trained: Trained) -> None:
    [collective] = [entry for entry in trained.manifest.regressors if entry.operator == "all_reduce"]
    found = figures(replace(trained, manifest=replace(trained.manifest, regressors=(collective,))))
    assert found.mean_validation_error == found.mean_collective_error == collective.validation_error
    assert figures(trained).mean_reference_error is None


def test_a_regressor_has_a_row_per_role(trained: Trained) -> None:
    gemm = trained.manifest.regressors[2]
    entry = replace(gemm, role_errors={"mlp_up": 0.25, "qkv": 0.5})
    table = trained.selections[2].table
    mlp_up_us = np.where(np.arange(24) < 10, table.times_us, np.nan)
    selected = replace(
        trained.selections[2],
        table=replace(table, role_times_us={"mlp_up": mlp_up_us, "qkv": table.times_us}),
    )
    found = figures(
        replace(
            trained,
            manifest=replace(trained.manifest, regressors=(entry,)),
            selections=(selected,),
        ),
        Reference.read(PUBLISHED),
    )
    assert [(role.name, role.rows, role.reference_error) for role in found.operators[0].roles] == [
        ("Linear3", 10, None),
        ("Linear1", 24, 0.02),
    ]
    assert found.mean_validation_error == 0.375
    assert [(row["role"], row["rows"]) for row in table_rows(found)] == [("Linear3", 10), ("Linear1", 24)]


def test_means_of_what_was_measured(trained: Trained) -> None:
    found = with_errors(trained, extrapolation_error=0.25, interval_coverage=0.9)
    assert (found.mean_extrapolation_error, found.mean_coverage) == (0.25, pytest.approx(0.9))
    found = with_errors(trained, extrapolation_error=None, interval_coverage=None)
    assert (found.mean_extrapolation_error, found.mean_coverage) == (None, None)


def test_held_out_distances_are_summed_over_regressors(trained: Trained) -> None:
    def held_out(kind: str, doublings: float, rows: int, inside: float) -> HeldOut:
        return HeldOut(kind=kind, doublings=doublings, rows=rows, inside=inside)

    near, far, role = (
        held_out("size", 1.0, 10, 0.9),
        held_out("size", 2.0, 20, 0.5),
        held_out("role", math.inf, 4, 1.0),
    )
    found = with_errors(trained, widening=replace(PRIOR, held_out=(far, role, near)))
    assert found.held_out == tuple(replace(one, rows=3 * one.rows) for one in (near, far, role))
    assert with_errors(trained, widening=None).held_out == ()


def test_layouts_have_errors_of_their_own(trained: Trained) -> None:
    [collective, gelu, _] = figures(trained).operators
    assert gelu.layouts == ()
    assert [(layout.nodes, layout.gpus_per_node) for layout in collective.layouts] == [(1, 2), (1, 4), (2, 4)]
    selected = collective.selected
    assert selected is not None
    errors = relative_errors(selected.held_out_us, selected.table.times_us)
    own = errors[(selected.table.workloads[:, 1:] == (1, 4)).all(axis=1)]
    layout = collective.layouts[1]
    assert (layout.rows, layout.error, layout.median_error) == (12, np.mean(own), np.median(own))


def test_outliers_are_told_with_workload_and_times(trained: Trained) -> None:
    [_, gelu, _] = figures(trained).operators
    assert gelu.selected is not None
    far = replace(gelu.selected, outliers=(3, 1))
    found = figures(replace(trained, selections=(far,))).operators[1]
    assert [outlier.vector for outlier in found.outliers] == [
        tuple(far.table.workloads[row].astype(int)) for row in (3, 1)
    ]
    assert found.outliers[0].time_us == far.table.times_us[3]
    assert found.to_dict()["outliers"][1]["held_out_us"] == far.held_out_us[1]


def test_a_reference_is_compared_operator_by_operator(trained: Trained) -> None:
    found = figures(trained, Reference.read(PUBLISHED))
    by_name = {o.entry.operator: o.roles[0].reference_error for o in found.operators}
    assert by_name == {"all_reduce": None, "gelu": None, "gemm": 0.02}
    # Means over different operators cannot be compared.
    assert found.mean_reference_error is None


def test_regressors_that_were_taken_over_have_no_rows(trained: Trained) -> None:
    found = figures(replace(trained, selections=()), Reference.read(PUBLISHED))
    assert [operator.to_dict()["fitted"] for operator in found.operators] == [False] * 3
    assert all(operator.layouts == operator.outliers == () for operator in found.operators)
    assert found.mean_validation_error == figures(trained).mean_validation_error


def test_the_json_form_is_plain(trained: Trained) -> None:
    values = json.loads(json.dumps(figures(trained).to_dict(), allow_nan=False))
    assert values["operators"][1]["operator"] == "gelu"
    assert [skipped["operator"] for skipped in values["skipped"]] == ["softmax"]


def test_the_table_has_a_cell_per_operator_and_no_empty_column(trained: Trained) -> None:
    table = table_rows(with_errors(trained, extrapolation_error=None, interval_coverage=0.875))
    assert "reference_percent" not in table[0]
    assert "extrapolated_percent" not in table[0]
    assert [row["operator"] for row in table] == ["all_reduce", "gelu", "gemm"]
    assert [row["role"] for row in table] == ["", "Glue", "Linear1"]
    assert [row["coverage_percent"] for row in table] == [87.5] * 3
    assert table[2]["direction"] == Direction.BACKWARD.value
    manifest = replace(trained.manifest, regressors=trained.manifest.regressors[:1])
    [alone] = table_rows(figures(replace(trained, manifest=manifest)))
    assert {**alone, "role": ""} == table_rows(figures(trained))[0]
    compared = table_rows(figures(trained, Reference.read(PUBLISHED)))
    assert [row["reference_percent"] for row in compared] == [None, None, 2.0]
