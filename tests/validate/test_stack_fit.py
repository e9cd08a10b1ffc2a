"""Stacks fitted to made-up steps whose factors are known, and what is left out."""

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import scipy.stats
from click.testing import CliRunner

from kernelcast.cli.stack import fit as fit_command
from kernelcast.runtime import Estimator, UsageError
from kernelcast.runtime.stack import read_stack, stack_named
from kernelcast.validate.runs import RunsFile
from kernelcast.validate.stack_runs import FittedStack, StackScore, _students_factor, fit_stack
from kernelcast.validate.steps import Score, score_steps

Make = Callable[..., Path]
TEXT = Path(__file__).with_name("whole_stacks.txt")
HEAD = """
site = "a site"
hardware = "something"
source = "a test"
stack = "some software"
[defaults]
gpus_per_node = 8
micro_batch = 1
micro_batches = 2
pp = 1
tp = 1
dp = 1
"""
MODEL = """
[models.gpt-{layers}]
hidden_size = 64
sequence_length = 8
attention_heads = 8
layers = {layers}
vocabulary_size = 100
"""


def runs_file(
    bundle: Path, folder: Path, factors: Mapping[int, float], name: str = "runs.toml", layout: str = ""
) -> Path:
    """A step of every number of layers, that takes as many times as long as predicted."""
    path = folder / name

    def text(times_s: Mapping[int, float]) -> str:
        runs = (
            f'[[runs]]\nmodel = "gpt-{layers}"\n{layout}\nmeasured_s = {time_s!r}\n'
            for layers, time_s in times_s.items()
        )
        return HEAD + "".join(MODEL.format(layers=layers) for layers in factors) + "".join(runs)

    path.write_text(text(dict.fromkeys(factors, 1.0)))
    estimator = Estimator.load(bundle)
    predicted_s = [
        estimator.predict(model=run.model, parallelism=run.parallelism, cluster=run.cluster).step_time_s
        for run in RunsFile.read(path).runs
    ]
    path.write_text(
        text({one: factor * s for (one, factor), s in zip(factors.items(), predicted_s, strict=True)})
    )
    return path


@pytest.mark.slow
def test_steps_of_exactly_1_1_times_the_sum_give_1_1(tmp_path: Path, make_bundle: Make) -> None:
    bundle = make_bundle()
    path = runs_file(bundle, tmp_path, dict.fromkeys(range(1, 41, 2), 1.1))
    found = fit_stack([path], name="ours", fixed={"attention": 1.1}, bundle=str(bundle))
    assert found.stack.compute == pytest.approx(1.1, rel=1e-3)
    assert found.stack.attention == 1.1
    assert found.stack.error_before == pytest.approx(1 - 1 / 1.1, abs=1e-6)
    assert found.stack.error_after == pytest.approx(0, abs=1e-3)
    assert found.stack.error_left_out == pytest.approx(0, abs=1e-3)
    assert found.helps
    assert found.stack.kernel is None
    # Far below what is not known before any step: 20 steps agree.
    assert found.stack.residual < 0.02


@pytest.mark.slow
def test_a_factor_of_attention_is_told_from_that_of_all_else(tmp_path: Path, make_bundle: Make) -> None:
    # Attention takes half of the steps of long models, next to nothing of the others', which spend it on the loss.
    slow = make_bundle({"flash_attention": 75.0, "cross_entropy": 2000.0}, name="slow.kcast")
    slower = make_bundle({"flash_attention": 90.0, "cross_entropy": 2000.0}, name="slower.kcast")
    path = runs_file(slower, tmp_path, dict.fromkeys(range(1, 81, 4), 1.0))
    stack = fit_stack([path], name="ours", kernel="flash-2", bundle=str(slow)).stack
    assert stack.kernel == "flash-2"
    assert stack.attention == pytest.approx(1.2, rel=0.02)
    assert stack.compute == pytest.approx(1.0, rel=0.01)


def test_whole_stacks(tmp_path: Path, make_bundle: Make) -> None:
    """Every figure to five digits: `whole_stacks.txt`, which WRITE_WHOLE_STACKS=1 pytest THIS_FILE writes."""
    bundle = make_bundle({"flash_attention": 75.0, "all_gather": 40.0})
    usual = runs_file(bundle, tmp_path, {2: 1.2, 5: 0.97, 12: 1.1}, layout="dp = 4\nzero = 3")
    pairs = runs_file(bundle, tmp_path, {5: 1.3}, "pairs.toml", layout="pp = 2")
    scattered = runs_file(bundle, tmp_path, {3: 1.0}, "scattered.toml")
    scattered.write_text(scattered.read_text() + "mean_s = 1\n")
    lines = []
    for paths, fixed in (
        ([usual, pairs, scattered], {}), ([usual, pairs], {"exposed_share": 0.5}), ([pairs], {"attention": 0.9}),
        ([pairs, runs_file(bundle, tmp_path, {5: 1.1}, "one.toml")], {}), ([scattered], {}),
    ):  # fmt: skip
        found = fit_stack(paths, name="ours", fixed=fixed, bundle=str(bundle))
        lines.append(f"{[path.stem for path in paths]}, fixed {fixed}: left out by {found.left_out_by}")
        lines += [f"  {name} {value}" for name, value in asdict(found.stack).items()]
        lines += [f"  {one.before}\n    {one.left_out}" for one in found.scores]
        lines += [f"  {found.before}\n    {found.after} {found.unpredicted}"]
        lines += [f"  {name} {step.run.label} {step.error}" for name, step in found.left_out_steps]
    printed = (
        re.sub(r"-?\d+\.\d{3,}(e[-+]?\d+)?", lambda number: f"{float(number[0]):.5g}", "\n".join(lines))
        + "\n"
    )
    printed = re.sub(r"\b[0-9a-f]{64}\b|/\S*/", "#", printed)
    if "WRITE_WHOLE_STACKS" in os.environ:
        TEXT.write_text(printed, encoding="utf-8")
    assert printed == TEXT.read_text(encoding="utf-8")


def test_what_no_step_shows_stays_as_it_was_assumed(tmp_path: Path, make_bundle: Make) -> None:
    bundle = make_bundle()
    path = runs_file(bundle, tmp_path, {2: 1.2, 4: 1.2})
    stack = fit_stack([path], name="ours", bundle=str(bundle)).stack
    assert stack.exposed_share == pytest.approx(0.25)
    assert stack.log_covariance[2][2] == pytest.approx(0.25)
    # Attention takes little of these steps: it moves less than all else, and stays less sure.
    assert 1.0 < stack.attention < 1.1 < stack.compute < 1.25
    assert stack.log_covariance[0][0] > 4 * stack.log_covariance[1][1]


def test_all_may_be_set(tmp_path: Path, make_bundle: Make) -> None:
    bundle = make_bundle()
    path = runs_file(bundle, tmp_path, {2: 1.2, 4: 1.2})
    fixed = {"attention": 1.0, "compute": 1.3, "exposed_share": 0.0}
    stack = fit_stack([path], name="ours", fixed=fixed, bundle=str(bundle)).stack
    assert {name: getattr(stack, name) for name in fixed} == fixed
    assert set(stack.fixed) == set(fixed)
    assert not any(value for row in stack.log_covariance for value in row)


def test_contradicting_steps_are_followed_less(tmp_path: Path, make_bundle: Make) -> None:
    bundle, fixed = make_bundle(), {"attention": 1.0, "exposed_share": 0.0}

    def compute(spread: float) -> float:
        factors = {layers: 1.2 * math.exp(spread * (-1) ** layers) for layers in (2, 3, 4, 5)}
        path = runs_file(bundle, tmp_path, factors)
        return fit_stack([path], name="ours", fixed=fixed, bundle=str(bundle)).stack.compute

    assert compute(0.0) > 1.01 * compute(0.1)


def test_a_factor_below_1_may_be_set(tmp_path: Path, make_bundle: Make) -> None:
    bundle = make_bundle()
    path = runs_file(bundle, tmp_path, {2: 0.8, 4: 0.8})
    stack = fit_stack(
        [path], name="ours", fixed={"compute": 0.8, "exposed_share": 0.0}, bundle=str(bundle)
    ).stack
    assert 0.8 <= stack.attention <= 1.0
    assert stack.residual < 0.1


def test_the_residual_is_that_of_steps_left_out_by_hand(tmp_path: Path, make_bundle: Make) -> None:
    bundle = make_bundle()
    path = runs_file(bundle, tmp_path, {2: 1.2, 4: 0.9})
    fixed = {"attention": 1.0, "compute": 1.0, "exposed_share": 0.25}
    stack = fit_stack([path], name="ours", fixed=fixed, bundle=str(bundle)).stack
    # Nothing is fitted: every model is off by its own factor; 5 % count as two models.
    variance = (2 * 0.05**2 + math.log(1.2) ** 2 + math.log(0.9) ** 2) / 4
    # Student's t with 4 degrees of freedom: 90 % are within 2.132 deviations, of a normal distribution within 1.645.
    assert stack.residual == pytest.approx(math.sqrt(variance) * 2.1318 / 1.6449, rel=2e-3)
    free = fit_stack([path], name="ours", bundle=str(bundle))
    # Of two models that contradict each other, each is predicted worse without its own steps than with them.
    assert free.stack.residual is not None
    assert free.stack.residual > (free.after.mean_abs_error or 0)


def test_unsteady_steps_are_scored_and_not_fitted(tmp_path: Path, make_bundle: Make) -> None:
    bundle = make_bundle()
    path = runs_file(bundle, tmp_path, {2: 1.1, 4: 1.1, 8: 1.8})
    with_all = fit_stack([path], name="ours", bundle=str(bundle))
    text = path.read_text()
    measured = re.findall(r"measured_s = (.*)", text)[-1]
    path.write_text(
        text.replace(f"measured_s = {measured}", f"measured_s = {measured}\nmean_s = {float(measured) * 1.6}")
    )
    found = fit_stack([path], name="ours", bundle=str(bundle))
    path.write_text(text.replace(text[text.rindex("[[runs]]") :], ""))
    without = fit_stack([path], name="ours", bundle=str(bundle))
    assert found.stack.compute == pytest.approx(without.stack.compute, rel=1e-6)
    assert found.stack.compute < with_all.stack.compute
    assert (found.stack.steps, found.before.steps) == (2, 3)
    [(label, why)] = found.unpredicted
    assert "gpt-8" in label
    assert "scatter" in why
    assert [name for name, _ in found.left_out_steps] == [path.name] * 3


def test_steps_left_out_have_no_part_in_their_own_prediction(tmp_path: Path, make_bundle: Make) -> None:
    bundle = make_bundle()
    factors = {2: 1.1, 4: 1.2, 8: 1.05, 16: 1.15}
    usual = fit_stack([runs_file(bundle, tmp_path, factors)], name="ours", bundle=str(bundle))
    odd = fit_stack([runs_file(bundle, tmp_path, factors | {4: 2.4})], name="ours", bundle=str(bundle))
    errors = [[one.left_out.mean_error for one in found.scores] for found in (usual, odd)]
    assert [one.left_out.model for one in usual.scores] == ["gpt-2", "gpt-4", "gpt-8", "gpt-16", "all"]
    # The step takes twice as long, its prediction is the same; the others are predicted by it.
    assert 1 + (errors[1][1] or 0) == pytest.approx((1 + (errors[0][1] or 0)) / 2, rel=1e-12)
    assert errors[1][0] != pytest.approx(errors[0][0], rel=1e-3)
    assert usual.stack.compute < odd.stack.compute


def test_options_that_all_steps_state_are_the_stacks(tmp_path: Path, make_bundle: Make) -> None:
    bundle = make_bundle()
    one = runs_file(bundle, tmp_path, {2: 1.1}, layout='kept_by = "megatron"\nloss = "fused"\nzero = 3')
    other = runs_file(bundle, tmp_path, {4: 1.1}, "other.toml", layout='kept_by = "megatron"\nloss = "plain"')
    alone = fit_stack([one], name="ours", bundle=str(bundle)).stack
    both = fit_stack([one, other], name="ours", bundle=str(bundle)).stack
    assert alone.options == {"loss": "fused", "kept_by": "megatron"}
    assert both.options == {"kept_by": "megatron"}


def test_of_one_model_layouts_are_left_out(tmp_path: Path, make_bundle: Make) -> None:
    bundle = make_bundle()
    path = runs_file(bundle, tmp_path, {4: 1.1})
    text = path.read_text()
    alone = fit_stack([path], name="ours", bundle=str(bundle))
    assert (alone.left_out_by, alone.scores, alone.helps) == ("layout", (), None)
    path.write_text(text + text[text.index("[[runs]]") :].replace("\nmeasured_s", "pp = 2\nmeasured_s"))
    found = fit_stack([path], name="ours", bundle=str(bundle))
    assert [one.before.model for one in found.scores] == ["1-1-1", "2-1-1", "all"]


def test_the_command_prints_writes_and_is_understood(tmp_path: Path, make_bundle: Make) -> None:
    bundle = make_bundle()
    path, output = runs_file(bundle, tmp_path, {2: 1.1, 4: 1.2}), tmp_path / "ours.toml"
    words = [str(path), "--bundle", str(bundle), "--fix", "attention=1", "-o", str(output)]
    shown = CliRunner().invoke(fit_command, words, catch_exceptions=False).output
    assert "ours: some software" in shown
    assert "2 steps of runs.toml" in shown
    assert "left out" in shown
    document = json.loads(CliRunner().invoke(fit_command, [*words, "--json"], catch_exceptions=False).output)
    stack = read_stack(output)
    assert stack.compute == document["stack"]["compute"]
    [scored] = score_steps([path], bundle=str(bundle), stack=stack)
    assert scored.is_fitted
    assert [step.error for step in scored.steps] == pytest.approx(
        [stack.compute / 1.1 - 1, stack.compute / 1.2 - 1], abs=0.02
    )


def test_no_prediction_at_all_is_said_with_its_reason(tmp_path: Path, make_bundle: Make) -> None:
    path = runs_file(make_bundle(), tmp_path, {2: 1.1})
    poor = str(make_bundle(without=["gemm"], name="poor.kcast"))
    with pytest.raises(UsageError, match=r"^no step can be predicted, expected one that can: .* for gemm"):
        fit_stack([path], name="ours", bundle=poor)


def test_few_errors_widen_an_interval_as_students_t_does() -> None:
    # The series' next term is 0.26 / degrees⁴.
    for degrees in (4, 6, 10, 50):
        exact = scipy.stats.t.ppf(0.95, degrees) / scipy.stats.norm.ppf(0.95)
        assert _students_factor(degrees) == pytest.approx(exact, abs=0.31 / degrees**4)


@pytest.mark.parametrize(
    ("before", "after", "helps"), [(0.1, 0.05, True), (0.1, 0.1, False), (0.0, 0.1, False), (0.0, 0.0, False)]
)
def test_a_stack_helps_where_all_left_out_steps_are_nearer(before: float, after: float, helps: bool) -> None:
    score = Score.of("all", [])
    scores = [
        StackScore(before=replace(score, mean_abs_error=one), left_out=replace(score, mean_abs_error=other))
        for one, other in ((after, before), (before, after))
    ]
    found = FittedStack(
        stack=stack_named("none"),
        left_out_by="model",
        scores=tuple(scores),
        after=score,
        before=score,
        unpredicted=(),
    )
    assert found.helps is helps


@pytest.mark.parametrize(
    ("fixed", "complaint"),
    [
        ({"speed": 1.0}, "fixed 'speed' is unknown, expected one of attention, compute, exposed_share"),
        ({"compute": 0.09}, "fixed compute is 0.09, expected 0.1 to 10"),
        ({"exposed_share": -0.1}, "fixed exposed_share is -0.1, expected 0 to 1"),
        ({"compute": 11.0}, "fixed compute is 11, expected 0.1 to 10"),
        ({"exposed_share": 1.5}, "fixed exposed_share is 1.5, expected 0 to 1"),
    ],
)
def test_a_wrong_fixed_factor_is_refused(
    tmp_path: Path, make_bundle: Make, fixed: dict[str, float], complaint: str
) -> None:
    bundle = make_bundle()
    path = runs_file(bundle, tmp_path, {2: 1.1})
    with pytest.raises(UsageError, match=complaint):
        fit_stack([path], name="ours", fixed=fixed, bundle=str(bundle))
