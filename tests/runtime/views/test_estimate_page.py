"""The page of an estimate: sound HTML that needs nothing else, whatever names say, and figures that add up."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelcast.runtime import Cluster, Estimate, Estimator, KernelcastError, ModelConfig, Parallelism
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.estimate.training import training
from kernelcast.runtime.request.schedule import SCHEDULE_KINDS
from kernelcast.runtime.views.estimate_page import page, write_page
from kernelcast.runtime.views.formatting import gibibytes, in_days
from kernelcast.runtime.views.simulated_step import simulated_step
from kernelcast.runtime.views.step_breakdown import step_shares

Make = Callable[..., Path]
HOSTILE = "</title><script>alert('x')</script><b onmouseover=\"x\">&amp;--><style>*{}"
SVG_PARTS = ("forward", "backward", "weight", "reduce", "optimizer", "gather")


def ask(bundle: Path, *, model: dict[str, Any] | None = None, **question: Any) -> Estimate:
    size = {"hidden_size": 8, "sequence_length": 4, "attention_heads": 2, "vocabulary_size": 100}
    asked = {name: question.pop(name) for name in ("timeline", "gpu_memory_bytes") if name in question}
    layout = {"pp": 1, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 4} | question
    return Estimator.load(bundle).predict(
        model=ModelConfig(**{"name": "tiny", "layers": 8} | size | (model or {})),
        parallelism=Parallelism(**layout),
        cluster=Cluster(gpus_per_node=4),
        **asked,
    )


def test_utilisation_and_its_peak(make_bundle: Make) -> None:
    compute = [ComputeFingerprint(kind="cuda", device_name="NVIDIA A100-SXM4-80GB")]
    text = said(parsed(page(ask(make_bundle(compute=compute, dtype="bfloat16")))))
    assert "FLOP/s per device of 312 TFLOP/s" in text
    assert "NVIDIA A100 SXM4 80 GB (NVIDIA A100 datasheet (June 2021))" in text
    assert "FLOP/s per device; peak not known" in said(parsed(page(ask(make_bundle()))))


def parsed(text: str) -> ElementTree.Element:
    assert text.startswith("<!doctype html>\n")
    return ElementTree.fromstring(text.removeprefix("<!doctype html>\n"))


def said(root: ElementTree.Element) -> str:
    return " ".join(" ".join(root.itertext()).split())


def of_class(root: ElementTree.Element, name: str, tag: str) -> Iterator[ElementTree.Element]:
    return (one for one in root.iter(tag) if name in one.get("class", "").split())


def check_alone(root: ElementTree.Element) -> None:
    """No scripts, no links, nothing to fetch, no handlers; ids are unique, and pictures have words."""
    ids = [one.get("id") for one in root.iter() if one.get("id")]
    assert len(ids) == len(set(ids))
    for one in root.iter():
        assert one.tag not in {"script", "link", "img", "iframe", "object", "a", "base", "image", "use"}
        for name, value in one.attrib.items():
            assert not name.startswith("on")
            assert name not in {"href", "src", "srcset", "action"}
            assert "url(" not in value
    for style in root.iter("style"):
        assert not re.search(r"url\(|@import|<|&", style.text or "")
    for picture in root.iter("svg"):
        assert picture.get("role") == "img"
        words = [
            one.text
            for name in picture.get("aria-labelledby", "").split()
            for one in picture
            if one.get("id") == name
        ]
        assert len(words) == 2
        assert all(words)


LAYOUTS: list[dict[str, Any]] = [
    {},
    {"pp": 2, "tp": 2, "dp": 2},
    {"pp": 4, "dp": 2, "micro_batches": 3},
    {"pp": 4, "schedule": "gpipe", "zero": 0},
    {"pp": 4, "schedule": "zero_bubble", "micro_batches": 6},
    {"pp": 4, "dp": 2, "schedule": "interleaved", "virtual_stages": 2},
    {"pp": 3, "schedule": "zb_v", "micro_batches": 6},
    {"pp": 4, "schedule": "dualpipe", "micro_batches": 8},
    {"pp": 2, "dp": 2, "schedule": "dualpipe_v", "micro_batches": 5},
    {"pp": 2, "dp": 2, "zero": 3, "recompute": "full"},
    {"pp": 2, "dp": 2, "zero": 2},
    {"pp": 2, "tp": 2, "sequence_parallel": True},
    {"pp": 2, "tp": 2, "sequence_parallel": True, "tensor_overlap": "products"},
    {
        "pp": 2,
        "dp": 2,
        "micro_batches": 3,
        "overlap_gradients": True,
        "overlap_parameters": True,
        "overlap_bucket": 50,
    },
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_page_stands_alone_and_draws_every_pass(make_bundle: Make, layout: dict[str, Any]) -> None:
    estimate = ask(make_bundle({"all_reduce": 50.0}), **layout)
    root = parsed(page(estimate))
    check_alone(root)
    timeline = simulated_step(estimate)
    drawn = {part: len(list(of_class(next(root.iter("svg")), part, "rect"))) for part in SVG_PARTS}
    passes = estimate.parallelism.chunks * estimate.parallelism.micro_batches
    split = SCHEDULE_KINDS[estimate.parallelism.schedule].splits
    assert drawn["forward"] == drawn["backward"] == passes
    assert drawn["weight"] == (passes if split else 0)
    assert drawn["reduce"] == sum(len(stage.all_reduces) for stage in timeline.stages)
    assert drawn["optimizer"] == estimate.parallelism.pp
    for picture in root.iter("svg"):
        labels = [one.text for one in of_class(picture, "label", "text")]
        assert labels == [f"stage {index}" for index in range(estimate.parallelism.pp)]
        _, _, width, height = map(float, picture.get("viewBox", "").split())
        for shape in picture.iter("rect"):
            x, y, wide, high = (float(shape.get(name, "")) for name in ("x", "y", "width", "height"))
            assert x >= 0 <= y
            assert x + wide <= width
            assert y + high <= height


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_memory_over_the_step_marks_its_peaks(make_bundle: Make, layout: dict[str, Any]) -> None:
    estimate = ask(make_bundle({"all_reduce": 50.0}), **layout)
    picture = list(parsed(page(estimate)).iter("svg"))[-1]
    marks = ["".join(one.itertext()) for one in picture.iter("circle")]
    assert len(marks) == estimate.parallelism.pp
    for index, (mark, stage) in enumerate(zip(marks, estimate.memory.stages, strict=True)):
        assert re.fullmatch(
            rf"stage {index}: at most .* backward pass( of chunk \d+)? of micro-batch \d+", mark
        )
        if estimate.parallelism.schedule in ("gpipe", "1f1b"):
            assert f"at most {gibibytes(stage.total_bytes)}, backward pass of micro-batch 0" in mark
    for path in picture.iter("path"):
        # Nothing is drawn outside of the picture.
        _, _, width, height = map(float, picture.get("viewBox", "").split())
        for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path.get("d", "")):
            assert 0 <= float(x) <= width
            assert 0 <= float(y) <= height


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_shares_add_up_to_the_step(make_bundle: Make, layout: dict[str, Any]) -> None:
    estimate = ask(make_bundle({"all_reduce": 50.0, "point_to_point": 70.0}), **layout)
    timeline = simulated_step(estimate)
    shares = step_shares(estimate, timeline)
    assert sum(share.time_s for share in shares) == pytest.approx(estimate.step_time_s, rel=1e-6)
    assert all(share.time_s > 0 for share in shares)
    # Without the passes, waits for transfers count as waits for stages.
    coarse = {share.name: share.time_s for share in step_shares(estimate, None)}
    assert sum(coarse.values()) == pytest.approx(estimate.step_time_s, rel=1e-6)
    names = {share.name for share in shares}
    assert ("waiting for transfers between stages" in names) == (estimate.parallelism.pp > 1)
    assert ("tensor-parallel collectives" in names) == (estimate.parallelism.tp > 1)
    layout_asked = estimate.parallelism
    overlaps = layout_asked.zero >= 2 or layout_asked.sequence_parallel or layout_asked.overlap_gradients
    assert ("overlapped collectives, exposed part" in names) == overlaps


def test_shares_by_hand(make_bundle: Make) -> None:
    # One layer on the first of two stages, none on the second, is not to be had: 2 layers on 1 stage.
    # Forward 10 (embedding) + 2 · 110 + 3 · 10 (norm, logits, loss); backward twice that; an update of 100.
    times = {"adam": 100.0}
    estimate = ask(make_bundle(times), model={"layers": 2}, micro_batches=3)
    shares = {
        share.name: round(share.time_s * 1e6, 6) for share in step_shares(estimate, simulated_step(estimate))
    }
    assert shares == {
        "layers forward": 3 * 220,
        "layers backward": 3 * 440,
        "embedding, logits and loss forward": 3 * 40,
        "embedding, logits and loss backward": 3 * 80,
        "optimizer": 100,
    }


MIXTURE: dict[str, Any] = {
    "layers": 2,
    "sequence_length": 8,
    "experts": 4,
    "experts_per_token": 2,
    "attention": "flash",
}
SHARED: dict[str, Any] = {"dp": 2, "cp": 2, "ep": 2, "context_exchange": "all_to_all", "micro_batches": 3}


def test_collectives_of_experts_and_contexts(make_bundle: Make) -> None:
    # Rows, their probabilities, and the results for the experts; queries, keys and values, then results: 50 each.
    estimate = ask(make_bundle({"all_to_all": 50.0}), model=MIXTURE, **SHARED, pp=2)
    timeline = simulated_step(estimate)
    shares = {share.name: share.time_s * 1e6 for share in step_shares(estimate, timeline)}
    assert shares["expert all-to-all"] == pytest.approx(3 * (150 + 150))
    assert shares["context-parallel exchange"] == pytest.approx(3 * (100 + 100))
    assert "tensor-parallel collectives" not in shares
    assert sum(shares.values()) == pytest.approx(estimate.step_time_s * 1e6)
    components = estimate.components.to_dict()
    assert (components["EP_Alltoall"], components["CP_Exchange"]) == pytest.approx((150e-6, 100e-6))
    root = parsed(page(estimate))
    check_alone(root)
    for style, name, time_us in (
        ("expert", "expert all-to-all", 150),
        ("context", "context-parallel exchange", 100),
    ):
        titles = ["".join(one.itertext()) for one in of_class(next(root.iter("svg")), style, "path")]
        assert titles == [
            f"stage {stage}: {name} inside passes, {time_us}.0 µs of each, {6 * time_us}.0 µs in all"
            for stage in range(2)
        ]
        assert f"{name} (part of a pass)" in said(root)
    dense = ask(make_bundle(), pp=2, tp=2)
    assert not dense.components.to_dict().keys() & {"EP_Alltoall", "CP_Exchange"}
    assert "all-to-all" not in said(parsed(page(dense)))


def test_hostile_names_are_only_text(make_bundle: Make) -> None:
    bundle = make_bundle(name="a<b>&\n\"'.kcast")
    text = page(ask(bundle, model={"name": HOSTILE}, pp=2))
    root = parsed(text)
    check_alone(root)
    assert HOSTILE in next(one.text or "" for one in root.iter("h1"))
    assert "a<b>&\\n\"'.kcast" in said(root)
    assert "<script" not in text
    assert text.count("<style>") == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(name=st.text(min_size=1, max_size=40))
def test_any_name_makes_a_sound_page(make_bundle: Make, name: str) -> None:
    try:
        model = ModelConfig(
            name=name, hidden_size=8, sequence_length=4, attention_heads=2, layers=2, vocabulary_size=100
        )
    except KernelcastError:
        return
    estimate = Estimator.load(make_bundle()).predict(
        model=model, parallelism=Parallelism(pp=1, tp=1, dp=1, micro_batch=1, micro_batches=1), interval=False
    )
    check_alone(parsed(page(estimate)))


def test_what_it_says(make_bundle: Make) -> None:
    estimate = ask(make_bundle(largest=2.0), pp=2, dp=2, gpu_memory_bytes=1 << 10)
    words = said(parsed(page(estimate)))
    for part in (
        "A training step of tiny",
        "pp 2 × tp 1 × dp 2, 1F1B, 4 micro-batches of 1, recomputation none, ZeRO-1",
        "90 % interval",
        "does not fit",
        "is outside the training range, 1 to 2",
        "layer_norm",
        f"Bundle {estimate.provenance.bundle_digest}",
    ):
        assert part in words
    unknown = said(parsed(page(ask(make_bundle(), pp=2))))
    assert "device memory not known" in unknown
    assert "Warnings" not in unknown


def test_a_large_step_is_cut_and_stays_small(make_bundle: Make) -> None:
    estimate = ask(make_bundle(), model={"layers": 123}, pp=64, dp=2, micro_batches=256)
    text = page(estimate)
    root = parsed(text)
    check_alone(root)
    assert "in the middle, where the pattern repeats, are not drawn" in said(root)
    assert "256 forward passes of" in said(root)
    assert len(text) < 700_000
    assert [one.text for one in of_class(root, "cut", "text")] == ["⋯", "⋯"]  # of timeline and memory


def test_a_deep_pipeline_shows_its_first_and_last_stages(make_bundle: Make) -> None:
    root = parsed(page(ask(make_bundle(), model={"layers": 235}, pp=120, micro_batches=2)))
    picture = next(root.iter("svg"))
    labels = [one.text for one in of_class(picture, "label", "text")]
    assert labels == [f"stage {index}" for index in (*range(48), *range(72, 120))]
    assert "Stages 48 to 71 of 120 are not drawn" in said(root)


def test_steps_too_long_to_list_have_no_timeline(make_bundle: Make) -> None:
    root = parsed(page(ask(make_bundle(), pp=4, micro_batches=600_000, timeline="closed-form")))
    assert "Not drawn: a step of 4,800,000 passes, expected at most 4,000,000" in said(root)
    assert len(list(root.iter("svg"))) == 1


def test_a_note_separates_the_closed_form_from_the_drawing(make_bundle: Make) -> None:
    estimate = ask(make_bundle(), pp=4, timeline="closed-form")
    words = said(parsed(page(estimate)))
    assert "The predicted step is the closed form's; the drawing is the simulated schedule" in words


def test_the_file_is_always_the_same(make_bundle: Make, tmp_path: Path) -> None:
    estimate = ask(make_bundle(), pp=2)
    write_page(estimate, tmp_path / "one.html")
    write_page(estimate, tmp_path / "two.html")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_a_run_has_its_time_and_cost(make_bundle: Make) -> None:
    estimate = ask(make_bundle(largest=2.0), pp=2, dp=2)
    run = training(estimate, 10**9, price_per_gpu_hour=2.0)
    text = page(estimate, run)
    assert in_days(run.days) in text
    assert f"{run.cost:,.0f}" in text
    assert "cost" not in page(estimate)
