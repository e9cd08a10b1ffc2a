"""Make what ships from what stands in this folder: `make datasets`.

    python datasets/build.py [NAME...]            # bundles of the named hardware, or of all, for runtime/shipped
    python datasets/build.py --check NAME...      # makes them in a temporary folder, and compares
    python datasets/build.py --digests            # writes SHA256SUMS of the source tables

Needs no network and no GPU; ten minutes for each bundle. The same tables, code and libraries give the same bytes.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from kernelcast.runtime.bundle.described_fabric import with_description
from kernelcast.runtime.bundle.file import Bundle, read_bundle, write_bundle
from kernelcast.runtime.hardware.fabric_file import fabric_named
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.shipped.hardware import hardware_named, shipped_hardware
from kernelcast.store import Database
from kernelcast.store.importers import read_estimate_train_time, store_parsed
from kernelcast.train.fit import train_bundle

ROOT = Path(__file__).resolve().parent
SUMS = ROOT / "SHA256SUMS"


FOLDERS = {"a100-sxm": "estimate-train-time/Perlmutter", "gh200": "estimate-train-time/Vista"}
"""Where the operators of each hardware come from."""


def build(name: str, output: Path) -> Path:
    """Import, train, and put the description of a usual fabric in."""
    with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
        trained = Path(folder) / "trained.kcast"
        with Database.open(Path(folder) / "source.db", create=True) as database:
            store_parsed(database, read_estimate_train_time([ROOT / FOLDERS[name]]))
            train_bundle(database, trained, jobs=0, on_progress=_progress(name))
        return pack(name, read_bundle(trained), output)


def pack(name: str, trained: Bundle, output: Path) -> Path:
    """What ships: the operators that compute, and the usual fabric of such devices instead of the measured one."""
    computing = tuple(
        entry for entry in trained.manifest.regressors if not OPERATORS[entry.operator].is_collective
    )
    manifest = with_description(
        replace(trained.manifest, regressors=computing, fabric=()), fabric_named(hardware_named(name).fabric)
    )
    write_bundle(output, manifest, {entry.file: trained.files[entry.file] for entry in computing})
    return output


def differences(one: Bundle, other: Bundle) -> list[str]:
    """Regressors whose rows or models differ; code that changed since does not count."""
    found = []
    for bundle, against in ((one, other), (other, one)):
        known = {(*entry.key, entry.processes_per_node): entry for entry in against.manifest.regressors}
        for entry in bundle.manifest.regressors:
            twin = known.get((*entry.key, entry.processes_per_node))
            if twin is None or (twin.sha256, twin.table_digest) != (entry.sha256, entry.table_digest):
                found.append(f"{entry.operator} ({entry.direction})")
    return sorted(set(found))


def digests() -> str:
    """Lines as sha256sum prints them, of all source tables."""
    files = sorted(path for path in ROOT.rglob("*") if path.suffix in (".csv", ".json", ".parquet", ".log"))
    return "".join(
        f"{sha256(path.read_bytes()).hexdigest()}  {path.relative_to(ROOT).as_posix()}\n" for path in files
    )


def _progress(name: str) -> Callable[[int, int, str], None]:
    def report(done: int, total: int, operator: str) -> None:
        print(f"{name}: {done} of {total} regressors ({operator})", file=sys.stderr)

    return report


def main(arguments: Sequence[str]) -> None:
    """See the module's docstring."""
    if arguments == ["--digests"]:
        SUMS.write_text(digests(), encoding="utf-8")
        return
    check = list(arguments[:1]) == ["--check"]
    for name in arguments[check:] or list(shipped_hardware()):
        shipped = hardware_named(name).bundle
        if not check:
            print(build(name, shipped))
            continue
        with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
            anew = build(name, Path(folder) / shipped.name)
            if differing := differences(read_bundle(shipped), read_bundle(anew)):
                sys.exit(f"{shipped}: made anew, these differ: {', '.join(differing)}")
            print(f"{shipped}: made anew, the same regressors")


if __name__ == "__main__":
    main(sys.argv[1:])
