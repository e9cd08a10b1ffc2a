"""Write the golden files from the code as it is.

    python -m tests.golden.generate                          all answers, to the same cases: ten minutes
    python -m tests.golden.generate --layout 'dualpipe*'     answers of some layouts
    python -m tests.golden.generate --with-experts           answers of models with experts
    python -m tests.golden.generate --intervals              answers with an interval, and searches
    python -m tests.golden.generate --memory                 the memory of all cases, without times: a minute
    python -m tests.golden.generate --new-cases              also the cases, from layouts.json and models.json

After an error is fixed, the answers are written again, and the commit states the size of the difference.
"""

import argparse
import time
from fnmatch import fnmatch
from typing import Any

from kernelcast.runtime import load_model
from tests.golden import files
from tests.golden.answers import answer_to, memory_of, searched
from tests.golden.design import write_cases
from tests.golden.files import (
    DEVICES,
    Case,
    golden_cases,
    golden_models,
    quick_cases,
    read,
    reduced,
    rounded,
    write,
)

_OF_SIZES = ("layer_counts", "parameters", "model_flops", "memory", "calls")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden.generate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--new-cases", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--layout", metavar="PATTERN", help="keep the answers of other layouts")
    parser.add_argument("--with-experts", action="store_true", help="keep the answers of other models")
    parser.add_argument("--intervals", action="store_true", help="keep the answers without an interval")
    asked = parser.parse_args()
    if asked.memory:
        _write_memory()
        return
    if asked.new_cases:
        write_cases()
        for cached in (files.golden_models, files.golden_cases, files.quick_cases):
            cached.cache_clear()
    pattern = asked.layout or "*"
    # A case that is no more is not kept.
    kept = {
        case.key
        for model, cases in golden_cases().items()
        for case in cases
        if (asked.layout and not fnmatch(case.layout, pattern))
        or (asked.with_experts and not _has_experts(model))
        or (asked.intervals and not case.fields.get("interval"))
    }
    sizes = {key: size for key, size in read("sizes.json.xz").items() if key in kept} if kept else {}
    operators = read("operators.json.xz") if kept else {}
    total = 0
    for device in DEVICES:
        old = read(f"{device}.json.xz") if kept else {}
        calls = operators.get(device, {})
        operators[device] = {key: calls[key] for key in quick_cases()[device] & kept & calls.keys()}
        total += _write_device(
            device, {key: old[key] for key in old if key in kept}, sizes, operators[device]
        )
    if asked.intervals or not kept:
        answers = {one["name"]: rounded(searched(DEVICES[0], one)) for one in read("searches.json")}
        total += write("search_answers.json.xz", answers)
    total += write("sizes.json.xz", sizes)
    total += write("operators.json.xz", {name: dict(sorted(of.items())) for name, of in operators.items()})
    print(f"{total} bytes in all")


def _has_experts(model: str) -> bool:
    fields = golden_models()[model]
    return bool(load_model(model).experts if fields is None else fields.get("experts"))


def _write_memory() -> None:
    """Write the memory of all answers again."""
    sizes, cases = read("sizes.json.xz"), [case for of in golden_cases().values() for case in of]
    shared, changed, largest = {}, 0, 0.0
    for device in DEVICES:
        answers = read(f"{device}.json.xz")
        for case in cases:
            answer = answers[case.key]
            if "refused" in answer:
                continue
            old = answer.get("memory", sizes[case.key]["memory"])
            new = rounded(memory_of(device, case))
            totals = [[sum(parts) for parts in zip(*of.values(), strict=True)] for of in (old, new)]
            changed += new != old
            largest = max(largest, *(abs(b / a - 1) for a, b in zip(*totals, strict=True)))
            answer.pop("memory", None)
            if shared.setdefault(case.key, new) != new:
                answer["memory"] = new
        write(f"{device}.json.xz", answers)
    write("sizes.json.xz", {key: one | {"memory": shared[key]} for key, one in sizes.items()})
    print(f"{changed} answers changed, the total of a stage by {largest:.1%} at most")


def _write_device(
    device: str, answers: dict[str, Any], sizes: dict[str, Any], operators: dict[str, Any]
) -> int:
    """Add the answers that are not kept, write the device's file, and return its size."""
    begin, cases = time.perf_counter(), [case for of in golden_cases().values() for case in of]
    asked = [case for case in cases if case.key not in answers]
    for case in asked:
        answers[case.key] = _answer(device, case, sizes, operators)
    size = write(f"{device}.json.xz", {case.key: answers[case.key] for case in cases})
    refused = sum("refused" in answer for answer in answers.values())
    seconds = time.perf_counter() - begin
    print(
        f"{device}: {len(asked)} of {len(cases)} cases asked, {refused} refused, {size} bytes, {seconds:.0f} s"
    )
    return size


def _answer(device: str, case: Case, sizes: dict[str, Any], operators: dict[str, Any]) -> dict[str, Any]:
    """An answer without what is in `sizes`, which comes from the first device."""
    found, calls = answer_to(device, case)
    answer: dict[str, Any] = rounded(reduced(device, found))
    if case.key in quick_cases()[device]:
        operators[case.key] = calls
    if "refused" in answer:
        return answer
    shared = sizes.setdefault(case.key, {name: answer[name] for name in _OF_SIZES})
    return {name: value for name, value in answer.items() if name not in shared or shared[name] != value}


if __name__ == "__main__":
    main()
