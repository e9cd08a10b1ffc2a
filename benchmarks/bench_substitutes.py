"""How far off substitutes are: every operator of some bundles answered as if it had not been measured.

Prints, per bundle, operator and direction, what would answer in its
place and the quantiles of |log(substitute / own)| over its trained range; last, per kind of substitute, the quantile
that the half-widths in runtime/answers/sources.py are made of. No network, no GPU, seconds.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from kernelcast.benchmarks.harness import Bench, script
from kernelcast.runtime.answers.predictor import Predictor
from kernelcast.runtime.answers.sources import Source, source_of
from kernelcast.runtime.bundle.file import Bundle, read_bundle
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.operators import OPERATORS, Direction, Key, Vector

_WORKLOADS = 200
_LEVEL = 0.9


def _substitutes(key: tuple[str, object], bundle: Bundle) -> Iterator[Source]:
    """What would answer without the operator, and without this direction of it."""
    name = key[0]
    seen = set()
    for left in (
        {one for one in bundle.entries if one[0] != name},
        {one for one in bundle.entries if one != key},
    ):
        source = source_of(key, left)  # type: ignore[arg-type]  # a key of the bundle
        if source is not None and source.answered_by not in seen:
            seen.add(source.answered_by)
            yield source


def _sums(bundle: Bundle) -> Iterator[tuple[Key, Sequence[Sequence[int]]]]:
    """Measured sums whose parts are all forward products of other features, with their orders."""
    for key in sorted(bundle.entries):
        row = OPERATORS[key[0]]
        parts = row.sums.get(key[1], ())
        if parts and (key[0], Direction.FORWARD) in bundle.entries and set(parts) <= set(row.same_product):
            features = list(row.features)
            yield key, [[features.index(name) for name in row.same_product[part]] for part in parts]


def _errors_of_products(
    predictor: Predictor, own: RegressorEntry, orders: Sequence[Sequence[int]]
) -> Iterator[float]:
    for vector in _workloads(own):
        time_us = predictor.answers_of(*own.key, [vector])[vector][0]
        asked = [tuple(vector[feature] for feature in order) for order in orders]
        answers = predictor.answers_of(own.operator, Direction.FORWARD, asked)
        yield abs(math.log(sum(answers[one][0] for one in asked) / time_us))


def _errors(predictor: Predictor, bundle: Bundle, source: Source) -> Iterator[float]:
    own, other = bundle.entries[source.key], bundle.entries[source.answered_by]
    for vector in _workloads(own):
        asked, factor = source.asked(vector, other)
        time_us = predictor.answers_of(*source.key, [vector])[vector][0]
        instead_us = factor * predictor.answers_of(*source.answered_by, [asked])[asked][0]
        yield abs(math.log(instead_us / time_us))


def _workloads(entry: RegressorEntry) -> Iterator[Vector]:
    """Random workloads of the trained range, even in the logarithm; collectives in their layouts."""
    random = Random(f"{entry.operator} {entry.direction}")
    sizes = entry.training_range[:-2] if entry.layouts else entry.training_range
    features = list(entry.features)
    for _ in range(_WORKLOADS):
        vector = [
            round(math.exp(random.uniform(math.log(max(low, 1)), math.log(max(high, 1)))))
            for low, high in sizes
        ]
        if entry.layouts:
            vector += random.choice(entry.layouts)
        if entry.equal_features:
            one, partner = (features.index(name) for name in entry.equal_features)
            vector[one] = vector[partner]
        yield tuple(vector)


def _kind(source: Source) -> str:
    if source.is_part:
        return "part"
    if source.is_other_pass:
        return "other pass"
    if source.order:
        return "product"
    if source.asks is not None:
        return "equal work"
    return "alike" if source.alike else "collective"


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _times(log_error: float) -> str:
    return f"{math.exp(log_error):.2f}×"


@script(options={"bundles": {"nargs": "+"}})
def main(bench: Bench) -> None:
    kinds: dict[str, list[float]] = defaultdict(list)
    print(f"{'bundle':16} {'operator':34} {'answered by':40} {'kind':10} median  {_LEVEL:.0%}")
    for path in bench.given.bundles:
        bundle = read_bundle(path)
        predictor = Predictor(bundle)
        rows: list[tuple[Key, str, str, list[float]]] = []
        for key in sorted(bundle.entries):
            for source in _substitutes(key, bundle):
                by = f"{source.answered_by[0]} ({source.answered_by[1]})"
                rows.append((key, by, _kind(source), sorted(_errors(predictor, bundle, source))))
        for key, parts in _sums(bundle):
            errors = sorted(_errors_of_products(predictor, bundle.entries[key], parts))
            rows.append((key, "forward products", "product", errors))
        for (operator, direction), by, kind, errors in (row for row in rows if row[-1]):
            kinds[kind].append(_quantile(errors, _LEVEL))
            print(
                f"{Path(path).stem:16.16} {f'{operator} ({direction})':34} {by:40} {kind:10} "
                f"{_times(_quantile(errors, 0.5)):>6} {_times(_quantile(errors, _LEVEL)):>5}"
            )
    print("\nOver operators and bundles, the median and the largest of those 90 %:")
    for kind, found in sorted(kinds.items()):
        print(
            f"  {kind:10} {_times(_quantile(sorted(found), 0.5)):>6} {_times(max(found)):>6}  ({len(found)} cases)"
        )
