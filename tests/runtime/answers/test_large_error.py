"""A regressor that does not follow its own measurements makes the answers doubtful."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime.answers.asking import ask
from kernelcast.runtime.answers.large_error import LARGE_ERROR, LargeErrorWarning
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.bundle.file import read_bundle, write_bundle
from kernelcast.runtime.operators import Direction

Make = Callable[..., Path]
GELU, NORM = ("gelu", Direction.FORWARD), ("layer_norm", Direction.FORWARD)
ASKED = ((GELU, (1, 2, 3), ""), (NORM, (1, 2, 3), ""))


@pytest.mark.parametrize(("error", "warns"), [(LARGE_ERROR, False), (0.4, True)])
def test_it_warns_of_its_own_answers(make_bundle: Make, tmp_path: Path, error: float, warns: bool) -> None:
    read = read_bundle(make_bundle())
    entries = tuple(
        replace(entry, validation_error=error) if entry.key == GELU else entry
        for entry in read.manifest.regressors
    )
    path = tmp_path / "off.kcast"
    write_bundle(path, replace(read.manifest, regressors=entries), read.files)
    found = ask(Predictor(read_bundle(path)), ASKED).concerned
    warning = LargeErrorWarning(key=GELU, error=error)
    assert found == ({warning: {ASKED[0]}} if warns else {})
    assert ask(Predictor(read_bundle(path)), ASKED, with_warnings=False).concerned == {}


def test_it_is_doubtful() -> None:
    warning = LargeErrorWarning(key=GELU, error=0.4)
    assert warning.brief == "gelu up to 40 % off on held-out measurements"
    assert warning.to_dict() == {
        "cause": "doubtful",
        "kind": "large_error",
        "operator": "gelu",
        "direction": "forward",
        "error": 0.4,
        "message": "gelu (forward): the regressor is 40% off on held-out measurements",
    }
