"""The framework of a question: what it fills in, falls back to and refuses, and that its own arguments say the same."""

from dataclasses import replace

import pytest

from kernelcast.runtime import Estimator, Parallelism, UsageError, load_model
from kernelcast.runtime.frameworks.layout_files import FRAMEWORKS, read_layout_text, write_layout
from kernelcast.runtime.frameworks.rows import Job
from kernelcast.runtime.frameworks.software import choose_software, framework_named, frameworks
from kernelcast.runtime.intent.answer import answer
from kernelcast.runtime.intent.goals import Wish
from kernelcast.runtime.request.fields import DEGREES, EXPERT_DEGREES, LAYOUT, SEARCHED
from kernelcast.runtime.request.layout import read_layout, read_request
from kernelcast.runtime.search.read_question import read_question
from kernelcast.runtime.search.search import search

H100 = ("h100-sxm",)
SMALL = replace(load_model("llama-3-8b"), layers=8, sequence_length=1024)
LAYOUT_OF_8 = {"dp": 8, "micro_batch": 1, "micro_batches": 4}
# DeepSpeed's only schedule and cut, and what is one device's own.
_SAID = ("pp", "tp", "dp", "cp", "zero", "recompute", "schedule", "virtual_stages", "sequence_parallel")


@pytest.fixture(scope="module")
def h100() -> Estimator:
    return Estimator.load("h100-sxm")


@pytest.mark.parametrize("name", frameworks())
def test_what_it_states_is_of_fields_and_stacks_that_exist(name: str) -> None:
    software = framework_named(name)
    for field, value in software.defaults.items():
        LAYOUT[field].check(tuple(value) if isinstance(value, list) else value)
    for field, values in software.layouts.items():
        assert field in SEARCHED
        for value in values:
            LAYOUT[field].check(value)
    assert (software.stack is None) == (software.stack_on(H100) is None)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_layout_that_a_search_may_return_is_one_that_its_arguments_say(
    name: str, h100: Estimator
) -> None:
    values = choose_software({"framework": name, "gpus": 8, "global_batch": 8}, hardware=H100, is_open=True)
    question = read_question(values.values, model=SMALL, bundle=h100.bundle)
    layouts = list(question.space.layouts())
    assert len(layouts) > 5
    for layout in layouts[:: max(1, len(layouts) // 60)]:
        job = Job(model=SMALL, parallelism=layout, gpus_per_node=8, dtype="bfloat16")
        file = read_layout_text(write_layout(name, job).text, "layout")
        assert file.name == name
        read = read_layout(file.request(SMALL, {}, layout.world_size).fields)
        for field in _SAID:
            if field == "zero" and layout.dp * layout.cp == 1:
                continue
            assert getattr(read, field) == getattr(layout, field), (field, layout)


def test_a_search_leaves_out_what_a_framework_does_not_run(h100: Estimator) -> None:
    everything = read_question({"gpus": 8, "global_batch": 8}, model=SMALL, bundle=h100.bundle)
    given = {"framework": "deepspeed", "gpus": 8, "global_batch": 8}
    asked = read_question(given, model=SMALL, bundle=h100.bundle)
    found = list(asked.space.layouts())
    assert 0 < len(found) < len(list(everything.space.layouts()))
    assert {one.schedule for one in found} == {"1f1b"}
    assert not any((one.zero > 1 and one.pp > 1) or (one.zero == 3 and one.tp > 1) for one in found)
    best = search(h100, asked).best
    assert best is not None
    assert best.parallelism.schedule == "1f1b"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"framework": "llm-foundry", "pp": 2}, "pp is 2, expected 1 with LLM Foundry"),
        (
            {"framework": "deepspeed", "pp": 2, "zero": 2},
            "zero 2 with pp 2 is given, which DeepSpeed does not run",
        ),
        ({"framework": "megatron"}, "framework 'megatron' is unknown, nearest is megatron-lm"),
    ],
)
def test_refusals(given: dict[str, object], line: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose_software(LAYOUT_OF_8 | given, hardware=H100)
    assert str(caught.value).startswith(line)


def test_a_search_within_limits_that_a_framework_does_not_know_is_refused(h100: Estimator) -> None:
    given = {"framework": "torchtitan", "gpus": 8, "global_batch": 8, "zero": (1,)}
    with pytest.raises(UsageError, match=r"zero is .*, expected 0 or 2 or 3 with torchtitan"):
        read_question(given, model=SMALL, bundle=h100.bundle)


def test_the_time_is_that_of_what_runs_instead(h100: Estimator) -> None:
    asked = LAYOUT_OF_8 | {"pp": 2, "dp": 4, "framework": "megatron-lm"}
    fallen = choose_software(asked | {"schedule": "zero_bubble"}, hardware=H100)
    assert fallen.notes == ("Megatron-LM runs schedule 1f1b instead of zero_bubble",)
    plain = choose_software(asked | {"schedule": "1f1b"}, hardware=H100)
    assert plain.notes == ()
    assert fallen.values == plain.values | {"virtual_stages": 1}
    assert choose_software(asked | {"zero": 2}, hardware=H100).notes == ()
    titan = asked | {"framework": "torchtitan", "zero": 1}
    assert choose_software(titan, hardware=H100).values["zero"] == 2


def test_defaults_give_way_to_a_question_a_stack_and_a_file() -> None:
    asked = LAYOUT_OF_8 | {"framework": "torchtitan"}
    chosen = choose_software(asked, hardware=H100)
    assert chosen.stack is not None
    assert chosen.stack.name == "torchtitan"
    assert (
        chosen.values.items() >= {"zero": 3, "recompute": "selective", "attention_kernel": "flash-2"}.items()
    )
    assert choose_software(asked | {"zero": 2}, hardware=H100).values["zero"] == 2
    other = choose_software(asked | {"stack": "none"}, hardware=H100).stack
    assert other is not None
    assert other.name == "none"
    assert "zero" not in choose_software(asked, hardware=H100, file="torchtitan").values
    assert choose_software(asked, hardware=()).stack is None
    assert choose_software(asked | {"timeline": "closed-form"}, hardware=H100).stack is None
    # PyTorch runs on an A100 the kernel that was measured there.
    assert "attention_kernel" not in choose_software(asked, hardware=("a100-sxm",)).values


def test_without_a_framework_an_answer_has_what_each_makes_of_it(h100: Estimator) -> None:
    wish = Wish()
    found = answer(h100, wish, LAYOUT_OF_8 | {"zero": 3}, model=SMALL)
    assert found.framework is None
    assert found.by_framework is not None
    assert set(found.by_framework) == {"megatron-lm", "torchtitan", "llm-foundry"}
    chosen = choose_software(LAYOUT_OF_8 | {"framework": "torchtitan", "stack": "torchtitan"}, hardware=H100)
    assert chosen.stack is not None
    values = {**chosen.stack.fill(LAYOUT_OF_8), "zero": 3}
    same = h100.with_stack(chosen.stack).predict(model=SMALL, interval=False, **read_request(values))
    assert found.by_framework["torchtitan"] == same.step_time_s
    of_one = answer(h100, wish, chosen.values, model=SMALL)
    assert (of_one.framework, of_one.by_framework) == ("torchtitan", None)


def test_degrees_are_never_replaced() -> None:
    for software in frameworks().values():
        for field in (*DEGREES, *EXPERT_DEGREES):
            if software.layouts.get(field) == (1,):
                with pytest.raises(UsageError):
                    software.as_run({field: 2})
    assert framework_named("megatron-lm").as_run({"pp": 2}) == ({"pp": 2}, ())
    assert isinstance(read_layout(LAYOUT_OF_8), Parallelism)
