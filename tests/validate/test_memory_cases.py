"""Measured steps as questions: a small table of each source, and every field that its rows ask for."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelcast.runtime import Parallelism, load_model
from kernelcast.validate.memory_cases import AskedCase, AskedCases, asked_cases

GOLDEN = {
    "case": "small", "device": "a100", "gpus": "", "max_allocated_bytes": "1000", "env": "{}",
    "model_args": '{"--num-layers": 4, "--hidden-size": 64, "--num-attention-heads": 4, "--seq-length": 32, '
    '"--max-position-embeddings": 32, "--micro-batch-size": 1, "--global-batch-size": 32, "--bf16": true, '
    '"--tensor-model-parallel-size": 2, "--vocab-file": "bpe/vocab.json"MORE}',
}  # fmt: skip
LORA = {
    "group": "ours", "benchmark": "llama2_70b_lora", "device": "H100", "seq": "8192", "tp": "4", "pp": "1", "cp": "1",
    "vp": "1", "mbs": "1", "dp": "2", "micro_batches": "4", "sp": "1", "precision": "fp8-delayed", "recompute": "none",
    "fp8_param_gather": "0", "tp_overlap": "0", "max_memory": "70.5",
}  # fmt: skip
PRETRAINED = LORA | {
    "benchmark": "llama31_8b", "device": "B200", "tp": "1", "pp": "4", "vp": "2", "precision": "bf16", "max_memory": "",
    "tp_overlap": "1", "recompute": "full",
}  # fmt: skip
TITAN = {
    "source": "of_202412", "model": "llama-3.1-8b", "gpus": "8", "fsdp": "4", "tp": "2", "pp": "1", "cp": "1",
    "local_batch": "2", "sequence": "4096", "precision": "bf16", "compile": "yes",
    "activation_checkpointing": "selective", "device": "H100 96 GB", "memory_gib": "82.5",
}  # fmt: skip
MLPERF_FIELDS = {
    "micro_batch": 1, "kept_by": "megatron", "zero": 1, "gradient_collective": "reduce_scatter", "micro_batches": 4,
}  # fmt: skip


def asked(
    folder: Path,
    golden: Sequence[Mapping[str, str]] = (),
    mlperf: Sequence[Mapping[str, str]] = (),
    titan: Sequence[Mapping[str, str]] = (),
) -> AskedCases:
    """The cases of tables with these rows; SimuMax's, which ship, are left out."""
    for name, columns, rows in (
        ("memory/megatron-lm-golden.csv", GOLDEN, golden),
        ("mlperf/truth.csv", LORA, mlperf),
        ("memory/torchtitan.csv", TITAN, titan),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, columns)
            table.writeheader()
            table.writerows(rows)
    found = asked_cases(folder)
    found.cases = [one for one in found.cases if one.source != "SimuMax"]
    return found


def test_rows_of_mlperf(tmp_path: Path) -> None:
    nvfp4 = PRETRAINED | {
        "pp": "1",
        "vp": "1",
        "cp": "2",
        "precision": "nvfp4",
        "fp8_param_gather": "1",
        "recompute": "selective",
        "sp": "0",
        "device": "GB200",
    }
    found = asked(tmp_path, mlperf=[LORA | {"tp": ""}, LORA | {"tp": "3"}, LORA, PRETRAINED, nvfp4])
    lora, pretrained, other = found.cases
    assert lora == AskedCase(
        source="MLPerf llama2_70b_lora",
        name="ours",
        device="h100-sxm",
        model=load_model("llama-2-70b").with_sequence_length(8192),
        dtype="bfloat16",
        measured_bytes=70.5 * 2**30,
        logged_stage="first",
        parallelism=Parallelism(
            tp=4,
            pp=1,
            dp=2,
            sequence_parallel=True,
            fp8_recipe="tensorwise",
            tensor_overlap="weight_gradients",
            lora_rank=16,
            lora_linears=("attention",),
            lora_dropout=0.1,
            fp8_weights=True,
            loss="plain",
            fp8_activation_store=True,
            **MLPERF_FIELDS,
        ),
    )
    assert pretrained == AskedCase(
        source="MLPerf llama31_8b",
        name="ours",
        device="b200-sxm",
        model=load_model("llama-3.1-8b").with_sequence_length(8192),
        dtype="bfloat16",
        measured_bytes=None,
        logged_stage="first",
        parallelism=Parallelism(
            tp=1,
            pp=4,
            dp=2,
            tensor_overlap="products",
            recompute="full",
            loss="in_place",
            schedule="interleaved",
            virtual_stages=2,
            **MLPERF_FIELDS,
        ),
    )
    assert other.device == "gb200"
    assert other.parallelism == Parallelism(
        tp=1,
        pp=1,
        dp=2,
        cp=2,
        fp8_recipe="tensorwise",
        fp8_weights=True,
        tensor_overlap="products",
        recompute="selective",
        loss="in_place",
        **MLPERF_FIELDS,
    )
    none, uneven = found.left_out
    assert none == "MLPerf: the layout is not published"
    assert uneven.startswith("MLPerf: ")


def test_embedding_and_loss_count_as_a_layer(tmp_path: Path) -> None:
    """126 layers, embedding and loss make 128: two on each of 64 chunks."""
    row = PRETRAINED | {"benchmark": "llama31_405b", "pp": "8", "vp": "8", "micro_batches": "16"}
    [case] = asked(tmp_path, mlperf=[row]).cases
    assert case.parallelism.layer_counts == (1, *[2] * 62, 1)


def test_rows_of_torchtitan(tmp_path: Path) -> None:
    other = TITAN | {
        "source": "of_202505",
        "device": "H200",
        "precision": "float8, async TP",
        "activation_checkpointing": "full",
        "tp": "1",
        "cp": "2",
    }
    first, second = asked(tmp_path, titan=[TITAN, other]).cases
    fields = {
        "micro_batch": 2,
        "micro_batches": 1,
        "recompute_modules": ("per_op",),
        "kept_by": "torchtitan",
        "zero": 3,
        "vocabulary_multiple": 1,
        "reduce_dtype": "float32",
    }
    assert first == AskedCase(
        source="torchtitan",
        name="llama-3.1-8b on 8, bf16, compile yes, 4096 tokens, selective",
        device="h100-sxm-96gb",
        model=load_model("llama-3.1-8b").with_sequence_length(4096),
        dtype="bfloat16",
        measured_bytes=82.5 * 2**30,
        parallelism=Parallelism(
            tp=2,
            pp=1,
            dp=4,
            sequence_parallel=True,
            recompute="selective",
            tensor_overlap="weight_gradients",
            loss="plain",
            **fields,
        ),
    )
    assert second.device == "h200-sxm"
    assert second.parallelism == Parallelism(
        tp=1,
        pp=1,
        cp=2,
        dp=4,
        fp8_recipe="tensorwise",
        recompute="full",
        tensor_overlap="products",
        loss="fused",
        **fields,
    )


def test_rows_of_megatron_lm(tmp_path: Path) -> None:
    plain = GOLDEN | {"model_args": GOLDEN["model_args"].replace("MORE", "")}
    named = plain | {
        "case": "known",
        "gpus": "4",
        "env": '{"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}',
        "device": "gb200",
    }
    again = plain | {"case": "known", "model_args": plain["model_args"].replace('"--bf16": true, ', "")}
    release, unknown, rl = (
        plain | {"case": "small_release"},
        plain | {"model_args": plain["model_args"].replace("bpe/vocab.json", "words")},
        plain
        | {"model_args": GOLDEN["model_args"].replace("MORE", ', "--perform-rl-step": true, "--no-such": 1')},
    )
    found = asked(tmp_path, golden=[plain, named, again, release, unknown, rl])

    one_node, four, same = found.cases
    assert (one_node.name, one_node.device, one_node.logged_stage) == ("small, a100", "a100-sxm", "last")
    assert (one_node.measured_bytes, one_node.dtype, one_node.workspace_bytes) == (1000.0, "bfloat16", None)
    assert one_node.model.vocabulary_size == 50_257
    assert [
        (one.parallelism.tp, one.parallelism.dp, one.parallelism.micro_batches) for one in found.cases
    ] == [
        (2, 4, 8),
        (2, 2, 16),
        (2, 2, 16),
    ]
    assert (four.device, four.workspace_bytes) == ("gb200", 8 * 4096 * 1024)
    assert same.dtype == "float32"
    assert found.left_out == [
        "Megatron-LM tests: the number of devices is not published",
        "Megatron-LM tests: --vocab-size is missing, and the tokenizer words is unknown: give it or --model",
        "Megatron-LM tests: --perform-rl-step: memory of inference too, expected training alone",
    ]
