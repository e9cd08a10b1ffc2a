"""Stacks: their files, what is refused, and what they do to predictions."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime import DataError, Estimate, Estimator, ModelConfig, Parallelism, UsageError
from kernelcast.runtime.request.layout import read_layout
from kernelcast.runtime.stack import LeftOut, Stack, find_stack, read_stack, shipped_stacks, stack_toml

ROOT = Path(__file__).resolve().parents[3]
Make = Callable[..., Path]
MODEL = ModelConfig(
    name="small", hidden_size=64, sequence_length=8, attention_heads=8, layers=4, vocabulary_size=100
)
ONE = Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=2)
SHARDED = replace(ONE, dp=4, zero=3)
TEXTS = 'name = "ours"\nsoftware = "some"\nsource = "a test"\nresidual = 0.05\n'
STACK = Stack(name="ours", software="some", source="a test", residual=0.05, attention=1.5, compute=1.25)


def predicted(bundle: Path, stack: Stack | None = None, parallelism: Parallelism = ONE) -> Estimate:
    return Estimator.load(bundle, stack=stack).predict(model=MODEL, parallelism=parallelism)


def test_attention_and_all_else_take_their_factors_and_collectives_none(make_bundle: Make) -> None:
    bundle = make_bundle()
    before, after = predicted(bundle, parallelism=SHARDED), predicted(bundle, STACK, SHARDED)
    ratios = {
        key[0]: after.answers[one][0] / time_us
        for one, (time_us, _, _) in before.answers.items()
        if time_us > 1e-6
        for key in (one[0],)
    }
    assert ratios.pop("flash_attention") == pytest.approx(1.5)
    assert ratios.pop("all_gather") == ratios.pop("reduce_scatter") == 1.0
    assert list(ratios.values()) == pytest.approx([1.25] * len(ratios))
    assert after.provenance.stack is not None
    assert after.provenance.stack.factor_of("flash_attention") == 1.5
    assert before.provenance.stack is None


def test_the_interval_is_what_the_factors_leave_open(make_bundle: Make) -> None:
    bundle = make_bundle()
    unsure = replace(STACK, residual=0.0, log_covariance=((0.0,) * 3, (0.0, 0.01, 0.0), (0.0,) * 3))

    def width(stack: Stack | None) -> float:
        low_s, high_s = predicted(bundle, stack).interval_s or (0.0, 0.0)
        return math.log(high_s / low_s) / 2 / 1.645

    operators = width(replace(STACK, residual=0.0))
    # Without a stack the operators count half, next to the errors of measured steps.
    assert operators < width(STACK)
    assert operators / 2 < width(None)
    assert width(STACK) == pytest.approx(math.hypot(operators, 0.05), rel=0.1)
    # All but attention, a fifth of the step or less, varies by 10 %.
    assert math.hypot(operators, 0.06) < width(unsure) < math.hypot(operators, 0.12)


def test_an_unsure_exposed_share_widens_steps_that_hide_collectives(make_bundle: Make) -> None:
    bundle = make_bundle({"all_gather": 100.0, "reduce_scatter": 100.0})
    unsure = ((0.0,) * 3, (0.0,) * 3, (0.0, 0.0, 0.25))
    known, open_ = (replace(STACK, residual=0.0, log_covariance=one) for one in (((0.0,) * 3,) * 3, unsure))
    for layout, wider in ((SHARDED, True), (ONE, False)):
        alone = predicted(bundle, known, layout).interval_s
        spread = predicted(bundle, open_, layout).interval_s
        assert alone is not None
        assert spread is not None
        assert (spread[1] - spread[0] > 1.01 * (alone[1] - alone[0])) is wider
        assert (spread == alone) is not wider


def test_the_stack_none_changes_nothing(make_bundle: Make) -> None:
    bundle = make_bundle()
    without, none = predicted(bundle), predicted(bundle, find_stack("none"))
    assert (none.step_time_s, none.interval_s) == (without.step_time_s, without.interval_s)


def test_a_stack_is_for_the_simulation(make_bundle: Make) -> None:
    estimator = Estimator.load(make_bundle()).with_stack(STACK)
    with pytest.raises(UsageError, match="timeline is 'closed-form', expected simulate with a stack"):
        estimator.predict(model=MODEL, parallelism=ONE, timeline="closed-form")


def test_a_question_s_own_exposed_share_goes_before_the_stack_s() -> None:
    stack = replace(STACK, exposed_share=0.6)
    assert stack.fill({"tp": 2}) == {"exposed_share": 0.6, "tp": 2}
    assert stack.fill({"exposed_share": 0.1}) == {"exposed_share": 0.1}


def test_a_stack_states_what_its_software_does() -> None:
    stack = replace(STACK, options={"kept_by": "megatron", "loss": "fused"})
    share = {"exposed_share": stack.exposed_share}
    assert stack.fill({}) == {**share, "kept_by": "megatron", "loss": "fused"}
    assert stack.fill({"loss": "plain"}) == {**share, "kept_by": "megatron", "loss": "plain"}
    megatron = find_stack("megatron-core").fill({"micro_batch": 1, "micro_batches": 1})
    layout = read_layout(megatron)
    assert (layout.kept_by, layout.loss, layout.reduce_dtype) == ("megatron", "in_place", "float32")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    covariance = ((0.01, 0.001, 0.0), (0.001, 0.02, 0.0), (0.0, 0.0, 0.0))
    left_out = (LeftOut(name="gpt", steps=3, error_before=0.2, error_left_out=0.1),)
    stack = replace(
        STACK,
        software='a "quoted" name',
        options={"kept_by": "megatron"},
        log_covariance=covariance,
        fixed=("exposed_share",),
        error_before=0.2,
        error_after=0.05,
        left_out=left_out,
    )
    path = tmp_path / "ours.toml"
    path.write_text(stack_toml(stack), encoding="utf-8")
    assert read_stack(path) == stack
    rows = stack.spread
    for i in range(3):
        for j in range(3):
            product = sum(a * b for a, b in zip(rows[i], rows[j], strict=True))
            assert product == pytest.approx(covariance[i][j])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (TEXTS.replace("residual = 0.05", "residual = true"), "residual is true, expected a number"),
        (TEXTS.replace('source = "a test"', ""), "source is missing, expected a text"),
        (TEXTS + "speed = 1\n", "field 'speed' is unknown, known are name, software"),
        (TEXTS + "compute = 20\n", "compute is 20.0, expected 0.1 to 10"),
        (TEXTS + 'compute = "1"\n', "compute is '1', expected a number"),
        (TEXTS + "exposed_share = 1.5\n", "exposed_share is 1.5, expected 0 to 1"),
        (TEXTS + "log_covariance = [[1]]\n", "expected 3 rows of 3 numbers"),
        (TEXTS + "log_covariance = [[0.1,1,0],[1,0.1,0],[0,0,0]]\n", "expected 3 rows of 3 numbers"),
        # A standard deviation of at most a factor of 10: log(10)² is 5.302.
        (TEXTS + "log_covariance = [[5.31,0,0],[0,0.1,0],[0,0,0]]\n", "expected 3 rows of 3 numbers"),
        (TEXTS + 'log_covariance = "x"\n', "log_covariance is 'x', expected a list of lists of numbers"),
        (TEXTS + "compute = nan\n", "compute is nan, expected 0.1 to 10"),
        (TEXTS + 'fixed = ["speed"]\n', "fixed is .*, expected some of attention"),
        (
            TEXTS + 'kernel = "flash"\n',
            "kernel is 'flash', expected flash-1, flash-1-triton, flash-2, ",
        ),
        (TEXTS + "options = 3\n", "options is 3, expected a table"),
        (
            TEXTS + "[options]\ntp = 2\n",
            "options: field 'tp' is unknown, known are layer_split, reduce_dtype",
        ),
        (
            TEXTS + '[options]\nkept_by = "jax"\n',
            "options.kept_by is 'jax', expected torch, torchtitan, megatron or ",
        ),
        (TEXTS + "runs = 3\n", "runs is 3, expected a list of tables"),
        (
            TEXTS + '[[left_out]]\nname = "a"\nsteps = 1.5\n',
            r"left_out\[0\].steps is 1.5, expected a whole number",
        ),
        ("name = [", "not TOML"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(text)
    with pytest.raises(DataError, match=complaint) as raised:
        read_stack(path)
    assert str(raised.value).startswith("stack ")
    assert "ours.toml" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_unknown_name_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"stack 'nemo' is unknown, known are .*none.*; the path of a \.toml file works too"
    ):
        find_stack("nemo")
    with pytest.raises(DataError, match="no such file"):
        find_stack(str(tmp_path / "ours.toml"))


@pytest.mark.parametrize("name", shipped_stacks())
def test_what_ships_was_fitted_to_the_runs_files_as_they_are(name: str) -> None:
    stack = find_stack(name)
    assert stack.name == name
    for one in stack.runs:
        content = (ROOT / "validate" / one.file).read_bytes()
        assert one.digest == hashlib.sha256(content).hexdigest(), "make stacks"
    # Unsteady steps are scored, but not fitted.
    assert sum(one.steps for one in stack.left_out) >= stack.steps


def test_the_largest_covariance(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(TEXTS + "log_covariance = [[5.3,0,0],[0,0.1,0],[0,0,0]]\n")
    assert read_stack(path).log_covariance[0][0] == 5.3
