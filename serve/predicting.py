"""POST /predict, and other forms of its answer: pictures, the page and the trace that `kernelcast predict` writes."""

from typing import Any

from kernelcast.runtime import Estimate
from kernelcast.runtime.request.models import FoundModel
from kernelcast.runtime.request.reading import read_request
from kernelcast.runtime.views.chrome_trace import trace_lines
from kernelcast.runtime.views.estimate_page import page
from kernelcast.runtime.views.pictures import pictures
from kernelcast.serve.answering import model_of, of_request
from kernelcast.serve.bodies import known_fields
from kernelcast.serve.fabrics import find_fabric
from kernelcast.serve.schemas import PREDICT
from kernelcast.serve.warm import Warm


def predict(warm: Warm, values: dict[str, Any]) -> dict[str, Any]:
    """Answer one question.

    Raises:
        UsageError: a field is unknown, missing, wrong, or does not go with the others.
        DataError: the bundle lacks an operator that the model needs.
    """
    found, estimate = _estimate(warm, values)
    return found.with_notes(estimate.to_dict())


def predict_pictures(warm: Warm, values: dict[str, Any]) -> dict[str, Any]:
    """Its timeline and memory as SVG, and where its time goes; errors as `predict`."""
    return pictures(_estimate(warm, values)[1])


def predict_page(warm: Warm, values: dict[str, Any]) -> bytes:
    """The page of an answer, HTML in UTF-8; errors as `predict`."""
    return page(_estimate(warm, values)[1]).encode()


def predict_trace(warm: Warm, values: dict[str, Any]) -> bytes:
    """The Chrome trace of an answer, JSON; errors as `predict`, and UsageError of a step with too many passes."""
    return "".join(trace_lines(_estimate(warm, values)[1])).encode()


def _estimate(warm: Warm, values: dict[str, Any]) -> tuple[FoundModel, Estimate]:
    values = known_fields(values, PREDICT)
    found = model_of(warm, values)
    estimator, values = of_request(warm, values)
    estimate = estimator.predict(
        model=found.model,
        fabric=find_fabric(values.get("fabric"), warm.fabrics),
        **read_request(values),
    )
    return found, estimate
