"""Predictions scored against measured steps: by hand-made runs, and by the runs files that ship."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelcast.runtime import DataError, Estimator, UsageError
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.validate.effects import Effect
from kernelcast.validate.runs import RunsFile
from kernelcast.validate.steps import SHIPPED, TODAY, ScoredFile, score_steps
from tests.cli.printed import ended

pytestmark = pytest.mark.usefixtures("wide")

ROOT = Path(__file__).resolve().parents[2]
RUNS = """
site = "Example"
hardware = "two devices"
source = "made up"
[models.small]
hidden_size = 64
sequence_length = 32
attention_heads = 4
layers = 4
vocabulary_size = 1000
[models.other]
hidden_size = 64
sequence_length = 32
attention_heads = 4
layers = 2
vocabulary_size = 1000
[defaults]
model = "small"
pp = 1
tp = 1
dp = 1
micro_batch = 1
micro_batches = 2
gpus_per_node = 8
"""
RUN = "[[runs]]\nmeasured_s = 1\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "site.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def shipped() -> dict[str, ScoredFile]:
    """Scores of the runs files that ship, by name."""
    return {one.path.stem: one for one in score_steps()}


def test_figures_are_those_of_the_steps(tmp_path: Path, make_bundle: Callable[..., Path]) -> None:
    bundle = make_bundle()
    file = RunsFile.read(write(tmp_path, RUNS + RUN + RUN + 'model = "other"\n'))
    estimator = Estimator.load(bundle)
    first, other = (estimator.predict(model=r.model, parallelism=r.parallelism) for r in file.runs)
    assert first.memory.margin_bytes is None
    half, twice = first.step_time_s / 0.5, first.step_time_s / 2
    gib = first.memory.largest_bytes / 2**30
    text = RUNS + (
        f"[[runs]]\nmeasured_s = {half}\nmemory_gib = {2 * gib}\npublished_error = -0.1\n"
        f"[[runs]]\nmeasured_s = {twice}\npublished_error = 0.3\n"
        f'[[runs]]\nmodel = "other"\nmeasured_s = {other.step_time_s}\n'
    )
    [found] = score_steps([write(tmp_path, text)], bundle=str(bundle))
    small, exact, every = found.scores
    assert [score.model for score in found.scores] == ["small", "other", "all"]
    assert [step.error for step in found.steps] == pytest.approx([-0.5, 1.0, 0.0])
    assert (small.mean_error, small.mean_abs_error) == pytest.approx((0.25, 0.75))
    assert (exact.mean_abs_error, exact.inside, exact.mean_memory_error) == (pytest.approx(0), 1, None)
    assert (every.steps, every.predicted) == (3, 3)
    document = found.to_dict()
    assert (document["runs_file"], document["is_shipped"], document["site"]) == (
        "site.toml",
        False,
        "Example",
    )
    assert (document["applied_stack"], document["is_fitted"], document["bundle_digest"]) == (
        None,
        False,
        found.bundle_digest,
    )
    assert small.mean_memory_error == pytest.approx(-0.5)
    assert small.mean_abs_published_error == pytest.approx(0.2)
    assert first.interval_s is not None
    low_s, high_s = first.interval_s
    assert small.median_half_width == pytest.approx((high_s - low_s) / 2 / first.step_time_s)
    assert small.inside == sum(low_s <= measured_s <= high_s for measured_s in (half, twice))


def test_a_step_that_cannot_be_predicted_says_why(
    tmp_path: Path, make_bundle: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path, bundle = write(tmp_path, RUNS + RUN + RUN + "dp = 2\n"), str(make_bundle(without=["all_reduce"]))
    [found] = score_steps([path], bundle=bundle)
    [score] = found.scores
    alone, together = found.steps
    assert (score.steps, score.predicted, together.estimate, together.error) == (2, 1, None, None)
    assert alone.reason == ""
    assert "all_reduce" in together.reason
    assert ended("validate", "steps", str(path), "--bundle", bundle, "--each") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"Example: two devices; predicted as {found.asked}"
    reasons = shown.index(f"not predicted: 1 × small (1-1-2): {together.reason}")
    assert shown[reasons + 1 : reasons + 3] == ["measured: made up", ""]
    licensed = write(tmp_path, RUNS.replace('"made up"', '"made up"\nlicence = "CC0"') + RUN)
    assert ended("validate", "steps", str(licensed), "--bundle", bundle, "--fabric", "h100-400g") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].endswith(" over h100-400g")
    assert shown[-1] == "measured: made up; CC0"


def test_no_prediction_at_all_is_a_failure(tmp_path: Path, make_bundle: Callable[..., Path]) -> None:
    bundle = str(make_bundle(without=["gemm"]))
    assert ended("validate", "steps", str(write(tmp_path, RUNS + RUN)), "--bundle", bundle) == 1


def test_hardware_and_fabric_of_a_file_give_way_to_what_is_asked(tmp_path: Path) -> None:
    text = 'device = "a100-sxm"\nfabric = "a100-1600g"\n' + RUNS + RUN + "dp = 16\n"
    path = write(tmp_path, text)
    [named] = score_steps([path])
    [asked] = score_steps([path], bundle="hardware:h100-sxm", fabric="h100-400g")
    assert (named.asked, named.fabric) == ("a100-sxm", "a100-1600g")
    assert (asked.asked, asked.fabric) == ("h100-sxm", "h100-400g")
    assert named.steps[0].error != asked.steps[0].error
    [other] = score_steps([path], fabric="a100-400g")
    assert named.steps[0].estimate is not None
    assert other.steps[0].estimate is not None
    assert named.steps[0].estimate.step_time_s < other.steps[0].estimate.step_time_s


@pytest.mark.parametrize(
    ("head", "error", "complaint"),
    [
        ("", UsageError, "site.toml: device is missing, expected a device's name, or --hardware or --bundle"),
        ('device = "abacus"\n', UsageError, "site.toml: hardware 'abacus' is unknown, known are "),
        ('device = "gh200"\nfabric = "string"\n', UsageError, "site.toml: fabric"),
        ('device = "gh200"\nfabric = "none.kcast"\n', DataError, "site.toml: .*none.kcast"),
        ("device = 1\n", UsageError, "site.toml: device is 1, expected a text"),
    ],
)
def test_a_file_that_names_nothing_known_is_refused(
    tmp_path: Path, head: str, error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        score_steps([write(tmp_path, head + RUNS + RUN)])


def test_every_runs_file_in_the_folder_ships(shipped: dict[str, ScoredFile]) -> None:
    inside = {path.stem for path in (ROOT / "validate").glob("*.toml")} - {"here", "modern"}
    assert set(SHIPPED) == set(shipped)
    assert set(SHIPPED) <= inside <= {*SHIPPED, *TODAY}
    for one in shipped.values():
        assert one.asked == one.file.device
        assert one.fabric == one.file.fabric
        assert one.to_dict()["is_shipped"]
        assert one.file.source
        assert all(step.estimate is not None for step in one.steps)


@pytest.mark.parametrize(
    ("name", "steps", "most"),
    [
        ("perlmutter", 5, 0.60),  # its fabric's description is far above what its jobs got
        ("vista", 5, 0.30),
        ("llm-foundry-a100-40gb", 78, 0.09),
        ("llm-foundry-a100-80gb", 20, 0.07),
        ("simumax-b200", 12, 0.32),
    ],
)
def test_errors_are_no_larger_than_recorded(
    shipped: dict[str, ScoredFile], name: str, steps: int, most: float
) -> None:
    score = shipped[name].scores[-1]
    assert score.steps == score.predicted == steps
    assert score.mean_abs_error is not None
    assert score.mean_abs_error <= most


def test_options_of_the_software_are_set_for_every_step(
    tmp_path: Path, make_bundle: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path, bundle = write(tmp_path, RUNS + RUN + "dp = 4\nzero = 3\n"), str(make_bundle())
    [stated], [changed] = (
        score_steps([path], bundle=bundle, changed=changed) for changed in ({}, {"exposed_share": 1.0})
    )
    assert stated.steps[0].error is not None
    assert changed.steps[0].error is not None
    assert stated.steps[0].error < changed.steps[0].error
    asked = ["validate", "steps", str(path), "--bundle", bundle, "--json"]
    assert ended(*asked, "--with", "exposed-share=1", "--with", "shard_group=0") == 0
    [file] = json.loads(capsys.readouterr().out)["files"]
    assert file["steps"][0]["error"] == changed.steps[0].error
    # An option that a layout cannot take is the step's reason, not the command's end.
    [refused] = score_steps([path], bundle=bundle, changed={"shard_group": 3})
    assert refused.steps[0].reason.startswith("shard_group is 3, expected a divisor of the 4 replicas")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("zero=3", "field '--with zero' is unknown, known are layer_split"),
        ("tensor_overlp=none", "(did you mean tensor_overlap?)"),
        ("exposed_share", "--with is 'exposed_share', expected FIELD=VALUE"),
        ("exposed_share=much", "--with exposed_share is 'much', expected a number from 0 to 1"),
    ],
)
def test_an_option_that_is_none_is_refused(
    text: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("validate", "steps", "--with", text) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--bundle", "h100-sxm"], ["--hardware", "h100-sxm"], ["--fabric", "x"], ["--stack", "torchtitan"],
        ["--timeline", "simulate"], ["--picture", "x.svg"], ["--with", "dropout=0.1"], ["--each"],
    ],
)  # fmt: skip
def test_effects_are_of_all_and_of_files_as_they_are(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("validate", "steps", "--effects", *words) == 2
    assert "--effects is given with another option" in capsys.readouterr().err


def test_effects_of_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = 'device = "a100-sxm"\nfabric = "a100-1600g"\n'
    path = write(
        tmp_path,
        head + RUNS + RUN + "dp = 16\nzero = 3\n" + RUN + 'dp = 4\nmodel = "other"\nrecompute = "full"\n',
    )
    assert ended("validate", "steps", str(path), "--effects", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == "kernelcast.effects/1"
    read = [(one["field"], one["value"], Effect(**one["effects"][0])) for one in document["options"]]
    (field, _, stated), *options = read
    assert (field, stated.steps, stated.changed) == (None, 2, 0)
    found = {(name, value): effect for name, value, effect in options}
    # ZeRO-3 overlaps collectives with computing, ZeRO-1 gradients that can be scattered; 8 replicas do not divide 4.
    assert found["exposed_share", 1].changed == found["shard_group", 8].changed == 1
    assert found["gradient_collective", "reduce_scatter"].changed == 1
    # Of the second step one of two layers runs again.
    assert found["recompute_layers", 1].changed == 1
    # Numbers that no software sets, such as the rank of adapters, are as stated.
    numbers = {(name, value) for name, value in found if type(value) in (int, float)}
    assert numbers == {
        ("dropout", 0.1), ("host_launch_us", 10), ("vocabulary_multiple", 1), ("recompute_layers", 1),
        ("shard_group", 8), *(("exposed_share", share) for share in (0, 0.5, 1)),
    }  # fmt: skip
    # What a file states, and what changes nothing, has no row.
    assert ("exposed_share", 0.25) not in found
    assert not {name for name, _ in found} & {"tensor_overlap", "loss", "layer_split"}
    [scored] = score_steps([path], changed={"exposed_share": 1.0})
    errors = [step.error for step in scored.steps]
    assert found["exposed_share", 1].mean_error == pytest.approx(sum(filter(None, errors)) / 2)
    assert ended("validate", "steps", str(path), "--effects") == 0
    assert "exposed_share=1" in capsys.readouterr().out


def test_memory_of_every_stage_is_no_further_off_than_recorded(shipped: dict[str, ScoredFile]) -> None:
    score = shipped["simumax-b200"].scores[-1]
    assert score.mean_abs_memory_error is not None
    assert score.largest_memory_error is not None
    assert score.mean_abs_memory_error <= 0.002
    assert abs(score.largest_memory_error) <= 0.002
    errors = [step.memory_errors for step in shipped["simumax-b200"].steps]
    assert [len(one) for one in errors] == [2, 1, 1, 1] * 3  # two stages, then one


def test_every_step_that_ran_is_predicted_to_fit(shipped: dict[str, ScoredFile]) -> None:
    for name, found in shipped.items():
        score = found.scores[-1]
        assert score.too_large == 0, name
        assert score.least_margin_gib is not None
        assert score.least_margin_gib == min(step.margin_gib or 0.0 for step in found.steps)
    tightest = shipped["llm-foundry-a100-80gb"].scores[-1].least_margin_gib
    # mpt-30b with 8192 tokens; 1.5 of the 80 GiB are reserved, and 0.4 are NCCL's for one group.
    assert tightest == pytest.approx(8.78, abs=0.05)


def test_memory_by_stage(tmp_path: Path, make_bundle: Callable[..., Path]) -> None:
    gpu = ComputeFingerprint(kind="cuda", device_name="Example GPU", memory_gib=40)
    bundle = str(make_bundle(compute=[gpu]))
    text = RUNS.replace("pp = 1", "pp = 2") + RUN
    [asked] = RunsFile.read(write(tmp_path, text)).runs
    memory = Estimator.load(bundle).predict(model=asked.model, parallelism=asked.parallelism).memory
    first, last = (stage.total_bytes / 2**30 for stage in memory.stages)
    [found] = score_steps([write(tmp_path, text + f"memory_gib = [{2 * first}, {first}]\n")], bundle=bundle)
    [step], [score] = found.steps, found.scores
    assert step.memory_errors == pytest.approx((-0.5, last / first - 1))
    assert score.largest_memory_error == pytest.approx(-0.5)
    assert score.mean_memory_error == pytest.approx((last / first - 1.5) / 2)
    margin_gib = 40 - 1.5 - sum(memory.communicators.values()) / 2**30 - max(first, last)
    assert (step.margin_gib, score.least_margin_gib) == (pytest.approx(margin_gib),) * 2
    values = step.to_dict()
    assert values["measured_memory_gib"] == 2 * first
    assert values["predicted_memory_gib"] == max(first, last)
    assert (values["memory_errors"], values["margin_gib"]) == (list(step.memory_errors), step.margin_gib)
    [found] = score_steps([write(tmp_path, text + f"memory_gib = {max(first, last)}\n")], bundle=bundle)
    assert found.steps[0].memory_errors == (0.0,)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("[1, 2]", "memory_gib is [1, 2], expected a number, or one per stage, 1 in all"),
        ("[0]", "memory_gib is (0.0,), expected GiB, numbers above 0"),
        ('"1 GiB"', "memory_gib[0] is '1 GiB', expected a number"),
    ],
)
def test_wrong_memory(tmp_path: Path, given: str, message: str) -> None:
    path = write(tmp_path, f"{RUNS}{RUN}memory_gib = {given}\n")
    with pytest.raises(UsageError, match=re.escape(message)):
        RunsFile.read(path)
