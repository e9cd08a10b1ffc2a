"""The whole question: what is predicted, checked and told, and where every slip is blamed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import Cluster, DataError, Estimate, Estimator, ModelConfig, Parallelism, UsageError
from kernelcast.walltime import Allocation, Answer, answer, find_job, format_slurm, format_time

Make = Callable[..., Path]
SIZES = "hidden_size = 8\nsequence_length = 4\nattention_heads = 2\nlayers = 4\nvocabulary_size = 100\n"
JOB = """
bundle = "test.kcast"
model = "tiny.toml"
pp = 2
micro_batch = 1
micro_batches = 3
steps = 1_000_000
"""


class Ask:
    """Asks about a job file in a folder that has a model and a bundle, with fields as on the command line."""

    def __init__(self, folder: Path, make_bundle: Make) -> None:
        self.folder = folder
        make_bundle()
        (folder / "tiny.toml").write_text(SIZES)
        (folder / "kernelcast.toml").write_text(JOB)

    def __call__(self, *, without: str = "", more: str = "", site: str = "", **asked: Any) -> Answer:
        fields = {
            name: asked.pop(name) for name in list(asked) if name not in ("allocation", "asked_s", "load")
        }
        lines = [line for line in JOB.splitlines() if not without or not line.startswith(without)]
        (self.folder / "kernelcast.toml").write_text("\n".join([*lines, more]))
        (self.folder / "site.toml").write_text(site)
        environment = {"KERNELCAST_SITE": str(self.folder / "site.toml")}
        return answer(find_job(self.folder, options=fields, environment=environment), **asked)


@pytest.fixture
def ask(tmp_path: Path, make_bundle: Make) -> Ask:
    return Ask(tmp_path, make_bundle)


def test_samples_and_epochs_are_steps(ask: Ask) -> None:
    # Two samples of two tokens in a sequence of four, three sequences in an update; half of it padding, one sample.
    of: dict[str, Any] = {"without": "steps", "samples": "600", "epochs": "2"}
    assert ask(**of).walltime.steps == 400
    assert ask(**of, sample_tokens="2").walltime.steps == 200
    assert ask(**of, sample_tokens="2", packing_efficiency="0.5").walltime.steps == 400
    with pytest.raises(UsageError, match=r"^--sample-tokens: sample_tokens is 5.0, expected at most .*\(4\)"):
        ask(**of, sample_tokens="5")
    with pytest.raises(UsageError, match=r"^epochs is given without samples"):
        ask(epochs="2")


def test_the_time_of_the_steps_and_the_margin(ask: Ask, tmp_path: Path) -> None:
    found = ask(timeline="closed-form")
    times = found.walltime
    # Stages of two layers: (3 − 1 + 2) · (250 + 505) + 5 µs, as kernelcast predict says.
    assert times.step.expected_s == pytest.approx(0.003025)
    assert times.expected_s == pytest.approx(3_025)
    assert times.low_s < times.expected_s < times.high_s
    assert times.walltime_s == pytest.approx(1.1 * times.high_s)
    estimate = Estimator.load(tmp_path / "test.kcast").predict(
        model=ModelConfig.from_file(tmp_path / "tiny.toml"),
        parallelism=Parallelism(pp=2, tp=1, dp=1, micro_batch=1, micro_batches=3),
        cluster=Cluster(gpus_per_node=2),
    )
    found = ask()
    assert (times.step.low_s, times.step.high_s) != (found.walltime.step.low_s, found.walltime.step.high_s)
    assert found.walltime.step.expected_s == estimate.step_time_s
    assert (found.walltime.step.low_s, found.walltime.step.high_s) == estimate.interval_s
    assert found.warnings == ()


def test_steps_scatter_and_a_framework_brings_its_stack(ask: Ask) -> None:
    shipped = {"without": "bundle", "model": "llama-3-8b", "hardware": "h100-sxm", "pp": 1, "dp": 8}
    found = ask(**shipped, steps=1_000)
    spread, interval_s = found.estimate.spread, found.estimate.interval_s
    assert spread is not None
    assert interval_s is not None
    middle, most = spread.of_steps(1_000, 0.5), spread.of_steps(1_000, 0.99)
    assert 1 < middle < most
    step = found.walltime.step
    assert step.expected_s == pytest.approx(found.estimate.step_time_s * middle)
    assert (step.low_s, step.high_s) == pytest.approx((interval_s[0] * middle, interval_s[1] * most))
    assert ask(**shipped, framework="torchtitan").estimate.step_time_s > found.estimate.step_time_s


def test_tokens_are_rounded_up_to_steps(ask: Ask) -> None:
    # 3 micro-batches of 1 sample of 4 tokens are 12 per step, twice that with dp 2.
    assert ask(tokens=12).walltime.steps == 1
    assert ask(tokens=13).walltime.steps == 2
    assert ask(tokens=13, dp=2).walltime.steps == 1
    assert ask(tokens=13, sequence_length=8).walltime.steps == 1
    assert ask(tokens=13, global_batch=6, dp=2).walltime.steps == 1


def test_what_is_held(ask: Ask) -> None:
    found = ask(dp=4, price=2.5, allocation=Allocation(gpus_per_node=4))
    assert (found.gpus, found.nodes) == (8, 2)
    hours = found.walltime.expected_s / 3_600
    assert found.expected.gpu_hours == pytest.approx(8 * hours)
    assert found.expected.node_hours == pytest.approx(2 * hours)
    assert found.expected.cost == pytest.approx(20 * hours)
    assert found.requested.gpu_hours == pytest.approx(8 * found.walltime.walltime_s / 3_600)
    assert ask().expected.cost is None


def test_what_the_job_gets_decides(ask: Ask) -> None:
    assert ask(gpus_per_node=4).estimate.cluster.gpus_per_node == 4
    assert ask(gpus_per_node=4, allocation=Allocation(gpus_per_node=1)).estimate.cluster.gpus_per_node == 1
    assert ask(gpus_per_node=1, allocation=Allocation(nodes=2)).nodes == 2
    assert ask(gpus_per_node=2, allocation=Allocation(nodes=1)).nodes == 1


def test_nodes_that_the_layout_does_not_fill_are_refused(ask: Ask) -> None:
    for nodes in (1, 5):
        with pytest.raises(
            UsageError, match=rf"needs 2 node\(s\), 1 per node \(given\), expected {nodes} as"
        ):
            ask(gpus_per_node=1, allocation=Allocation(nodes=nodes))


def test_overheads(ask: Ask) -> None:
    plain = ask().walltime
    found = ask(startup="10m", checkpoint_every=1_000, checkpoint_cost="2s", restarts=3).walltime
    # A restart costs a start-up unless something else is said.
    added_s = 600 + 1_000 * 2 + 3 * (600 + 500 * plain.step.expected_s)
    assert found.expected_s == pytest.approx(plain.expected_s + added_s)
    found = ask(startup="10m", checkpoint_every=1_000, restarts=3, restart_cost=0).walltime
    assert found.expected_s == pytest.approx(plain.expected_s + 600 + 3 * 500 * plain.step.expected_s)


def test_longer_than_a_job_may_take(ask: Ask) -> None:
    with pytest.raises(
        UsageError, match=r"^site file .*site.toml: max_time is 01:00:00, expected at least the .* that"
    ):
        ask(site='max_time = "1h"')
    found = ask(site='max_time = "1h"', checkpoint_every=1_000)
    assert found.walltime.walltime_s == 3_600
    assert found.walltime.jobs > 1
    assert f"{found.walltime.jobs} jobs of 01:00:00 that continue from checkpoints" in found.warnings[0]


def test_a_limit_that_is_too_short(ask: Ask) -> None:
    enough = ask().walltime.low_s
    assert ask(asked_s=enough + 1).warnings == ()
    (warning,) = ask(asked_s=enough - 1).warnings
    assert "is shorter than the predicted minimum of " in warning
    assert warning.endswith(f"; request {format_time(ask().walltime.walltime_s)}")


def test_extrapolation_is_told(tmp_path: Path, make_bundle: Make) -> None:
    found = Ask(tmp_path, lambda: make_bundle(largest=1))()
    assert found.warnings[-1].startswith("the prediction is less certain, extrapolated: gemm up to ")
    assert found.warnings[-1].endswith(" % of the step)")


def test_a_layout_that_does_not_fit_is_told(ask: Ask) -> None:
    class SmallGpus(Estimator):
        def predict(self, **question: Any) -> Estimate:
            return super().predict(**question, gpu_memory_bytes=3 << 30)

    found = ask(load=SmallGpus.load, model="llama-2-7b")
    needed_gib, usable_gib = (
        f"{size or 0:.1f}"
        for size in (
            found.estimate.memory.largest_bytes / 2**30,
            (found.estimate.memory.usable_bytes or 0) / 2**30,
        )
    )
    assert f"the fullest GPU would need {needed_gib} GiB and has {usable_gib} GiB" in found.warnings


@pytest.mark.parametrize("field", ["bundle", "model", "micro_batch", "steps"])
def test_what_is_missing_says_where_it_may_stand(ask: Ask, field: str) -> None:
    with pytest.raises(UsageError) as raised:
        ask(without=f"{field} =")
    either = {
        "steps": "neither steps, tokens nor samples is given",
        "bundle": "neither bundle nor hardware is given",
    }
    what = either.get(field, f"{field} is not given")
    option = "--" + field.replace("_", "-")
    places = f"{field}=… in a #KERNELCAST line of the batch script, or {field} in kernelcast.toml or "
    assert str(raised.value).startswith(f"{what}, expected {option}, {places}")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tp": 3}, "--tp: tp is 3, expected a divisor of attention_heads"),
        (
            {"schedule": "interleaved"},
            "job file {folder}/kernelcast.toml: micro_batches is 3, expected a multiple of pp",
        ),
        ({"layer_counts": "1,2"}, "--layer-counts: layer_counts add up to 3, expected 4"),
        ({"layer_counts": "1,2,1"}, "--layer-counts: layer_counts is (1, 2, 1), expected "),
        ({"virtual_stages": 2}, "--virtual-stages: virtual_stages is 2, expected 1 with schedule 1f1b"),
        (
            {"global_batch": 5, "dp": 2},
            "--global-batch: global_batch is 5, expected a multiple of micro_batch",
        ),
        ({"restarts": 1}, "--restarts: restarts is 1, expected checkpoint_every"),
        ({"checkpoint_cost": "5s"}, "--checkpoint-cost: checkpoint_cost is 5.0, expected checkpoint_every"),
        (
            {"model": "nothing"},
            "--model: model 'nothing' is unknown, known are ",
        ),
        ({"pp": 9}, "--pp: pp is 9, expected from 1 to "),
        (
            {"allocation": Allocation(gpus=3, origin="gpus 3")},
            "layout pp 2 × tp 1 × dp 1 has 2 GPU(s), expected 3",
        ),
    ],
)
def test_slips_are_blamed_on_the_place(
    ask: Ask, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        ask(**fields)
    assert str(raised.value).startswith(message.format(folder=tmp_path))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bundle": "/none.kcast"}, "bundle /none.kcast: no such file"),
        ({"model": "/none.toml"}, "model file /none.toml: no such file"),
    ],
)
def test_files_that_are_missing(ask: Ask, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"^{message}$"):
        ask(**fields)


def test_models_by_name(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "ours.toml").write_text(SIZES)
    site = 'models = "models"'
    assert ask(model="ours", site=site).estimate.model.hidden_size == 8
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ask(model="ours", site='models = "~/models"').estimate.model.hidden_size == 8
    with pytest.raises(UsageError, match="model 'ours' is unknown"):
        ask(model="ours", site='models = "~no-such-user/models"')
    # A name is never a file of the folder that one happens to be in.
    monkeypatch.chdir(tmp_path / "models")
    (tmp_path / "models" / "mine").write_text(SIZES)
    with pytest.raises(
        UsageError,
        match=r"^--model: model 'mine' is unknown, known are .*, starcoder2-15b, ours; the path of",
    ):
        ask(model="mine", site=site)
    (tmp_path / "models" / "ours.json").write_text("{}")
    assert ask(model="ours", site=site).estimate.model.hidden_size == 8
    # The site's own sizes of a built-in model go before.
    (tmp_path / "models" / "llama-2-7b.toml").write_text(SIZES)
    assert ask(model="llama-2-7b", site=site).estimate.model.hidden_size == 8
    assert ask(model="llama-2-7b").estimate.model.hidden_size == 4_096


def test_at_most_ten_years(ask: Ask) -> None:
    step_s = ask().estimate.step_time_s
    assert ask(steps=int(3_600 * 86_400 / step_s)).walltime.steps > 0
    with pytest.raises(UsageError, match=r"^the job would take .* on 2 GPUs\), expected at most 3,653 days$"):
        ask(steps=int(3_700 * 86_400 / step_s))


def test_json(ask: Ask) -> None:
    found = ask(price=2, startup="1m", asked_s=60.0)
    values = json.loads(json.dumps(found.to_dict()))
    assert values["format"] == "kernelcast.walltime/2"
    assert values["slurm"] == format_slurm(values["walltime_s"])
    assert values["interval_s"] == [found.walltime.low_s, found.walltime.high_s]
    assert values["expected"]["cost"] == pytest.approx(2 * values["expected"]["gpu_hours"])
    assert values["settings"]["startup"] == {"value": 60.0, "origin": "--startup"}
    assert values["warnings"] == list(found.warnings)
    assert len(values["warnings"]) == 1


def test_a_server_keeps_its_predictor(ask: Ask, tmp_path: Path) -> None:
    asked: list[str] = []
    kept = Estimator.load(tmp_path / "test.kcast")

    def load(path: str) -> Estimator:
        asked.append(path)
        return kept

    first, second = ask(load=load), ask(load=load)
    assert isinstance(first.estimate, Estimate)
    assert first.to_dict() == second.to_dict()
    assert asked == [str(tmp_path / "test.kcast")] * 2


LAUNCHED = """#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=4

MODEL="--num-layers 4 --hidden-size 8 --num-attention-heads 2 --seq-length 4 --vocab-size 100
    --max-position-embeddings 4"
srun python pretrain_gpt.py $MODEL --pipeline-model-parallel-size 2 \\
    --micro-batch-size 1 --global-batch-size 12 --train-iters 500 --lr 1e-4
"""


def test_a_script_as_it_is(tmp_path: Path, make_bundle: Make) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text(LAUNCHED)
    options = {"bundle": str(make_bundle())}
    found = answer(find_job(script, options=options, environment={"KERNELCAST_SITE": ""}))
    assert (found.gpus, found.walltime.steps) == (8, 500)
    assert found.estimate.model.layers == 4
    assert found.settings.given["framework"].value == "megatron-lm"
    origins = {name: given.origin for name, given in found.settings.given.items()}
    assert origins["pp"] == f"{script} line 6"
    assert origins["steps"] == f"{script} line 7"
    assert origins["dp"] == f"{script} line 2"
    assert f"{script}: not read (1): --lr (line 7)" in found.warnings
    # What the script says of itself goes before its flags.
    script.write_text(LAUNCHED.replace("\n\n", "\n#KERNELCAST pp=4 steps=7\n\n", 1))
    own = answer(find_job(script, options=options, environment={"KERNELCAST_SITE": ""}))
    assert (own.estimate.parallelism.pp, own.estimate.parallelism.dp, own.walltime.steps) == (4, 2, 7)


def test_samples_of_a_script(tmp_path: Path, make_bundle: Make) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text(LAUNCHED.replace("--train-iters 500", "--train-samples 600"))
    found = answer(
        find_job(script, options={"bundle": str(make_bundle())}, environment={"KERNELCAST_SITE": ""})
    )
    assert found.walltime.steps == 600 // 12
    assert found.settings.given["samples"].origin == f"{script} line 7"
    assert f"{script}: not read (1): --lr (line 7)" in found.warnings


def test_the_model_of_a_script_is_its_own_unless_a_field_names_one(tmp_path: Path, make_bundle: Make) -> None:
    (model_file := tmp_path / "ours.toml").write_text(SIZES)
    script = tmp_path / "train.sbatch"
    script.write_text(
        "#!/bin/bash\n#SBATCH --nodes=1 --gpus-per-node=8\naccelerate launch --num_processes 8 train.py"
        " --model_name_or_path Qwen/Qwen3-0.6B --per_device_train_batch_size 1 --max_seq_length 4 --max_steps 9\n"
    )
    for given, name in (({}, "qwen3-0.6b"), ({"model": str(model_file)}, "ours")):
        options = {"bundle": str(make_bundle()), **given}
        found = answer(find_job(script, options=options, environment={"KERNELCAST_SITE": ""}))
        assert found.estimate.model.name == name
        if not given:
            assert found.settings.given["model"].origin == f"{script} line 3"


def test_a_script_that_cannot_be_read_is_refused_with_its_line(tmp_path: Path, make_bundle: Make) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text(LAUNCHED.replace("--micro-batch-size 1", "--micro-batch-size $MBS"))
    with pytest.raises(
        UsageError, match=r"train.sbatch: line 7: --micro-batch-size is '\$MBS', expected a whole"
    ):
        answer(find_job(script, options={"bundle": str(make_bundle())}, environment={"KERNELCAST_SITE": ""}))
    script.write_text("#!/bin/bash\nsrun python train.py\n")
    with pytest.raises(UsageError, match=r"^model is not given"):
        answer(find_job(script, options={"bundle": str(make_bundle())}, environment={"KERNELCAST_SITE": ""}))
