"""Models that an estimator loaded are freed with it: servers replace bundles."""

import gc
import weakref

from kernelcast.runtime import Estimator
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.models import load_model


def test_an_estimator_that_has_answered_is_freed() -> None:
    estimator = Estimator.load("hardware:h100-sxm")
    layout = Parallelism(pp=1, tp=1, dp=2, micro_batch=1, micro_batches=1)
    estimator.predict(model=load_model("llama-2-7b"), parallelism=layout)
    predictor = weakref.ref(estimator.predictor)
    del estimator
    gc.collect()
    assert predictor() is None
