"""POST /choices: what each degree of a layout can be changed to on the same devices, and why not."""

from typing import Any

from kernelcast.runtime.estimate.defaults import usual_gpu_memory_bytes, usual_reserved_bytes
from kernelcast.runtime.request.reading import read_request
from kernelcast.runtime.search.choices import choices
from kernelcast.serve.answering import model_of, of_request
from kernelcast.serve.bodies import known_fields
from kernelcast.serve.schemas import PREDICT
from kernelcast.serve.warm import Warm

CHOICES_FORMAT = "kernelcast.choices/1"


def layout_choices(warm: Warm, values: dict[str, Any]) -> dict[str, Any]:
    """Answer one question, with the fields of /predict; form `kernelcast.choices/1`.

    Raises:
        UsageError: a field is unknown, missing or wrong, or the layout itself is not valid.
    """
    values = known_fields(values, PREDICT)
    model = model_of(warm, values).model
    estimator, values = of_request(warm, values)
    asked = read_request(values)
    bundle = estimator.bundle
    memory = asked.get("gpu_memory_bytes", usual_gpu_memory_bytes(bundle))
    reserved = asked.get("reserved_memory_bytes", usual_reserved_bytes(bundle))
    found = choices(
        asked["parallelism"],
        model,
        bundle,
        usable_bytes=None if memory is None else max(0, memory - reserved),
        simulated=asked["timeline"] == "simulate",
    )
    return {
        "format": CHOICES_FORMAT,
        "gpus": asked["parallelism"].world_size,
        "global_batch": asked["parallelism"].samples_per_update,
        "choices": {field: [one.to_dict() for one in several] for field, several in found.items()},
    }
