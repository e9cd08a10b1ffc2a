"""torchtitan's TOML and DeepSpeed's JSON, as people write them."""

from dataclasses import replace
from typing import Any

import pytest

from kernelcast.runtime import KernelcastError, Parallelism, UsageError, load_model
from kernelcast.runtime.frameworks.layout_files import read_layout_text, write_layout
from kernelcast.runtime.frameworks.rows import Job

MODEL = load_model("llama-3-8b")
SHARDED = "[parallelism]\npipeline_parallel_degree = 4\ndata_parallel_shard_degree = 2\n"


def fields(text: str, **given: Any) -> dict[str, Any]:
    devices = given.pop("devices", None)
    return read_layout_text(text, "file").request(MODEL, given, devices).fields


def notes(text: str) -> str:
    return "; ".join(read_layout_text(text, "file").request(MODEL, {}, 64).notes)


def test_torchtitan_where_nothing_is_said() -> None:
    file = read_layout_text("[training]\nsteps = 10\nseq_len = 4096\n[optimizer]\nlr = 3e-4\n", "file")
    assert file.unread == ("training.steps (line 2)", "optimizer.lr (line 5)")
    found = file.request(MODEL, {}, 16)
    # All ranks shard parameters, and a rank's batch of 8 is one micro-batch.
    expected = {"pp": 1, "tp": 1, "dp": 16, "zero": 3, "micro_batch": 8, "micro_batches": 1}
    assert found.fields.items() >= {**expected, "recompute": "selective"}.items()
    assert "selective recomputation keeps other operators' results" in found.notes[0]


def test_torchtitans_list_of_saved_operators() -> None:
    text = '[training]\nseq_len = 4096\n[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "op"\n'
    file = read_layout_text(text, "file")
    found = file.request(MODEL, {}, 16)
    assert file.unread == ()
    assert found.fields.items() >= {"recompute": "selective", "recompute_modules": ("per_op",)}.items()
    assert not [note for note in found.notes if "selective" in note]
    layout = Parallelism(
        pp=1,
        tp=1,
        dp=16,
        micro_batch=1,
        micro_batches=1,
        recompute="selective",
        recompute_modules=("per_op",),
    )
    job = Job(model=MODEL, parallelism=layout, gpus_per_node=8, dtype="bfloat16")
    assert 'selective_ac_option = "op"' in write_layout("torchtitan", job).text


def test_torchtitan_pipelines() -> None:
    found = fields(SHARDED + "[training]\nlocal_batch_size = 16\n")
    assert found.items() >= {"dp": 2, "micro_batch": 1, "micro_batches": 16, "zero": 2}.items()
    # Embedding and output count as a layer each: 34 in 4 chunks.
    assert found["layer_counts"] == (8, 9, 8, 7)
    looped = SHARDED + 'pipeline_parallel_schedule = "interleaved1f1b"\n'
    assert fields(looped)["virtual_stages"] == 2
    assert fields(looped + "pipeline_parallel_layers_per_stage = 2\n" + _weights(0))["virtual_stages"] == 4
    assert "layer_counts" not in fields(SHARDED + _weights(0))  # equal stages, as everywhere


def _weights(weight: int) -> str:
    ends = ("first", "last")
    return "".join(f"pipeline_parallel_{end}_stage_less_layers = {weight}\n" for end in ends)


def test_torchtitans_hybrid_sharding() -> None:
    hybrid = SHARDED + "data_parallel_replicate_degree = 8\n"
    found = fields(hybrid)
    assert (found["dp"], found["zero"], found["shard_group"]) == (16, 2, 2)
    # Without a shard degree it follows from the devices, 4 of a stage each.
    rest = "[parallelism]\ndata_parallel_replicate_degree = 4\n"
    found = fields(rest, devices=32)
    assert (found["dp"], found["zero"], found["shard_group"]) == (32, 3, 8)
    assert "shard_group" not in fields("[parallelism]\ndata_parallel_replicate_degree = 1\n", devices=32)
    with pytest.raises(UsageError, match="dp is 30, expected a multiple of the 4 replicas of sharded ranks"):
        fields(rest, devices=30)
    # Given options override the file.
    assert fields(rest, devices=32, shard_group=4)["shard_group"] == 4
    layout = Parallelism(pp=1, tp=1, dp=16, micro_batch=1, micro_batches=1, zero=3, shard_group=8)
    job = Job(model=MODEL, parallelism=layout, gpus_per_node=8, dtype="bfloat16")
    written = write_layout("torchtitan", job)
    assert "data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 8\n" in written.text


def test_torchtitans_context_and_expert_degrees() -> None:
    model = replace(MODEL, name="mixture", experts=8, experts_per_token=2, expert_size=1024)
    layout = Parallelism(
        pp=1, tp=2, dp=4, cp=2, ep=4, expert_tp=2, micro_batch=1, micro_batches=1, zero=3, sequence_parallel=True,
        context_exchange="all_gather",
    )  # fmt: skip
    job = Job(model=model, parallelism=layout, gpus_per_node=8, dtype="bfloat16")
    written = write_layout("torchtitan", job)
    for line in (
        "data_parallel_shard_degree = 4",
        "context_parallel_degree = 2",
        'context_parallel_rotate_method = "allgather"',
        "expert_parallel_degree = 4",
        "expert_tensor_parallel_degree = 2",
    ):
        assert f"{line}\n" in written.text
    assert written.lost == ("the model (a name and a flavor there)",)
    found = fields(written.text)
    expected = {"dp": 4, "cp": 2, "ep": 4, "expert_tp": 2, "zero": 3, "context_exchange": "all_gather"}
    assert found.items() >= expected.items()
    # Sharded over cp too: sharding groups span both degrees.
    assert "shard_group" not in found
    cut = replace(job, parallelism=replace(layout, ep=1))
    assert "expert_tp 2 with ep 1 (1, or tp with ep above 1)" in write_layout("torchtitan", cut).lost
    ulysses = replace(job, parallelism=replace(layout, context_exchange="all_to_all"))
    assert "context_exchange all_to_all" in write_layout("torchtitan", ulysses).lost


def test_deepspeeds_sequence_parallelism() -> None:
    found = fields('{"train_micro_batch_size_per_gpu": 1, "sequence_parallel_size": 4}', devices=16)
    assert found.items() >= {"cp": 4, "dp": 4, "context_exchange": "all_to_all"}.items()
    layout = Parallelism(pp=1, tp=1, dp=4, cp=4, ep=2, micro_batch=1, micro_batches=1)
    job = Job(
        model=replace(MODEL, experts=8, experts_per_token=2),
        parallelism=layout,
        gpus_per_node=8,
        dtype="float16",
    )
    written = write_layout("deepspeed", job)
    assert '"sequence_parallel_size": 4' in written.text
    assert {"context_exchange ring", "ep 2"} <= set(written.lost)


def test_torchtitans_replicas_and_asynchronous_products() -> None:
    # DDP with buckets of 100 MiB in fp32.
    found = fields("[parallelism]\ndata_parallel_replicate_degree = 8\ndata_parallel_shard_degree = 1\n")
    assert found.items() >= {"zero": 0, "overlap_gradients": True, "overlap_bucket": 26_214_400}.items()
    for text, expected in (("", "none"), ("enable_async_tensor_parallel = true\n", "products")):
        assert fields(SHARDED + text)["tensor_overlap"] == expected


def test_what_is_read_as_something_near_is_said() -> None:
    assert "several passes of the pipeline" in notes(SHARDED + "[training]\nglobal_batch_size = 512\n")
    modules = "--recompute-granularity selective --recompute-modules mla_down layernorm"
    assert "--recompute-modules mla_down is not modelled" in notes(modules)
    assert "are both read as 0.1" in notes("--tensor-model-parallel-size 1 --hidden-dropout 0")


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        (
            '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}',
            {},
            {"dp": 8, "micro_batch": 2, "global_batch": 64, "zero": 0},
        ),
        # Another micro-batch leaves ranks and global batch.
        (
            '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}',
            {"micro_batch": 1},
            {"dp": 8, "micro_batch": 1, "global_batch": 64},
        ),
        (
            '{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,'
            ' "zero_optimization": {"stage": 3}}',
            {"devices": 8},
            {"dp": 8, "micro_batch": 2, "micro_batches": 4, "zero": 3},
        ),
        (
            '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "tensor_parallel": {"autotp_size": 4}}',
            {"devices": 8},
            {"dp": 2, "tp": 4, "global_batch": 64},
        ),
    ],
)
def test_deepspeed(text: str, given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert fields(text, **given).items() >= expected.items()


def test_deepspeeds_states_in_the_hosts_memory() -> None:
    def read(offload: str) -> dict[str, Any]:
        text = (
            '{"train_micro_batch_size_per_gpu": 1, "train_batch_size": 8, "zero_optimization": '
            '{"stage": 2, "offload_optimizer": {' + offload + "}}}"
        )
        return fields(text, dp=8)

    assert read('"device": "cpu"')["offload_optimizer"] == 1
    assert read('"device": "cpu", "ratio": 0.25')["offload_optimizer"] == 0.25
    assert "offload_optimizer" not in read('"device": "none"')
    assert "offload_optimizer" not in read('"device": "nvme"')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "file: not valid JSON"),
        ('{"a":' * 100_000, "file: not valid JSON"),
        ("[parallelism]\nx = ", "file: not valid TOML"),
        (
            "{}",
            "file: holds no setting of a layout, expected settings of Megatron-LM or torchtitan or DeepSpeed",
        ),
        (
            '{"train_batch_size": 9, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}',
            "train_batch_size is 9, expected a multiple of",
        ),
        (
            '{"zero_optimization": {"stage": 5}}',
            "zero_optimization.stage is 5, expected a whole number from 0 to 3",
        ),
        ('{"zero_optimization": {"stage": [1]}}', "zero_optimization.stage is [1], expected a whole number"),
        ("[parallelism]\ntensor_parallel_degree = 2", "file: does not state dp"),
        (
            SHARDED + 'pipeline_parallel_schedule = "InterleavedZeroBubble"',
            "expected 1F1B or GPipe or Interleaved1F1B or ZBVZeroBubble or DualPipeV",
        ),
        (SHARDED + "pipeline_parallel_layers_per_stage = 5", "do not go onto pp 4, expected one per stage"),
        (
            SHARDED + "pipeline_parallel_layers_per_stage = 7",
            "file: line 4: its 5 chunks of 32 layers do not go onto pp 4",
        ),
        (SHARDED + "module_fqns_per_model_part = 3", "expected a list of lists of names"),
        ('[activation_checkpoint]\nmode = "memory_budget"', "expected none or selective or full"),
    ],
)
def test_refusals(text: str, said: str) -> None:
    with pytest.raises(KernelcastError) as error:
        fields(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
