"""Answers in a notebook: HTML that is well formed and escaped, and data frames where pandas is installed."""

import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from kernelcast.runtime import (
    Estimate,
    Estimator,
    SearchResult,
    UsageError,
    load_model,
    predict,
    search_layouts,
)


class Reader(HTMLParser):
    """Texts of a document; every tag is closed in its order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def h100() -> Estimator:
    return Estimator.load("h100-sxm")


@pytest.fixture(scope="module")
def estimate(h100: Estimator) -> Estimate:
    return predict(h100, "llama-3-8b", pp=2, dp=8, micro_batch=1, global_batch=64, zero=1)


@pytest.fixture(scope="module")
def found(h100: Estimator) -> SearchResult:
    return search_layouts(h100, "llama-3-8b", gpus=16, global_batch=64, top=3)


def test_an_estimate_shows_its_headline_and_its_doubts(estimate: Estimate) -> None:
    texts = Reader(estimate._repr_html_()).texts
    assert any(text.startswith(f"{estimate.step_time_s:.3f} s (90 % interval: ") for text in texts)
    assert "pp 2 × tp 1 × dp 8, 1F1B, 8 micro-batches of 1, recomputation none, ZeRO-1" in texts
    assert "2 stages" in texts
    assert estimate.doubts[0].line in texts
    assert any(estimate.provenance.data[0] in text for text in texts)


def test_texts_of_users_stay_texts(h100: Estimator) -> None:
    model = replace(load_model("llama-3-8b"), name="<script>alert(1)</script>")
    html = predict(h100, model, dp=8, micro_batch=1, global_batch=8, zero=3)._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_a_search_shows_a_row_per_layout(found: SearchResult) -> None:
    html = found._repr_html_()
    texts = Reader(html).texts
    assert html.count("<tr>") == 1 + len(found.top)
    assert f"{found.best.step_time_s:.3f} s" in texts if found.best else False
    # Degrees that no layout has are left out.
    assert {"pp", "tp", "dp"} <= set(texts)
    assert "ep" not in texts


def test_a_search_without_an_answer_says_why(h100: Estimator) -> None:
    none = search_layouts(h100, "llama-3-8b", gpus=8, global_batch=8, gpu_memory_bytes=2**30)
    (text,) = Reader(none._repr_html_()).texts
    assert text == none.why_nothing()
    assert re.search(r"none of .* fits into", text)


def test_pandas_that_is_missing_is_one_line(
    estimate: Estimate, found: SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for one in (estimate, found):
        with pytest.raises(UsageError, match=r"pip install 'kernelcast\[pandas\]'"):
            one.to_pandas()


def test_data_frames(estimate: Estimate, found: SearchResult) -> None:
    operators = estimate.to_pandas()
    assert len(operators) == len(estimate.operators)
    assert operators.total_s.sum() == pytest.approx(sum(row.total_s for row in estimate.operators))
    layouts = found.to_pandas()
    assert list(layouts.step_time_s) == [one.step_time_s for one in found.top]
    assert list(layouts.gpus) == [16] * 3
    assert list(found.to_pandas(front=True).memory_bytes) == [one.memory_bytes for one in found.front]
