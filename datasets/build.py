"""Make what ships from what stands in this folder: `make datasets`.

    python datasets/build.py [NAME...]            # bundles of the named hardware, or of all, for runtime/shipped
    python datasets/build.py --check NAME...      # makes them in a temporary folder, and compares
    python datasets/build.py --formats NAME...    # rebuilds only what joins their bundle (FORMATS)
    python datasets/build.py --digests            # writes SHA256SUMS of the source tables and of the bundles

Needs no network and no GPU; up to ten minutes for each bundle. The same tables, code and libraries give the same bytes.
"""

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from kernelcast.runtime.bundle.file import Bundle, read_bundle, write_bundle
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.catalogue.hardware import Hardware, hardware_named
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.operators.float8 import FLOAT4, FLOAT8
from kernelcast.runtime.shipped import FABRICS, SUMS
from kernelcast.store import Database, Sample
from kernelcast.store.importers import (
    Parsed,
    read_aiconfigurator,
    read_estimate_train_time,
    read_liger,
    read_simumax,
    store_parsed,
)
from kernelcast.train.fit import train_bundle

ROOT = Path(__file__).resolve().parent
SOURCE_SUMS = ROOT / "SHA256SUMS"
COMMITS = {"aiconfigurator": "095f58a51", "simumax": "4dcaae51"}
"""Commits that tables were taken from, where they were recorded (NOTICE.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Files of one repository, and which of their samples count.

    `variants` by operator, or by operator and direction; all of those not named. `data` says whose rows they are where
    the hardware's own line (hardware.toml) does not. `called` are operators that count as another one. Of more than
    `most_rows` of an operator, random ones count, whose first feature is at least `FEWEST_ROWS_OF_A_PRODUCT`.
    """

    paths: tuple[str, ...]
    dtype: str = ""
    variants: Mapping[str | tuple[str, str], str] = field(default_factory=dict)
    data: str | None = None
    called: Mapping[str, str] = field(default_factory=dict)
    most_rows: int = 0

    def read(self) -> Parsed:
        """Import them."""
        repository = self.paths[0].partition("/")[0]
        paths = [ROOT / path for path in self.paths]
        commit = COMMITS.get(repository, "")
        if repository == "estimate-train-time":
            parsed = read_estimate_train_time(paths)
        elif repository == "aiconfigurator":
            parsed = read_aiconfigurator(paths, commit=commit)
        elif repository == "simumax":
            parsed = read_simumax(paths, commit=commit)
        else:
            parsed = read_liger(paths)
        if repository == "aiconfigurator":
            without_casts(parsed)
        parsed.runs = [replace(batch, samples=self._chosen(batch.samples)) for batch in parsed.runs]
        parsed.runs = [batch for batch in parsed.runs if batch.samples]
        return parsed

    def _chosen(self, samples: Sequence[Sample]) -> list[Sample]:
        found = [
            replace(one, operator=self.called.get(one.operator, one.operator))
            for one in samples
            if self._counts(one)
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

    def _counts(self, sample: Sample) -> bool:
        of_operator = self.variants.get(sample.operator, sample.variant)
        variant = self.variants.get((sample.operator, str(sample.direction)), of_operator)
        return sample.dtype in (self.dtype or sample.dtype,) and sample.variant == variant


_A, _MOST_ROWS = "aiconfigurator", 6_000
_OTHERS = (
    "quantize/trtllm/1.3.0rc20/scale_matrix_perf.parquet",
    "linear_attention/trtllm/1.3.0rc20/gdn_perf.parquet",
    "linear_attention/trtllm/1.3.0rc20/mamba2_perf.parquet",
)


def _of_trtllm(device: str, version: str) -> Tables:
    """Everything in 16 bit that TensorRT-LLM's tables have of a Blackwell."""
    return Tables(
        paths=(
            f"{_A}/{device}/gemm/trtllm/{version}/gemm_perf.parquet",
            f"{_A}/{device}/attention/trtllm/1.3.0rc20/context_attention_perf.parquet",
            *(f"{_A}/{device}/{path}" for path in _OTHERS),
        ),
        dtype="bfloat16",
        variants={"flash_attention": "torch_flow", "float8_cast": "scale_matrix"},
        most_rows=_MOST_ROWS,
    )


TABLES = {
    "a100-sxm": Tables(paths=("estimate-train-time/Perlmutter",)),
    "gh200": Tables(paths=("estimate-train-time/Vista",)),
    "h100-sxm": Tables(
        paths=(
            f"{_A}/h100_sxm/gemm/sglang/0.5.14/gemm_perf.parquet",
            f"{_A}/h100_sxm/attention/vllm/0.19.0/context_attention_perf.parquet",
        ),
        dtype="bfloat16",
    ),
    "h200-sxm": Tables(paths=(f"{_A}/h200_sxm/gemm/vllm/0.22.0/gemm_perf.parquet",), dtype="bfloat16"),
    "b200-sxm": Tables(
        paths=(
            f"{_A}/b200_sxm/gemm/sglang/0.5.14/gemm_perf.parquet",
            f"{_A}/b200_sxm/attention/sglang/0.5.14/context_attention_perf.parquet",
        ),
        dtype="bfloat16",
        variants={"flash_attention": "trtllm_mha"},
    ),
    "a100-pcie": Tables(paths=("simumax/a100_pcie.json",), dtype="bfloat16"),
    "gb200": _of_trtllm("gb200", "1.3.0rc17"),
    "b300-sxm": _of_trtllm("b300_sxm", "1.3.0rc20"),
    "gb300": _of_trtllm("gb300", "1.3.0rc20"),
}
"""What each hardware's own operators are trained on."""

REFINED = {
    "b200-sxm": Tables(
        paths=("simumax/b200_bf16_ceperm.json",),
        dtype="bfloat16",
        variants={
            "flash_attention": "contiguous QKV",
            ("gemm", "weight_gradient"): "fp32 gradients",
            ("grouped_gemm", "weight_gradient"): "fp32 gradients",
        },
        data="B200, bf16, published 2026: matrix products in three layouts and attention with its backward, measured "
        "in a training stack (TransformerEngine 2.11), few shapes: MooreThreads/SimuMax, Apache-2.0",
    ),
}
"""Few rows measured inside a training stack: they correct what the other tables say of the same device."""

PRIORS = {"a100-pcie": "a100-sxm"}
"""Hardware with few rows, and whose operators they correct."""


def database_of(tables: Tables, path: Path) -> Database:
    """A new database with what the tables hold."""
    database = Database.open(path, create=True)
    store_parsed(database, tables.read())
    return database


def build(name: str, output: Path, *, fabrics: Path | None = None) -> Path:
    """Import, train, and keep the operators that compute.

    Measured collectives become a fabric of their own, in the folder `fabrics` or next to the bundle. Unfused operators
    become a bundle of their own next to it.
    """
    with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
        trained = Path(folder) / "trained.kcast"
        prior = read_bundle(bundle_file(hardware_named(PRIORS[name]))) if name in PRIORS else None
        with database_of(TABLES[name], Path(folder) / "source.db") as database:
            train_bundle(database, trained, prior=prior, jobs=0, on_progress=_progress(name))
        if name in REFINED:
            earlier, trained = read_bundle(trained), Path(folder) / "refined.kcast"
            with database_of(REFINED[name], Path(folder) / "few.db") as database:
                train_bundle(database, trained, prior=earlier, jobs=0, on_progress=_progress(name))
            return with_formats(
                name,
                pack(
                    _stated(read_bundle(trained), earlier, REFINED[name].data), output, is_shipped, fabric=()
                ),
            )
        found = read_bundle(trained)
        if name in MEASURED_FABRICS:
            measured = (fabrics or output.parent) / f"{MEASURED_FABRICS[name]}.kcast"
            pack(found, measured, is_collective)
            pack(found, output.with_name(f"{name}-gpt-neox.kcast"), is_unfused, fabric=())
        return with_formats(name, pack(found, output, is_shipped, fabric=()))


def with_formats(name: str, path: Path) -> Path:
    """Train what joins a bundle (`FORMATS`), and write it into the bundle at `path`."""
    for tables in FORMATS.get(name, ()):
        bundle = read_bundle(path)
        with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
            trained = Path(folder) / "format.kcast"
            with database_of(tables, Path(folder) / "format.db") as database:
                train_bundle(
                    database,
                    trained,
                    statistic=bundle.manifest.statistic,
                    earlier=bundle,
                    jobs=0,
                    on_progress=_progress(f"{name} in {tables.dtype}"),
                )
            join(path, read_bundle(trained), tables.data)
    return path


def join(path: Path, added: Bundle, data: str | None) -> Path:
    """Write the operators of `added` into the bundle at `path`, in the place of its own; operators of one element type
    all come from it.
    """
    bundle = read_bundle(path)
    manifest, entries = bundle.manifest, added.manifest.regressors
    names, types = (
        {entry.operator for entry in entries},
        {OPERATORS[entry.operator].dtype for entry in entries},
    )
    kept = tuple(
        entry
        for entry in manifest.regressors
        if entry.operator not in names and OPERATORS[entry.operator].dtype not in types - {""}
    )
    own = tuple(replace(entry, data=data) for entry in entries)
    digests = "".join(sorted(entry.table_digest for entry in (*kept, *own)))
    manifest = replace(
        manifest,
        software=tuple(dict.fromkeys((*manifest.software, *added.manifest.software))),
        dataset_digest=sha256(digests.encode()).hexdigest()[: len(manifest.dataset_digest)],
        regressors=(*kept, *own),
    )
    files = {entry.file: bundle.files[entry.file] for entry in kept}
    write_bundle(path, manifest, files | {entry.file: added.files[entry.file] for entry in own})
    return path


def _stated(refined: Bundle, earlier: Bundle, data: str | None) -> Bundle:
    """The same, with whose rows those regressors rest on that `earlier` does not have."""
    entries = [
        entry
        if entry.key in earlier.entries and entry.table_digest == earlier.entries[entry.key].table_digest
        else replace(entry, data=data)
        for entry in refined.manifest.regressors
    ]
    return replace(refined, manifest=replace(refined.manifest, regressors=tuple(entries)))


UNFUSED = frozenset({"rms_norm", "rope"})
"""Measured in GPT-NeoX as several kernels each: 3 to 10 times as long as the fused ones that frameworks run today (see
`make datasets`, rows of Liger-Kernel). What moves as much memory answers instead."""


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
_LEAST_SHARE = 0.25


def without_casts(parsed: Parsed) -> None:
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
        if passes is None or one.time_us is None:
            return one
        cast_us = sum(times * cast(prod(one.vector[:2])) for times, cast in zip(passes, casts, strict=True))
        return replace(one, time_us=max(one.time_us - cast_us, _LEAST_SHARE * one.time_us))

    parsed.runs = [replace(batch, samples=[alone(one) for one in batch.samples]) for batch in parsed.runs]


_BY = "published 2026, forward, in bursts: ai-dynamo/aiconfigurator, Apache-2.0"


def _products(device: str, title: str, dtype: str, formats: str, *tables: str, **others: Any) -> Tables:
    """Products in 8 or 4 bit without their casts."""
    casts = [f"quantize/trtllm/1.3.0rc20/{one}_perf.parquet" for one in ("computescale", "scale_matrix")]
    return Tables(
        paths=tuple(f"{_A}/{device}/{table}" for table in (*tables, *casts)),
        dtype=dtype,
        variants=others.pop("variants", {}),
        data=f"{title}, {formats}, {_BY}; their casts taken off",
        most_rows=_MOST_ROWS,
        **others,
    )


def _blackwell(device: str, title: str, version: str) -> tuple[Tables, Tables]:
    table = f"gemm/trtllm/{version}/gemm_perf.parquet"
    only = {"gemm_float8_block": "none"}
    return (
        _products(device, title, FLOAT8, "fp8 products (TensorRT-LLM, cuBLAS)", table, variants=only),
        _products(device, title, FLOAT4, "NVFP4 products (TensorRT-LLM)", table),
    )


def _hopper(device: str, title: str) -> tuple[Tables, Tables]:
    return (
        _others(device, title),
        _products(
            device,
            title,
            FLOAT8,
            "fp8 products (SGLang 0.5.14: DeepGEMM's, and those with scales per row)",
            "gemm/sglang/0.5.14/gemm_perf.parquet",
            called={"gemm_float8_block": "gemm_float8_tensor"},
        ),
    )


def _others(device: str, title: str) -> Tables:
    """Casts, and the kernels of linear attention."""
    return Tables(
        paths=tuple(f"{_A}/{device}/{path}" for path in _OTHERS),
        dtype="bfloat16",
        variants={"float8_cast": "scale_matrix"},
        data=f"{title}, casts to 8 bit, convolution and scan of linear attention (TensorRT-LLM), {_BY}",
        most_rows=_MOST_ROWS,
    )


FORMATS = {
    "h100-sxm": _hopper("h100_sxm", "H100 SXM"),
    "h200-sxm": _hopper("h200_sxm", "H200 SXM"),
    "b200-sxm": (_others("b200_sxm", "B200 SXM"), *_blackwell("b200_sxm", "B200 SXM", "1.3.0rc20")),
    "gb200": _blackwell("gb200", "GB200", "1.3.0rc17"),
    "b300-sxm": _blackwell("b300_sxm", "B300 SXM", "1.3.0rc20"),
    "gb300": _blackwell("gb300", "GB300", "1.3.0rc20"),
}
"""What joins a bundle: each trained by itself, as a database of one element type. No table has cuBLAS's products in
8 bit on Hopper; DeepGEMM's products answer, which hold their rate in products that last, as CUTLASS's do not."""

MEASURED_FABRICS = {"a100-sxm": "perlmutter-measured", "gh200": "vista-measured"}
"""Fabrics whose collectives were measured together with a device's operators."""


def pack(trained: Bundle, output: Path, which: Callable[[RegressorEntry], object], **changes: Any) -> Path:
    """Write some of the operators of a bundle, its manifest with `changes`."""
    kept = tuple(filter(which, trained.manifest.regressors))
    manifest = replace(trained.manifest, regressors=kept, **changes)
    write_bundle(output, manifest, {entry.file: trained.files[entry.file] for entry in kept})
    return output


def is_collective(entry: RegressorEntry) -> bool:
    """Whether its operator is a collective."""
    return OPERATORS[entry.operator].is_collective


def is_unfused(entry: RegressorEntry) -> bool:
    """Whether its operator is one of `UNFUSED`."""
    return entry.operator in UNFUSED


def is_shipped(entry: RegressorEntry) -> bool:
    """Whether it computes, but for unfused operators and operators that only the bundle's prior has."""
    is_own = entry.transfer is None or entry.transfer.correction or not entry.transfer.is_foreign
    return bool(is_own) and not is_collective(entry) and not is_unfused(entry)


def bundle_file(row: Hardware) -> Path:
    """Where measured hardware's bundle lies."""
    if row.bundle is None:
        sys.exit(f"hardware {row.name}: was not measured, expected one of {', '.join(TABLES)}")
    return row.bundle


def differences(one: Bundle, other: Bundle) -> list[str]:
    """Regressors whose rows or models differ; code and versions of kernelcast that changed since do not count."""
    found = []
    for bundle, against in ((one, other), (other, one)):
        known = {(*entry.key, entry.processes_per_node): entry for entry in against.manifest.regressors}
        for entry in bundle.manifest.regressors:
            twin = known.get((*entry.key, entry.processes_per_node))
            if (
                twin is None
                or twin.table_digest != entry.table_digest
                or _graph(against, twin) != _graph(bundle, entry)
            ):
                found.append(f"{entry.operator} ({entry.direction})")
    return sorted(set(found))


def _graph(bundle: Bundle, entry: RegressorEntry) -> bytes:
    """A regressor's model without what it says of its making, such as the version of kernelcast."""
    model = onnx.load_from_string(bundle.files[entry.file])
    del model.metadata_props[:]
    model.producer_version = ""
    content: bytes = model.SerializeToString()
    return content


def digests(folder: Path = ROOT, *suffixes: str) -> str:
    """Lines as sha256sum prints them, of all source tables, or of a folder's files with these suffixes."""
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in (suffixes or (".csv", ".json", ".parquet", ".log"))
    )
    return "".join(
        f"{sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}\n" for path in files
    )


def write_or_check(path: Path, text: str) -> None:
    """Write a table that ships; with the argument `--check` compare it with the one there.

    Raises:
        SystemExit: it differs.
    """
    if sys.argv[1:] != ["--check"]:
        path.write_text(text, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != text:
        sys.exit(f"{path}: differs from the rebuilt table")


def _progress(name: str) -> Callable[[int, int, str], None]:
    def report(done: int, total: int, operator: str) -> None:
        print(f"{name}: {done} of {total} regressors ({operator})", file=sys.stderr)

    return report


def main(arguments: Sequence[str]) -> None:
    """See the module's docstring."""
    if arguments == ["--digests"]:
        SOURCE_SUMS.write_text(digests(), encoding="utf-8")
        SUMS.write_text(digests(SUMS.parent, ".kcast"), encoding="utf-8")
        return
    if list(arguments[:1]) == ["--formats"]:
        for name in arguments[1:]:
            print(with_formats(name, bundle_file(hardware_named(name))))
        SUMS.write_text(digests(SUMS.parent, ".kcast"), encoding="utf-8")
        return
    check = list(arguments[:1]) == ["--check"]
    for name in arguments[check:] or list(TABLES):
        shipped = bundle_file(hardware_named(name))
        if not check:
            print(build(name, shipped, fabrics=FABRICS))
            continue
        with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
            anew = build(name, Path(folder) / shipped.name)
            if differing := differences(read_bundle(shipped), read_bundle(anew)):
                sys.exit(f"{shipped}: differs from the rebuilt bundle: {', '.join(differing)}")
            print(f"{shipped}: rebuilt, the same regressors")
    if not check:
        SUMS.write_text(digests(SUMS.parent, ".kcast"), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
