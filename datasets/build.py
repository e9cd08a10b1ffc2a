"""Make what ships from what stands in this folder: `make datasets`.

    python datasets/build.py [NAME...]            # bundles of the named hardware, or of all, for runtime/shipped
    python datasets/build.py --check NAME...      # makes them in a temporary folder, and compares
    python datasets/build.py --formats NAME...    # rebuilds only what joins their bundle (FORMATS)
    python datasets/build.py --digests            # writes SHA256SUMS of the source tables and of the bundles

Needs no network and no GPU; up to ten minutes for each bundle. The same tables, code and libraries give the same bytes.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import onnx

from kernelcast.datasets.tables import ROOT, database_of, tables_for
from kernelcast.runtime.bundle.file import Bundle, read_bundle, write_bundle
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.catalogue import Hardware, hardware_named
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.shipped import FABRICS, SUMS
from kernelcast.train.fit import train_bundle

SOURCE_SUMS = ROOT / "SHA256SUMS"
TABLES, REFINED, FORMATS = (tables_for(purpose) for purpose in ("own", "refined", "formats"))
PRIORS = {"a100-pcie": "a100-sxm"}
"""Hardware with few rows, and whose operators they correct."""


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


MEASURED_FABRICS = {"a100-sxm": "perlmutter-measured", "gh200": "vista-measured"}
"""Fabrics whose collectives were measured together with a device's operators."""


def pack(trained: Bundle, output: Path, which: Callable[[RegressorEntry], object], **changes: Any) -> Path:
    """Write some of the operators of a bundle, its manifest with `changes`."""
    kept = tuple(filter(which, trained.manifest.regressors))
    manifest = replace(trained.manifest, regressors=kept, **changes)
    write_bundle(output, manifest, {entry.file: trained.files[entry.file] for entry in kept})
    return output


def is_collective(entry: RegressorEntry) -> bool:
    return OPERATORS[entry.operator].is_collective


def is_unfused(entry: RegressorEntry) -> bool:
    return entry.operator in UNFUSED


def is_shipped(entry: RegressorEntry) -> bool:
    """Whether it computes, but for unfused operators and operators that only the bundle's prior has."""
    is_own = entry.transfer is None or entry.transfer.correction or not entry.transfer.is_foreign
    return bool(is_own) and not is_collective(entry) and not is_unfused(entry)


def bundle_file(row: Hardware) -> Path:
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


def digests(folder: Path = ROOT, suffixes: Sequence[str] = (".csv", ".json", ".parquet", ".log")) -> str:
    """Lines as sha256sum prints them, of all source tables, or of other files."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in suffixes)
    return "".join(
        f"{sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}\n" for path in files
    )


def bundle_digests() -> str:
    """The same lines of the bundles that ship, and a comment for each with the digest of its manifest."""
    read = (read_bundle(path) for path in sorted(SUMS.parent.glob("*.kcast")))
    manifests = (f"# {sha256(one.manifest.to_json()).hexdigest()}  {one.path.name}\n" for one in read)
    return digests(SUMS.parent, (".kcast",)) + "".join(manifests)


def _progress(name: str) -> Callable[[int, int, str], None]:
    def report(done: int, total: int, operator: str) -> None:
        print(f"{name}: {done} of {total} regressors ({operator})", file=sys.stderr)

    return report


def _list_bundles() -> None:
    SUMS.write_text(bundle_digests(), encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    if arguments == ["--digests"]:
        SOURCE_SUMS.write_text(digests(), encoding="utf-8")
        _list_bundles()
        return
    if list(arguments[:1]) == ["--formats"]:
        for name in arguments[1:]:
            print(with_formats(name, bundle_file(hardware_named(name))))
        _list_bundles()
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
        _list_bundles()


if __name__ == "__main__":
    main(sys.argv[1:])
