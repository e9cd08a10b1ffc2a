"""Pages and traces of small steps, to the digit: `whole_pages.txt`, which WRITE_WHOLE_PAGES=1 pytest THIS_FILE writes.

Of every picture all that is drawn, of tables and texts all that is said; no styles, and of memory the first step's.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from kernelcast.runtime import Cluster, Estimate, Estimator, ModelConfig, Parallelism
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint
from kernelcast.runtime.views.chrome_trace import trace_lines
from kernelcast.runtime.views.estimate_page import page

TEXT = Path(__file__).with_name("whole_pages.txt")
EXPERTS = {"experts": 4, "experts_per_token": 2}
QUESTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"pp": 2, "dp": 2, "micro_batches": 2, "schedule": "interleaved", "virtual_stages": 2}),
    ({}, {"pp": 2, "dp": 2, "micro_batches": 4, "schedule": "dualpipe_v", "recompute": "full"}),
    (EXPERTS, {"pp": 2, "dp": 2, "ep": 2, "expert_imbalance": 1.5, "offload_optimizer": 0.5,
               "host_memory_gb_per_s": 80.0}),
    ({}, {"tp": 2, "dp": 2, "zero": 3, "sequence_parallel": True, "tensor_overlap": "products",
          "timeline": "closed-form", "lora_rank": 4}),
]  # fmt: skip


def asked(bundle: Path, model: dict[str, Any], layout: dict[str, Any]) -> Estimate:
    fields = {"pp": 1, "tp": 1, "dp": 1, "micro_batch": 1, "micro_batches": 2} | layout
    timeline = fields.pop("timeline", "simulate")
    size = {
        "hidden_size": 64,
        "sequence_length": 32,
        "attention_heads": 4,
        "layers": 4,
        "vocabulary_size": 1000,
    }
    return Estimator.load(bundle).predict(
        model=ModelConfig(**{"name": "tiny", **size, **model}),
        parallelism=Parallelism(**fields),
        cluster=Cluster(gpus_per_node=4),
        timeline=timeline,
        interval=False,
    )


def shown(one: ElementTree.Element, *, memory: bool) -> Iterator[str]:
    """An element per line: its name, what it says, and its attributes."""
    of_memory = one.get("aria-labelledby", "").startswith("memory") or (one.text or "").endswith("iB")
    if one.tag in ("style", "script", "meta") or (of_memory and not memory):
        return
    words = [f"{name}={value}" for name, value in one.attrib.items() if value]
    said = " ".join(" ".join(filter(None, (one.text, *(inner.tail for inner in one)))).split())
    if words or said:
        yield f"{one.tag} {' '.join(words)} {said!r}"
    for inner in one:
        yield from shown(inner, memory=memory)


def test_whole_pages(make_bundle: Callable[..., Path]) -> None:
    gpu = ComputeFingerprint(kind="cuda", device_name="NVIDIA H100 80GB HBM3", memory_gib=80)
    bundle = make_bundle(
        {"all_to_all": 50.0, "gemm": 12.5, "all_gather": 7.0},
        compute=[gpu],
        dtype="bfloat16",
        optional_us=0.5,
    )
    lines = []
    for model, layout in QUESTIONS:
        estimate = asked(bundle, model, layout)
        lines.append(f"*** {layout}")
        root = ElementTree.fromstring(page(estimate).removeprefix("<!doctype html>\n"))
        lines += shown(root, memory=layout is QUESTIONS[0][1])
        lines += [line.rstrip() for line in trace_lines(estimate)]
    printed = re.sub(r"\b[0-9a-f]{12,64}\b", "#", "\n".join(lines)) + "\n"
    if "WRITE_WHOLE_PAGES" in os.environ:
        TEXT.write_text(printed, encoding="utf-8")
    assert printed == TEXT.read_text(encoding="utf-8")
