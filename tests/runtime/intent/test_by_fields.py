"""Questions by field names answer what the same values answer, and hardware is found by its name."""

from pathlib import Path

import pytest

from kernelcast.runtime import (
    DataError,
    Estimator,
    Parallelism,
    UsageError,
    load_model,
    predict,
    search_layouts,
)
from kernelcast.runtime.answers.fabric_choice import find_fabric
from kernelcast.runtime.frameworks.software import framework_named
from kernelcast.runtime.stack import find_stack

LLAMA = "llama-3-8b"
LAYOUT = {"tp": 2, "dp": 4, "micro_batch": 1, "global_batch": 16, "zero": 1}


@pytest.fixture(scope="module")
def h100() -> Estimator:
    return Estimator.load("h100-sxm")


def test_a_bare_name_is_hardware_unless_a_file_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Estimator.load("a100-sxm").bundle.digest == Estimator.load("hardware:a100-sxm").bundle.digest
    Path("a100-sxm").write_bytes(b"not a bundle")
    with pytest.raises(DataError, match="a100-sxm"):
        Estimator.load("a100-sxm")
    with pytest.raises(UsageError, match=r"hardware 'h10' is unknown, nearest are h100-sxm"):
        Estimator.load("h10")
    # What names a file is never hardware.
    for path in ("missing.kcast", "./a100-sxm-2", Path("gh200")):
        with pytest.raises(DataError):
            Estimator.load(path)


def test_a_layout_by_fields_is_that_layout(h100: Estimator) -> None:
    layout = Parallelism(tp=2, pp=1, dp=4, micro_batch=1, micro_batches=4, zero=1)
    estimate = h100.predict(model=load_model(LLAMA), parallelism=layout)
    assert predict(h100, LLAMA, **LAYOUT) == estimate
    # The paper's name of a degree.
    others = {name: value for name, value in LAYOUT.items() if name != "tp"}
    assert predict(h100, load_model(LLAMA), **others, mp=2) == estimate


def test_a_framework_brings_its_stack_unless_there_is_one(h100: Estimator) -> None:
    layout = {**LAYOUT, "zero": 3}
    found = predict(h100, LLAMA, **layout, framework="torchtitan")
    stack = framework_named("torchtitan").stack_on(["h100-sxm"])
    assert found.provenance.stack is not None
    assert stack is not None
    assert found == predict(h100.with_stack(stack), LLAMA, **layout, framework="torchtitan")
    other = Estimator.load("h100-sxm", stack="fsdp-composer")
    kept = predict(other, LLAMA, **layout, framework="torchtitan").provenance.stack
    assert kept is not None
    assert kept.name == "fsdp-composer"


def test_fabric_and_stack_are_names_or_values(h100: Estimator) -> None:
    named = predict(h100, LLAMA, **LAYOUT, fabric="h100-400g")
    assert named == predict(h100, LLAMA, **LAYOUT, fabric=find_fabric("h100-400g"))
    assert named.provenance.collectives is not None
    assert named.provenance.collectives.name == "h100-400g"
    composer = Estimator.load("h100-sxm", stack="fsdp-composer")
    found = predict(composer, LLAMA, **LAYOUT)
    stack = find_stack("fsdp-composer")
    assert found == predict(h100.with_stack(stack), LLAMA, **LAYOUT)
    # Its options fill what is not given.
    assert found.parallelism.exposed_share == stack.exposed_share
    assert predict(composer, LLAMA, **LAYOUT, exposed_share=0.5).parallelism.exposed_share == 0.5


def test_the_best_of_a_search_is_what_predict_finds(h100: Estimator) -> None:
    asked = {"gpus": 8, "global_batch": 16, "tp": (1, 2), "schedule": "1f1b"}
    found = search_layouts(h100, LLAMA, gpus=8, global_batch=16, tp="1,2", top=2)
    assert len(found.top) == 2
    assert {one.parallelism.tp for one in found.top} <= {1, 2}
    best = predict(h100, LLAMA, gpus=8, global_batch=16)
    assert best.step_time_s <= found.top[0].step_time_s
    with pytest.raises(UsageError, match=r"'schedule' is unknown \(did you mean schedules\?\)"):
        search_layouts(h100, LLAMA, **asked)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"global_batchs": 16}, r"field 'global_batchs' is unknown \(did you mean global_batch\?\)"),
        (
            {"stack": "fsdp-composer"},
            "stack is given with a question, expected an estimator with the stack",
        ),
        ({"fabric": "h100-401g"}, "fabric 'h100-401g' is unknown"),
        ({"gpus": 8}, "global_batch is not given"),
        ({"micro_batch": 1.0, "global_batch": 8}, "micro_batch is 1.0, expected a whole number"),
        ({}, "micro_batch is not given"),
    ],
)
def test_wrong_questions_are_one_line(h100: Estimator, fields: dict[str, object], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        predict(h100, LLAMA, **fields)  # type: ignore[arg-type]


def test_a_length_that_is_not_of_training_is_asked_for(h100: Estimator, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "qwen2", "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 2, '
        '"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1000, "max_position_embeddings": 131072}'
    )
    with pytest.raises(UsageError, match="sequence_length"):
        predict(h100, config, **LAYOUT)
    assert predict(h100, config, **LAYOUT, sequence_length=512).model.sequence_length == 512
