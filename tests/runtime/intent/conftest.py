"""What tests of open requests share: hardware that ships, and requests to it."""

from collections.abc import Callable

import pytest

from kernelcast.runtime import Estimator, load_model
from kernelcast.runtime.intent.best import OpenRequest, read_open_request

Ask = Callable[..., OpenRequest]


@pytest.fixture(scope="session")
def a100() -> Estimator:
    """An estimator of the A100 that ships."""
    return Estimator.load("hardware:a100-sxm")


@pytest.fixture
def ask(a100: Estimator) -> Ask:
    """Makes a request of fields; of llama-2-7b on 16 devices, 64 samples, where it does not say others."""

    def made(model: str = "llama-2-7b", **values: object) -> OpenRequest:
        asked = {"gpus": 16, "global_batch": 64, **values}
        return read_open_request(asked, model=load_model(model), estimator=a100)

    return made
