"""A compact search has the layouts, times and memory of a search, without its words."""

import pytest

from kernelcast.runtime import Estimator
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.models import load_model
from kernelcast.runtime.search.compact import COLUMNS, compact_search
from kernelcast.runtime.search.read_question import read_question
from kernelcast.runtime.search.search import search

MODEL = load_model("llama-2-7b")


@pytest.fixture(scope="module")
def estimator() -> Estimator:
    return Estimator.load("hardware:h100-sxm")


def test_the_layouts_of_a_search(estimator: Estimator) -> None:
    asked = {"gpus": 8, "global_batch": 16, "zero": [1], "top": 20}
    question = read_question(asked, model=MODEL, bundle=estimator.bundle)
    whole, compact = search(estimator, question), compact_search(estimator, question)
    assert compact["columns"] == list(COLUMNS)
    layouts = [Parallelism(**dict(zip(COLUMNS, row, strict=True))) for row in compact["rows"]]
    every = {answer.parallelism for answer in (*whole.top, *whole.front)}
    assert len(layouts) == len(every)
    assert [compact["rows"][rank][:3] for rank in range(20)] == [
        [one.parallelism.pp, one.parallelism.tp, one.parallelism.dp] for one in whole.top
    ]
    assert compact["step_time_s"][:20] == pytest.approx([one.step_time_s for one in whole.top])
    assert compact["memory_bytes"][:20] == pytest.approx([one.memory_bytes for one in whole.top])
    nccl = [sum(one.estimate.memory.communicators.values()) for one in whole.top]
    assert compact["nccl_bytes"][:20] == nccl
    assert len(compact["nccl_bytes"]) == len(layouts)
    assert compact["step_time_s"] == sorted(compact["step_time_s"])
    assert [compact["step_time_s"][at] for at in compact["front"]] == pytest.approx(
        [one.step_time_s for one in whole.front]
    )
    assert compact["devices"] == [8] * len(layouts)
    assert compact["best"] == whole.to_dict()["best"]
    assert whole.best is not None
    assert compact["tokens_per_step"] == 16 * MODEL.sequence_length
    assert compact["model_flops"] == whole.best.estimate.model_flops
    assert compact["provenance"] == whole.best.estimate.provenance.to_dict()
    assert whole.best.estimate.peak is not None
    assert compact["peak"] == whole.best.estimate.peak.to_dict()
    assert (compact["layouts"], compact["out_of_memory"]) == (
        whole.counts.layouts,
        whole.counts.out_of_memory,
    )
    # What a row says is enough to ask for it again.
    for layout, step_s in list(zip(layouts, compact["step_time_s"], strict=True))[::7]:
        again = estimator.predict(model=MODEL, parallelism=layout, cluster=question.cluster, interval=False)
        assert again.step_time_s == pytest.approx(step_s)


def test_nothing_fits(estimator: Estimator) -> None:
    asked = {"gpus": 1, "global_batch": 1, "gpu_memory_bytes": 4 << 30}
    compact = compact_search(estimator, read_question(asked, model=MODEL, bundle=estimator.bundle))
    assert (compact["rows"], compact["front"], compact["best"]) == ([], [], None)
    assert compact["devices"] == compact["nccl_bytes"] == []
    assert "none of" in compact["why_nothing"]
    assert compact["smallest"]["memory_bytes"] > 4 << 30
