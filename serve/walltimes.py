"""POST /walltime: a job's fields or its batch script, and the answer as JSON or a line for Slurm."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelcast.runtime import UsageError
from kernelcast.runtime.answers.fabric_choice import FabricChoice
from kernelcast.runtime.errors import one_line, shown
from kernelcast.runtime.frameworks.slurm import OPTIONS
from kernelcast.runtime.request.model import FoundModel
from kernelcast.serve.answering import find_fabric, find_model
from kernelcast.serve.loaded import Loaded
from kernelcast.serve.messages import known_fields
from kernelcast.serve.schemas import WALLTIME
from kernelcast.walltime import (
    Answer,
    Job,
    Settings,
    answer,
    format_slurm,
    merge,
    read_time_limit,
    script_job,
    slurm_allocation,
)
from kernelcast.walltime.fields import Given, give, is_path
from kernelcast.walltime.job import MAX_HEAD_BYTES, SITE_VARIABLE

_REQUEST = "request"
_NO_SITE_FILE = {SITE_VARIABLE: ""}
_NOT_FIELDS = ("script", "slurm", "asked", "hardware")
_NO_PATHS = {
    "model": "a model's name or fields",
    "fabric": "a fabric's name or fields",
    "stack": "a stack's name",
}
# What a script may be cut to: it is read as far as a command reads one.
_NOWHERE = Path("/")


def walltime(loaded: Loaded, values: dict[str, Any]) -> Answer:
    """Predict a job's walltime. Fields of the request override the script's, and these the site's.

    Raises:
        UsageError: a field is unknown, missing or wrong; names request, line of the script, or site file.
        DataError: the bundle lacks an operator that the model needs.
    """
    values = known_fields(values, WALLTIME)
    estimator = loaded.estimator_of(values.get("hardware"))
    in_script = _script(values)
    by_request, inline = _given(values)
    described = values.get("fabric") if isinstance(values.get("fabric"), dict) else None
    site = {**loaded.site, "bundle": Given(value=loaded.name, origin="server")}
    settings = merge(by_request, in_script.settings.given if in_script else {}, site)

    def model_of(settings: Settings) -> FoundModel:
        asked = inline if inline is not None else settings.text("model")
        return find_model(asked, loaded.models, sequence_length=settings.whole("sequence_length"))

    def fabric_of(settings: Settings) -> FabricChoice | None:
        return find_fabric(described if described is not None else settings.text("fabric"), loaded.fabrics)

    slurm = {**(in_script.slurm_options if in_script else {}), **_slurm(values.get("slurm", {}))}
    return answer(
        Job(
            settings=settings,
            slurm_options=slurm,
            off=False,
            warnings=in_script.warnings if in_script else (),
        ),
        allocation=slurm_allocation(slurm),
        asked_s=_time_limit_s(values.get("asked")),
        load=lambda _: estimator,
        find_model=model_of,
        find_fabric=fabric_of,
    )


def for_slurm(found: Answer) -> str:
    """A time limit as Slurm reads it on the first line, then lines for the job's user.

    Raises:
        UsageError: it exceeds Slurm's longest.
    """
    warnings = (f"kernelcast: warning: {one_line(warning)}" for warning in found.warnings)
    return "\n".join([format_slurm(found.walltime.walltime_s), *warnings]) + "\n"


def _script(values: dict[str, Any]) -> Job | None:
    if "script" not in values:
        return None
    script = values["script"]
    if not isinstance(script, str):
        raise UsageError(field="script", found=script, expected="a batch script's text")
    job = script_job(script[:MAX_HEAD_BYTES], name="batch script", folder=None, environment=_NO_SITE_FILE)
    if job.off:
        raise UsageError("script contains #KERNELCAST off, expected a job to predict")
    return job


def _given(values: dict[str, Any]) -> tuple[dict[str, Given], dict[str, Any] | None]:
    """The request's fields, and its model if described by fields."""
    fields = {name: value for name, value in values.items() if name not in _NOT_FIELDS}
    for name, expected in _NO_PATHS.items():
        value = fields.get(name)
        if isinstance(value, str) and is_path(value, name):
            raise UsageError(field=name, found=value, expected=f"{expected}, not a path").within(_REQUEST)
    if isinstance(fields.get("fabric"), dict):
        fields["fabric"] = "described"  # for the answer only
    model = fields.get("model")
    inline = model if isinstance(model, dict) else None
    if inline is not None:
        # For the answer only; the model itself is made from its fields.
        name = inline.get("name", "model")
        fields["model"] = name if isinstance(name, str) and not is_path(name) and name.strip() else "model"
    return give(fields.items(), origin=_REQUEST, folder=_NOWHERE), inline


def _slurm(found: object) -> Mapping[str, str]:
    if not isinstance(found, dict):
        raise UsageError(field="slurm", found=found, expected="an object of Slurm's long option names")
    for name, value in found.items():
        if name not in OPTIONS:
            raise UsageError(f"slurm has {shown(name)}, expected only {', '.join(OPTIONS)}")
        if not isinstance(value, str):
            raise UsageError(f"slurm's {name} is {shown(value)}, expected a text")
    return found


def _time_limit_s(found: object) -> float | None:
    if found is None:
        return None
    asked_s = read_time_limit(found.strip()) if isinstance(found, str) else None
    if asked_s is None:
        raise UsageError(field="asked", found=found, expected="a time limit such as 00:30:00 or 1-12:00:00")
    return asked_s
