"""What laws of all steps share: an estimator with constant times."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kernelcast.runtime import Estimator


@pytest.fixture(scope="session")
def constant(
    make_bundle_in: Callable[[Path], Callable[..., Path]], tmp_path_factory: pytest.TempPathFactory
) -> Estimator:
    """Of a bundle where every operator takes the same time, whatever its workload."""
    return Estimator.load(make_bundle_in(tmp_path_factory.mktemp("constant"))())
