"""The table of errors of sums, of steps whose errors are known by hand."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from kernelcast.runtime import Estimator
from kernelcast.runtime.answers.uncertainty import StepErrors
from kernelcast.runtime.stack import stack_named
from kernelcast.validate.runs import RunsFile
from kernelcast.validate.step_errors import _carried, _machines, _sources, step_errors_json
from kernelcast.validate.steps import asked_files
from tests.validate.test_steps import RUN, RUNS

HEAD = 'device = "a100-sxm"\n'
HYBRID = """[models.hybrid]
hidden_size = 64
sequence_length = 32
attention_heads = 4
layers = 2
vocabulary_size = 1000
layer_pattern = "M*"
recurrent_state_size = 16
recurrent_heads = 4
recurrent_head_size = 32
recurrent_groups = 1
"""


def test_a_source_is_a_machine_and_a_model_without_steps_that_say_nothing_of_sums(
    tmp_path: Path, make_bundle: Callable[..., Path]
) -> None:
    bundle = str(make_bundle())
    path = tmp_path / "site.toml"
    path.write_text(RUNS + RUN)
    [run] = RunsFile.read(path).runs
    step_s = Estimator.load(bundle).predict(model=run.model, parallelism=run.parallelism).step_time_s

    def row(factor: float, *more: str) -> str:
        return "\n".join(("[[runs]]", f"measured_s = {factor * step_s!r}", *more, ""))

    rows = row(1.2) + row(1.1, f"mean_s = {1.6 * step_s!r}") + row(1.5, f"mean_s = {3 * step_s!r}")
    rows += row(9.0, 'flag = "odd"') + row(1.0, 'model = "other"') + row(2.0, 'model = "hybrid"')
    path.write_text(HEAD + RUNS.replace("[defaults]", f"{HYBRID}[defaults]") + rows)
    files = asked_files([path], bundle=bundle)
    small, other = _sources(files, "simulate")
    assert small.log_errors == pytest.approx((math.log(1.1), math.log(1.2)), abs=1e-4)
    assert (small.model, small.steps, small.unsteady, small.kind) == ("small", 2, 1, "dense")
    assert (small.name, small.publisher, small.devices, small.timeline) == (
        "site", "made up", "", "simulate"
    )  # fmt: skip
    assert (other.model, other.steps, other.unsteady) == ("other", 1, 0)
    [closed, _] = _sources(files, "closed-form")
    assert closed.timeline == "closed-form"
    errors = StepErrors(sources=(small, other))
    assert json.loads(step_errors_json(errors)) == json.loads(json.dumps(asdict(errors)))
    assert step_errors_json(errors).count("\n{") == 2  # a line for each source


def test_files_of_one_publisher_and_device_are_one_machine(tmp_path: Path) -> None:
    asked = []
    for name, device in (("a", "a100-sxm"), ("b", "a100-sxm"), ("c", "h100-sxm")):
        path = tmp_path / f"{name}.toml"
        path.write_text(f'device = "{device}"\n' + RUNS + RUN)
        asked += asked_files([path])
    machines = _machines(asked)
    assert [[one.path.stem for one in files] for files in machines] == [["a", "b"], ["c"]]
    found = {(one.stack, one.name): one for one in _carried(machines)}
    # The stack was fitted to steps of A100, which are its own; it is carried to H100.
    assert {name for stack, name in found if stack == "fsdp-composer"} == {"c"}
    carried = found["fsdp-composer", "c"]
    [step] = machines[1][0].score(stack_named("fsdp-composer"))
    assert step.estimate is not None
    assert (carried.steps, carried.log_error) == (1, round(math.log(1 / step.estimate.step_time_s), 4))
    assert {one.steps for (_, name), one in found.items() if name == "a"} == {2}
