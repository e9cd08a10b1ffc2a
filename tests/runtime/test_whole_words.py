"""How numbers, names and mistakes are written: `whole_words.txt`, which WRITE_WHOLE_WORDS=1 pytest THIS_FILE writes."""

import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from kernelcast.runtime import errors
from kernelcast.runtime.views import formatting

TEXT = Path(__file__).with_name("whole_words.txt")
EDGES = (1.0, 2.0, 9.994, 9.996, 99.94, 99.96, 102.3, 102.5, 999.4, 999.6)
OPTIONS = [
    "--micro-batch",
    "--micro-batches",
    "--global-batch",
    "--sequence-length",
    "--sequence-parallel",
    "--tp",
    "--dp",
    "--gpus-per-node",
    "--schedule",
    "--layer-counts",
    "--recompute",
    "--recompute-layers",
    "--zero",
]
HARDWARE = ["a100-sxm", "a100-pcie", "h100-sxm", "h100-pcie", "h200-sxm", "gh200", "b200-sxm", "mi300x"]  # fmt: skip
UNITS = ("error_percent", "slower_ratio", "largest_memory_bytes", "message_bytes", "step_time_s", "count", "")


def misspelled(name: str, random: Random) -> Iterator[str]:
    """With a letter more, one less, two that changed places, another one, its beginning, and more after it."""
    at = random.randrange(1, len(name) - 2)
    yield name[:at] + name[at + 1 :]
    yield name[:at] + "x" + name[at:]
    yield name[:at] + name[at + 1] + name[at] + name[at + 2 :]
    yield name[:at] + "q" + name[at + 1 :]
    yield name[: len(name) // 2 + 1].upper()
    yield f"{name}_size"


def of_numbers() -> Iterator[str]:
    values = [edge * 10.0**power for power in range(-9, 16, 3) for edge in EDGES]
    for function in (formatting.seconds, formatting.amount, formatting.three_digits, formatting.rate,
                     formatting.round_step, errors.shown_size, formatting.in_days):  # fmt: skip
        yield f"{function.__name__}: {'; '.join(str(function(value)) for value in values)}"
    times_s = (59.0, 60.0, 119.9, 120.0, 7199.0, 7200.0, 172_799.0, 172_800.0, 1e-3, 0.999e-3, 0.0)
    yield f"times: {'; '.join(map(formatting.seconds, times_s))}"
    days = (0.0, 0.5, 1.99, 2.0, 9.99, 10.0, 12_345.6)
    yield f"days: {'; '.join(formatting.in_days(one, like=like) for one in days for like in (None, 1.0, 3.0))}"
    for low_s, high_s in product((1e-5, 0.5, 3000.0), (2e-5, 4.0, 1e6)):
        yield f"between: {formatting.between(low_s, high_s)}, {formatting.between(low_s, high_s, like=1.0)}"
    sizes = [
        scale * part
        for scale in (1 << 10, 1 << 20, 1 << 30, 1 << 40)
        for part in (0.1, 1, 102.3, 102.5, 9999)
    ]
    yield f"sizes: {'; '.join(map(errors.shown_size, (0, -1, 1, *sizes, 10_000 << 30)))}"
    yield formatting.sizes_text({"reserved": 3 << 29, "NCCL": 1 << 28})
    for column in UNITS:
        cells = [formatting.cell_text(column, value) for value in (None, 0, 1234, 0.05, 31.25)]
        yield f"{column}: {formatting.heading(column)!r} {cells} {formatting.cell_text('name', 'text')}"
    yield "; ".join(
        formatting.percent(one, digits=digits)
        for one in (0.12345, -1.0, float("nan"))
        for digits in (0, 1, 2)
    )
    yield "; ".join(
        formatting.counted(count, what) for count in (0, 1, 2, 1234) for what in ("stage", "launch")
    )
    yield "; ".join(formatting.value_range(low, 1e5) for low in (1.0, 99_999.0, 1e5, 12_345_678.0))
    names = [
        "an_operator_of_a_long_name_forward",
        "an_operator_of_a_long_name_backward",
        "short",
        "x" * 40,
        "x" * 39,
    ]
    for most in (12, 20, 39, 40):
        yield f"{most}: {[formatting.shortened(one, most) for one in names]} {formatting.shortened_apart(names, most)}"


def of_names() -> Iterator[str]:
    random = Random(7)
    for name in (*OPTIONS, *HARDWARE):
        for wrong in misspelled(name, random):
            known = OPTIONS if name in OPTIONS else HARDWARE
            yield f"{wrong}: {errors.nearest_names(wrong, known)}; {errors.alternatives(wrong, known)[:120]}"
    for name in ("", "a", "tpu", "h-100", "x" * 200, "zero_1", "zero-one"):
        yield f"{name[:9]}: {errors.alternatives(name, ['h100-sxm', 'zero', 'zero_one', 'a100'])}"
    yield f"{errors.unknown('device', 'h10', HARDWARE)}"[:200]
    yield str(errors.unknown("device", 3, ["a", "b"], instead="a file works too"))
    for field in ("micro_bach", "nothing", 7):
        yield str(errors.unknown_field(field, ["micro_batch", "dp"], path="runs."))


def of_values() -> Iterator[str]:
    values: list[Any] = [
        "x" * 77,
        "x" * 78,
        "x" * 79,
        10**5000,
        [10**5000],
        None,
        True,
        1.5,
        "a\x1b[31m",
        {"a": 1},
    ]
    yield from (f"{errors.shown(one)} {errors.shown_value(one)}" for one in values)
    yield from map(errors.shown_path, ("x" * 255, "x" * 256, "a/b", "a\nb"))
    yield from map(errors.shown_name, ("x" * 80, "x" * 81, "a b", "tp"))
    yield from (errors.either(names) for names in (["a"], ["a", "b"], ["a", "b", "c"]))
    hostile = "".join(
        map(chr, (0, 7, 9, 10, 13, 27, 31, 32, 127, 155, 160, 0x61C, 0x200E, 0x2028, 0x202E, 0x2066, 0xD800))
    )
    yield f"{errors.one_line(hostile)!r} {errors.printable(hostile)!r} {errors.printable_json(hostile)!r}"
    error = (
        errors.UsageError(field="tp", found=3, expected="8", subject="2 · tp")
        .at("runs", 2, "a b")
        .within("f", "g")
    )
    for one in (
        error,
        errors.DataError.of(error),
        error.within("f"),
        errors.DataError("gone", field="x").at("y"),
    ):
        yield f"{one} | {one.field} | {one.path} | {one.message} | {one.exit_code}"


def test_whole_words() -> None:
    printed = "\n".join((*of_numbers(), *of_names(), *of_values())) + "\n"
    if "WRITE_WHOLE_WORDS" in os.environ:
        TEXT.write_text(printed, encoding="utf-8")
    assert printed == TEXT.read_text(encoding="utf-8")
