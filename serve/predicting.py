"""POST /predict: the question of `kernelcast predict`, from JSON, and its answer, an estimate as JSON."""

from typing import Any

from kernelcast.runtime.request.reading import read_request
from kernelcast.serve.bodies import known_fields, require_field
from kernelcast.serve.fabrics import find_fabric
from kernelcast.serve.models import find_model
from kernelcast.serve.schemas import PREDICT
from kernelcast.serve.stacks import of_stack
from kernelcast.serve.warm import Warm


def predict(warm: Warm, values: dict[str, Any]) -> dict[str, Any]:
    """Answer one question.

    Raises:
        UsageError: a field is unknown, missing, wrong, or does not go with the others.
        DataError: the bundle lacks an operator that the model needs.
    """
    values = known_fields(values, PREDICT)
    found = find_model(
        require_field(values, "model"), warm.models, sequence_length=values.get("sequence_length")
    )
    estimator, values = of_stack(warm.estimator, values)
    estimate = estimator.predict(
        model=found.model,
        fabric=find_fabric(values.get("fabric"), warm.fabrics),
        **read_request(values),
    )
    return found.with_notes(estimate.to_dict())
