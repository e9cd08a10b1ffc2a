"""Source tables in this folder: which of their samples count (tables.toml), and the import of these."""

import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kernelcast.runtime.record import WITH_DEFAULT, Record, read_record
from kernelcast.store import Database, Sample
from kernelcast.store.importers import (
    Parsed,
    read_aiconfigurator,
    read_estimate_train_time,
    read_liger,
    read_simumax,
    store_parsed,
)

ROOT = Path(__file__).resolve().parent
COMMITS = {"aiconfigurator": "095f58a51", "simumax": "4dcaae51"}
"""Commits that tables were taken from, where they were recorded (NOTICE.md)."""
_READERS = {
    "estimate-train-time": read_estimate_train_time,
    "aiconfigurator": read_aiconfigurator,
    "simumax": read_simumax,
    "liger-kernel": read_liger,
}
"""By the folder of a repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables(Record):
    """Files of one repository, and which of their samples count.

    `variants` by operator, or by operator and direction ("gemm weight_gradient"); all of those not named. `data` says
    whose rows they are where the hardware's own line (hardware.toml) does not. `called` are operators that count as
    another one. Of more than `most_rows` of an operator, random ones count, whose first feature is at least
    `FEWEST_ROWS_OF_A_PRODUCT`. `faster` are tables of other kernels on the same chip: products of the same shape that
    took less time there, each table without its casts (`casts`), take the place of these.
    """

    OPTIONAL: ClassVar[tuple[str, ...]] = WITH_DEFAULT
    paths: tuple[str, ...]
    dtype: str = ""
    variants: Mapping[str, str] = field(default_factory=dict)
    data: str | None = None
    called: Mapping[str, str] = field(default_factory=dict)
    most_rows: int = 0
    faster: tuple[str, ...] = ()
    casts: tuple[str, ...] = ()

    def read(self, *, least_share: float = 0.25) -> Parsed:
        """The samples that count; of a product's time at least `least_share` stays when its cast is taken off."""
        repository = self.paths[0].partition("/")[0]
        commit = {"commit": COMMITS[repository]} if repository in COMMITS else {}
        parsed = _READERS[repository]([ROOT / path for path in self.paths], **commit)
        if repository == "aiconfigurator":
            without_casts(parsed, in_sglang="/sglang/" in self.paths[0], least_share=least_share)
        if self.faster:
            self._take_faster(parsed)
        parsed.runs = [replace(batch, samples=self._chosen(batch.samples)) for batch in parsed.runs]
        parsed.runs = [batch for batch in parsed.runs if batch.samples]
        return parsed

    def _take_faster(self, parsed: Parsed) -> None:
        """Replace times of products by shorter ones of `faster`."""
        least: dict[tuple[str, tuple[int, ...]], float] = {}
        for path in self.faster:
            for batch in Tables(paths=(path, *self.casts), dtype=self.dtype).read(least_share=0.5).runs:
                for one in batch.samples:
                    if one.time_us is not None:
                        key = one.operator, one.vector
                        least[key] = min(one.time_us, least.get(key, one.time_us))

        def fastest(one: Sample) -> Sample:
            other_us = least.get((one.operator, one.vector), np.inf)
            is_slower = one.dtype == self.dtype and one.time_us is not None and other_us < one.time_us
            return replace(one, time_us=other_us) if is_slower else one

        parsed.runs = [replace(batch, samples=list(map(fastest, batch.samples))) for batch in parsed.runs]

    def _chosen(self, samples: Sequence[Sample]) -> list[Sample]:
        found = [
            replace(one, operator=self.called.get(one.operator, one.operator))
            for one in samples
            if self._is_selected(one)
        ]
        if not self.most_rows:
            return found
        by_operator: dict[str, list[Sample]] = {}
        for one in found:
            if one.vector[0] >= FEWEST_ROWS_OF_A_PRODUCT or not one.operator.startswith("gemm"):
                by_operator.setdefault(one.operator, []).append(one)
        order = np.random.default_rng(0)
        return [
            own[row]
            for own in by_operator.values()
            for row in sorted(order.permutation(len(own))[: self.most_rows].tolist())
        ]

    def _is_selected(self, sample: Sample) -> bool:
        of_operator = self.variants.get(sample.operator, sample.variant)
        variant = self.variants.get(f"{sample.operator} {sample.direction}", of_operator)
        return sample.dtype in (self.dtype or sample.dtype,) and sample.variant == variant


def tables_for(purpose: str) -> dict[str, Any]:
    """The tables of a section of tables.toml by name (of hardware, of a publisher, of a rate); lists in `formats`."""
    rows = tomllib.loads((ROOT / "tables.toml").read_text(encoding="utf-8"))[purpose]
    return {
        name: tuple(read_record(Tables, one) for one in row)
        if isinstance(row, list)
        else read_record(Tables, row)
        for name, row in rows.items()
    }


def database_of(tables: Tables, path: Path) -> Database:
    database = Database.open(path, create=True)
    store_parsed(database, tables.read())
    return database


def write_or_check(path: Path, text: str) -> None:
    """Write a table that ships; with the argument `--check` exit with an error where the one there differs."""
    if sys.argv[1:] != ["--check"]:
        path.write_text(text, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != text:
        sys.exit(f"{path}: differs from the rebuilt table")


FEWEST_ROWS_OF_A_PRODUCT = 16
"""Fewer rows are generated tokens, which training has not."""
_PASSES = {
    "gemm_float8_tensor": (1.0, 1.0),
    "gemm_float8_row": (0.0, 1.0),
    "gemm_float8_block": (0.0, 1.0),
    "gemm_float4_block": (0.0, 1.4),
}
"""Passes over the activations inside the time of a product in 8 or 4 bit, as multiples of `compute_scale` and of
`scale_matrix`. NVFP4's: the part of its times that does not grow with n, over `scale_matrix`, in the median."""
_SGLANG_NVFP4_PASSES = 0.0, 1.0
"""The same of SGLang's, whose cast is FlashInfer's."""


def without_casts(parsed: Parsed, *, in_sglang: bool, least_share: float) -> None:
    """Take the cast of the activations, as it was measured by itself, off the times of products in 8 and 4 bit."""
    samples = [one for batch in parsed.runs for one in batch.samples]
    casts: list[Callable[[float], float]] = []
    for variant in ("compute_scale", "scale_matrix"):
        own = sorted((prod(one.vector), one.time_us) for one in samples if one.variant == variant)
        if not own:
            return
        entries, times_us = (np.log(column) for column in np.array(own, float).T)
        casts.append(lambda size, x=entries, y=times_us: float(np.exp(np.interp(np.log(size), x, y))))

    def alone(one: Sample) -> Sample:
        passes = _PASSES.get(one.operator)
        if in_sglang and one.operator == "gemm_float4_block":
            passes = _SGLANG_NVFP4_PASSES
        if passes is None or one.time_us is None:
            return one
        cast_us = sum(times * cast(prod(one.vector[:2])) for times, cast in zip(passes, casts, strict=True))
        return replace(one, time_us=max(one.time_us - cast_us, least_share * one.time_us))

    parsed.runs = [replace(batch, samples=[alone(one) for one in batch.samples]) for batch in parsed.runs]
