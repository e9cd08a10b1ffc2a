"""POST /plan: a whole run on the calendar."""

from typing import Any

from kernelcast.plan.fields import PLAN
from kernelcast.plan.planning import plan_of, read_plan
from kernelcast.runtime.request.reading import read_request
from kernelcast.serve.answering import find_fabric, model_of, of_request
from kernelcast.serve.bodies import known_fields
from kernelcast.serve.schemas import RUN_PLAN
from kernelcast.serve.warm import Warm


def plan_run(warm: Warm, values: dict[str, Any]) -> dict[str, Any]:
    """Plan a run of the layout that `values` give; form `kernelcast.run-plan/1`.

    Raises:
        UsageError: a field is unknown, missing or wrong, or the run makes no progress.
        DataError: the bundle lacks an operator that the model needs.
    """
    values = known_fields(values, RUN_PLAN)
    own = read_plan({name: value for name, value in values.items() if name in PLAN})
    values = {name: value for name, value in values.items() if name not in PLAN}
    found = model_of(warm, values)
    estimator, values = of_request(warm, values)
    fabric = find_fabric(values.get("fabric"), warm.fabrics)
    estimate = estimator.predict(model=found.model, fabric=fabric, **read_request(values))
    planned = plan_of(estimator, estimate, own, fabric=fabric)
    return found.with_notes(planned.to_dict(with_fan=True))
