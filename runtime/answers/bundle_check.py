"""Is a bundle sound? Beyond reading it: every model loads, and answers at every corner of what it was trained on."""

import os
from collections.abc import Iterator
from itertools import product

from kernelcast.runtime.answers.predictor import Predictor, Vector
from kernelcast.runtime.bundle.file import Bundle, read_bundle
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import DataError

SHORTEST_US = 1e-3
"""A few clock cycles of any device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleCheck:
    """What was checked of a sound bundle: models that load, workloads that they answered."""

    bundle: Bundle
    models: int
    corners: int


def check_bundle(path: str | os.PathLike[str]) -> BundleCheck:
    """Check digests, manifest and bytes; ask each model at the corners of its range, collectives in every measured
    layout: answers are 1 ns to 100 years, within their interval. DataError names the bundle and the regressor.
    """
    bundle = read_bundle(path)
    predictor = Predictor(bundle)
    predictor.load()
    corners = 0
    for entry in bundle.manifest.regressors:
        vectors = list(dict.fromkeys(_corners(entry)))
        level = predictor.at(entry.processes_per_node)
        answers = level.answers_of(entry.operator, entry.direction, vectors)
        vector, (time_us, *_) = min(answers.items(), key=lambda answer: answer[1])
        if time_us < SHORTEST_US:
            raise DataError(
                f"bundle {bundle.path}: {entry.operator} ({entry.direction}) answers {time_us:g} µs for workload "
                f"{list(vector)}, expected at least 1 ns"
            )
        corners += len(vectors)
    return BundleCheck(bundle=bundle, models=len(bundle.manifest.regressors), corners=corners)


def _corners(entry: RegressorEntry) -> Iterator[Vector]:
    yield from product(*entry.training_range)
    for layout in entry.layouts:
        # The layout's two numbers are a collective's last features.
        for sizes in product(*entry.training_range[:-2]):
            yield (*sizes, *map(float, layout))
