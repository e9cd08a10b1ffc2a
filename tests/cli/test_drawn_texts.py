"""Tables, running text, sizes, options and manifests of many kinds: drawn_texts.txt, which WRITE_DRAWN_TEXTS=1 writes.

A refusal or a text that changes is seen here with all others of its kind.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from kernelcast.cli.explain import log_distance
from kernelcast.cli.fields import check_effect, check_one, chosen_bundle, hardware_names
from kernelcast.cli.frameworks import layout_words
from kernelcast.cli.option import parse_size, whole_numbers
from kernelcast.cli.plan import days, step_text
from kernelcast.cli.progress import span
from kernelcast.cli.tables import signed_percent, table_lines, text_table
from kernelcast.cli.terminal import facts, title, warning, wrapped
from kernelcast.cli.walltime_k8s import edited, read_manifests
from kernelcast.runtime import KernelcastError, Parallelism
from kernelcast.runtime.estimate.step_spread import StepSpread
from kernelcast.runtime.request.fields import LAYOUT

TEXT = Path(__file__).with_name("drawn_texts.txt")
CELLS = ("1", "-3.5 %", "1,234", "12 ms", "–", "", "gelu", "all_reduce (data)",
         "a text that is rather long and has words", "1f1b", "2 × 4", "1e-9", "+0.1 %", "two\nlines",
         "\x1b[1m")  # fmt: skip
MANIFESTS = {
    "plain": "kind: Job\nmetadata:\n  name: a  # its name\nspec:\n  template: {}\n",
    "limits": 'kind: Job\nmetadata:\n  labels:\n    kueue.x-k8s.io/max-exec-time-seconds: "9"\nspec:\n'
              "  activeDeadlineSeconds: 7 # old\n",
    "flow": "{kind: Job, metadata: {}, spec: {a: 1}}\n",
    "windows": "kind: Job\r\nmetadata:\r\n  name: a\r\nspec:\r\n  a: 1\r\n",
    "indented": "kind: Job\nmetadata:\n    labels:\n        other: x\nspec:\n    a: 1\n",
    "flow labels": "kind: Job\nmetadata: {labels: {other: x}}\nspec: {}\n",
    "empty": "kind: Job\nmetadata:\nspec:\n  a: 1\n",
    "twice": "kind: Job\nmetadata: {name: a}\nspec:\n  activeDeadlineSeconds: 1\n  activeDeadlineSeconds: 2\n",
    "merged": "kind: Job\nmetadata: {name: a}\nspec:\n  <<: {a: 1}\n",
    "list": "kind: List\nitems:\n- {kind: Job, spec: {}, metadata: {}}\n- kind: Job\n  spec: {a: 1}\n  metadata: {}\n",
    "no list": "kind: Pod\nitems: []\nmetadata: {}\nspec: {}\n",
    "two": "---\nkind: Job\nspec: {}\nmetadata: {}\n---\n\n---\nkind: Job\nspec:\n  a: 1\nmetadata: {}\n",
    "damage": "a: [1,\nb: 2\n",
    "date": "kind: Job\nmade: 2026-13-99\nspec: {}\nmetadata: {}\n",
    "tag": "kind: Job\nmade: !python/name:os.system x\nspec: {}\nmetadata: {}\n",
    "nested": "[" * 3000 + "]" * 3000,
}  # fmt: skip


def outcome(asked: Callable[..., object], *given: object, **more: object) -> str:
    try:
        return str(asked(*given, **more))
    except KernelcastError as error:
        return f"{type(error).__name__}: {error}"


def tables(drawn: Random) -> Iterator[str]:
    heads = ("name", "time", "share of all", "layout", "TFLOP/s per device")
    for _ in range(90):
        count = drawn.choice([2, 3, 5])
        rows = [[drawn.choice(CELLS) for _ in range(count)] for _ in range(drawn.choice([0, 1, 3]))]
        optional = drawn.sample(heads, drawn.choice([0, 0, 2]))
        width, indent = drawn.choice([20, 34, 40, 60, 100]), drawn.choice(["", "  "])
        yield f"{width} {optional}"
        yield text_table(heads[:count], rows, indent=indent, width=width, optional=optional)
    listed = [[str(number), "x" * (number % 1001 // 99)] for number in range(0, 1_100, 9)] * 9
    lines = list(table_lines(("number", "text"), listed, width=30))
    yield f"{len(lines)} {lines[:14]} {lines[-2:]}"


def running(drawn: Random) -> Iterator[str]:
    words = ("step", "12 ms", "of", "1.5 GiB", "and-more", "80 %", "at 3 FLOP/s", "x" * 30, "7 days")
    for _ in range(25):
        text = " ".join(drawn.choice(words) for _ in range(drawn.choice([1, 9, 30])))
        yield wrapped(text, begin=drawn.choice(["", "warning: ", "    "]), indent=drawn.choice(["", "  "]))
        yield facts(
            {"one": text, "a long label": [text, "short"], "none": None, "": drawn.choice(["", text])}
        )
        yield f"{title(text, 'under')}\n{warning(text)}"
    numbers = (0.0, 0.4, 1, 59.6, 89.9, 90, 3599, 5399, 5400, 9e4, 172_799, 172_800, 1e7)
    yield " ".join(map(span, numbers))
    yield " ".join(map(days, numbers))
    yield " ".join(
        signed_percent(one, digits)
        for one in (None, 0, 0.1234, -0.1234, float("inf"), 3)
        for digits in (0, 1, 2)
    )
    spread = StepSpread(
        p90=1.25, p99=2.5, mean=1.5, std=0.5, p99_range=(1.0, 3.0), start_s=60.0, start_range_s=(1.0, 9.0), publishers=3
    )  # fmt: skip
    yield f"{step_text(0.5, spread)}; {step_text(7e-4, spread)}"
    yield str(
        [
            round(log_distance(one, other), 4)
            for one, other in (((1, 2), (1, 2)), ((0, 0.5), (1, 1)), ((8, 3), (2, 9)))
        ]
    )


def values(drawn: Random) -> Iterator[str]:
    for text in ("80GB", "40GiB", "1.5 tb", "80", "0B", "1e9GB", "-1GB", "5 gib", " 7kB ", "999999999999999999B", "3XB",
                 "", "0.0000000001GB", "1.23456789MB", "2KIB", "12 TiB"):  # fmt: skip
        found = [outcome(parse_size, text, name="--size", **more) for more in ({}, {"least": 0})]
        yield f"{text!r}: {found}"
    for text in ("1", "1,2", "2,1", "1,1", "0", "1,", "99999", "100000", "1, 5", "x", "١", "-3", "7,160,161"):
        found = [
            outcome(whole_numbers, text, "--points", most, "some", is_rising=one)
            for most in (160, 99_999)
            for one in (True, False)
        ]
        yield f"{text!r}: {found}"
    for text in (None, "h100-sxm", "h100-sxm, a100-sxm", "h100-sxm,h100-sxm", "h100", "", ","):
        chosen = [outcome(chosen_bundle, bundle, text) for bundle in (None, "b")]
        yield f"{text!r}: {outcome(hardware_names, text)}; {chosen}"
    for one, other in ((None, None), (1, None), (None, 0), (1, 2)):
        yield outcome(check_one, "--a", one, "--b", other)
    layouts = [
        Parallelism(pp=2, tp=2, dp=4, micro_batch=1, micro_batches=8, sequence_parallel=True, zero=3, recompute="full"),
        Parallelism(pp=1, tp=1, dp=1, micro_batch=2, micro_batches=1, layer_counts=(4,), zero=0, recompute="selective"),
        Parallelism(pp=1, tp=1, dp=8, micro_batch=2, micro_batches=1, cp=2, ep=4, offload_optimizer=0.5, lora_rank=8),
    ]  # fmt: skip
    for layout in layouts:
        yield " ".join(layout_words(layout))
        yield " ".join(layout_words(layout, also=("zero", "schedule", "tp")))
        for name, field in LAYOUT.items():
            for value in (True, False, 1, 0.5, "none", field.default):
                found = {
                    outcome(check_effect, {name: value}, layout, is_searched=one) for one in (True, False)
                }
                if found != {"None"}:
                    yield f"{name} {value}: {sorted(found)}"


def manifests() -> Iterator[str]:
    for name, text in MANIFESTS.items():
        found = outcome(
            lambda text=text: [(one.where, one.value()) for one in read_manifests(text, name="job.yaml")]
        )
        yield f"{name}: {found}"
        if found.startswith("["):
            for one in read_manifests(text, name="job.yaml"):
                edits = outcome(lambda one=one: one.limited(3600, where=one.where))
                yield edits if edits[0] != "[" else repr(edited(one.text, one.limited(3600, where=one.where)))


def everything(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "90")
    drawn = Random(2)
    return "\n".join([*tables(drawn), *running(drawn), *values(drawn), *manifests()]) + "\n"


def test_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = everything(monkeypatch)
    if "WRITE_DRAWN_TEXTS" in os.environ:
        TEXT.write_text(found, encoding="utf-8")
    assert found == TEXT.read_text(encoding="utf-8")
