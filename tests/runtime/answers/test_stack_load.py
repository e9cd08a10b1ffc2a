"""The load that regressors state: in the manifest, in explanations, and together with a stack."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime import DataError, Estimate, Estimator, ModelConfig, Parallelism
from kernelcast.runtime.bundle.file import read_bundle, write_bundle
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.estimate.explanation import explain_operator
from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.stack import Stack

MODEL = ModelConfig(
    name="small", hidden_size=64, sequence_length=8, attention_heads=8, layers=4, vocabulary_size=100
)
ONE = Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=2)
STACK = Stack(name="ours", software="some", source="a test", residual=0.05, compute=1.25)


@pytest.fixture
def lasting(make_bundle: Callable[..., Path], tmp_path: Path) -> Path:
    """A bundle whose matrix products were measured under sustained load, residual additions in bursts."""
    bundle = read_bundle(make_bundle())
    loads = {"gemm": Load.SUSTAINED, "residual_add": Load.BURST}
    entries = tuple(
        replace(e, load=loads.get(e.operator, Load.NOT_STATED)) for e in bundle.manifest.regressors
    )
    path = tmp_path / "lasting.kcast"
    write_bundle(path, replace(bundle.manifest, regressors=entries), bundle.files)
    return path


def warned(bundle: Path, stack: Stack | None) -> list[str]:
    estimate = Estimator.load(bundle, stack=stack).predict(model=MODEL, parallelism=ONE)
    return [str(one) for one in estimate.warnings if one.kind == "stack_load"]


def test_a_load_is_kept_in_the_manifest_and_explained(lasting: Path) -> None:
    bundle = read_bundle(lasting)
    found = {entry.operator: entry.load for entry in bundle.manifest.regressors}
    assert (found["gemm"], found["residual_add"], found["gelu"]) == (
        Load.SUSTAINED,
        Load.BURST,
        Load.NOT_STATED,
    )
    estimate: Estimate = Estimator.load(lasting).predict(model=MODEL, parallelism=ONE)
    [one, *_] = explain_operator(estimate, bundle, "gemm")
    assert one.to_dict()["regressor"]["load"] == "sustained"


def test_what_is_not_stated_is_no_field_and_nothing_else_is_accepted(lasting: Path) -> None:
    entry = next(e for e in read_bundle(lasting).manifest.regressors if e.operator == "gemm")
    assert "load" not in replace(entry, load=Load.NOT_STATED).to_dict()
    values = entry.to_dict()
    assert values["load"] == "sustained"
    for wrong in ("full", ""):
        with pytest.raises(DataError, match=rf"load is '{wrong}', expected burst or sustained"):
            RegressorEntry.from_dict(values | {"load": wrong})


def test_no_factor_is_added_in_silence_and_a_stack_beside_sustained_times_is_named(
    lasting: Path, make_bundle: Callable[..., Path]
) -> None:
    times = [
        Estimator.load(path).predict(model=MODEL, parallelism=ONE).step_time_s
        for path in (lasting, make_bundle())
    ]
    assert times[0] == times[1]
    [text] = warned(lasting, STACK)
    assert text == (
        "stack ours multiplies times that were measured under sustained load: if it was fitted to bursts, "
        "lower clocks count twice (kernelcast stack fit)"
    )
    assert warned(lasting, None) == []
    assert warned(lasting, replace(STACK, compute=1.0)) == []
    assert warned(make_bundle(), STACK) == []
