"""Compare the code as it is with the golden files, and print every difference as tables.

    python -m tests.golden.compare --quick                    each option and model once: seconds
    python -m tests.golden.compare --model llama-3-8b         all layouts of a model
    python -m tests.golden.compare                            everything: minutes
    python -m tests.golden.compare --quick --ignore 'interval_s*' --ignore 'warnings.*'
    python -m tests.golden.compare --case 'gpt-20b: zb-v' --device h100-sxm --lines 999

Exit status 1 where anything differs. With --quick, calls that are missing (-) or new (+) are listed too.
"""

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.golden.answers import answer_to, model_named
from tests.golden.checked import case_differences, search_differences
from tests.golden.differences import Difference, relative_text
from tests.golden.files import DEVICES, Case, golden_cases, golden_operators, quick_cases, read

_MOST_CALLS = 12
_OF_MODEL = (
    *(
        "experts",
        "shared_expert_size",
        "dense_layers",
        "kv_rank",
        "query_rank",
        "parallel_residual",
        "qk_norm",
    ),
    *("post_norms", "sliding_window", "attention_sinks", "tied_embeddings", "learned_positions"),
    *("extra_predictions", "unrotated_interval"),
)
_KINDS = ("norm", "activation", "attention", "biases")


def main() -> int:
    asked = _arguments()
    begin, found, tried = time.process_time(), [], []
    for device, case in _cases(asked):
        tried.append((device, case))
        found += [one for one in case_differences(device, case) if not _is_ignored(one, asked.ignore)]
    selects = asked.quick or asked.model or asked.layout or asked.case or asked.device
    searches = read("searches.json") if asked.search or not selects else []
    for question in searches:
        found += [one for one in search_differences(question) if not _is_ignored(one, asked.ignore)]
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    if found:
        _show(console, found, tried, asked.lines)
    wrong = len({(one.device, one.case) for one in found})
    console.print(
        f"{len(tried)} cases, {len(searches)} searches: {wrong} differ in {len(found)} numbers "
        f"({time.process_time() - begin:.1f} s of CPU)"
    )
    return 1 if found else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="only the cases that reach each option once")
    parser.add_argument("--device", choices=DEVICES)
    parser.add_argument("--model", help="a model's name, or a pattern such as '*deepseek*'")
    parser.add_argument("--layout", help="a layout's name, or a pattern such as '8 bit*'")
    parser.add_argument("--case", help="one case as the tables name it: 'MODEL: LAYOUT'")
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="FIELD", help="a pattern such as 'warnings.*'"
    )
    parser.add_argument(
        "--search", action="store_true", help="the searches too, as where no case is selected"
    )
    parser.add_argument("--lines", type=int, default=40, help="differences to list")
    return parser.parse_args()


def _cases(asked: argparse.Namespace) -> Iterator[tuple[str, Case]]:
    for device in [asked.device] if asked.device else DEVICES:
        for model, cases in golden_cases().items():
            for case in cases:
                if (
                    (not asked.quick or case.key in quick_cases()[device])
                    and fnmatch(model, asked.model or "*")
                    and fnmatch(case.layout, asked.layout or "*")
                    and case.key == (asked.case or case.key)
                ):
                    yield device, case


def _is_ignored(one: Difference, patterns: Iterable[str]) -> bool:
    return any(fnmatch(one.field, pattern) for pattern in patterns)


def _show(console: Console, found: list[Difference], tried: list[tuple[str, Case]], lines: int) -> None:
    found.sort(key=lambda one: (one.field != "refused", one.kind == "calls", -one.size))
    table = Table("device", "case", "field", "golden", "now", "relative", title="Largest differences")
    # Of a field that differs on many stages the largest one.
    largest = list({(one.device, one.case, one.kind): one for one in reversed(found)}.values())[::-1]
    for one in largest[:lines]:
        table.add_row(one.device, one.case, one.field, str(one.old), str(one.new), relative_text(one.size))
    console.print(table)
    if len(largest) > lines:
        console.print(f"… and {len(largest) - lines} more (--lines)")
    _show_fields(console, found)
    wrong = {(one.device, one.case) for one in found}
    _show_options(console, wrong, tried)
    _show_calls(console, wrong, tried)


def _show_fields(console: Console, found: list[Difference]) -> None:
    table = Table("field", "numbers", "cases", "largest", "smallest", title="By field")
    of_kind = defaultdict(list)
    for one in found:
        of_kind[one.kind].append(one)
    for kind, ones in sorted(of_kind.items(), key=lambda item: -len(item[1])):
        sizes = [one.size for one in ones]
        cases = {(one.device, one.case) for one in ones}
        table.add_row(
            kind, str(len(ones)), str(len(cases)), relative_text(max(sizes)), relative_text(min(sizes))
        )
    console.print(table)


def _show_options(console: Console, wrong: set[tuple[str, str]], tried: list[tuple[str, Case]]) -> None:
    """Options that differing cases have more often than others."""
    everywhere: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for device, case in tried:
        options = [f"{name} {value}" for name, value in case.fields.items() if len(str(value)) < 40]
        model = model_named(case.model)
        options += [f"model {case.model}", device]
        options += [f"model with {name}" for name in _OF_MODEL if getattr(model, name, None)]
        options += [f"model with {name} {getattr(model, name, None)}" for name in _KINDS]
        everywhere.update(options)
        if (device, case.key) in wrong:
            there.update(options)
    usual = len(wrong) / max(1, len(tried))
    # First what covers most differing cases and few others.
    ranked = sorted(there, key=lambda name: -there[name] / (everywhere[name] + len(wrong)))
    table = Table("option", "differ", "of", title="Options that differing cases share")
    for name in [one for one in ranked if there[one] / everywhere[one] > 1.2 * usual][:12]:
        table.add_row(name, str(there[name]), str(everywhere[name]))
    if table.row_count:
        console.print(table)


def _show_calls(console: Console, wrong: set[tuple[str, str]], tried: list[tuple[str, Case]]) -> None:
    """Calls that are missing or new, where the golden files have them."""
    shown = 0
    for device, case in tried:
        golden: list[Any] = golden_operators()[device].get(case.key, [])
        if (device, case.key) not in wrong or not golden or shown == 3:
            continue
        now = {str(row) for row in answer_to(device, case)[1]}
        lines = [f"- {row}" for row in map(str, golden) if row not in now]
        lines += [f"+ {row}" for row in sorted(now - set(map(str, golden)))]
        if lines:
            shown += 1
            console.print(
                f"\n{device}, {case.key}: component, operator, role, direction, vector, count, stages"
            )
            console.print("\n".join(lines[:_MOST_CALLS]), markup=False)
            if len(lines) > _MOST_CALLS:
                console.print(f"… and {len(lines) - _MOST_CALLS} more")


if __name__ == "__main__":
    sys.exit(main())
