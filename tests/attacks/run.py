"""`make attack`: attacks on files and clients, in child processes with limits of time and memory, counted.

    python -m tests.attacks.run [--minutes 15] [--seed N] [--write docs/trust.md]

Loopback only (a Unix socket). Exit status 1 where anything got through: a traceback, a crash, a hang, a status 500,
lost rows.
"""

import argparse
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from tests.attacks.guarded import BUNDLE, ROOT, Counts, guarded
from tests.attacks.servers import clients, slow_clients

SOUND = ROOT / "tests" / "data" / "small.db"
_BEGIN, _END = "<!-- make attack -->\n", "<!-- end -->"


def graphs(until: float, generator: random.Random, folder: Path) -> Counts:
    """Graphs made to crash, hang, fill the memory or lie: each has to be refused."""
    from kernelcast.runtime.bundle.graph import check_graph
    from tests.runtime.bundle.hostile_graphs import HOSTILE

    counts = Counts()
    for name, (make, _) in HOSTILE.items():
        before = counts.refused + len(counts.through)
        guarded(name, lambda make=make: check_graph(make(), 3), counts)  # type: ignore[misc]
        if counts.refused + len(counts.through) == before:
            counts.through.append(f"{name}: was not refused")
    return counts


def damaged_graphs(until: float, generator: random.Random, folder: Path) -> Counts:
    """Sound graphs with bytes changed: refused, or loaded and run by ONNX Runtime without harm."""
    import numpy as np

    from kernelcast.runtime.answers.onnx_runtime import onnx_runtime
    from kernelcast.runtime.bundle.file import read_bundle
    from kernelcast.runtime.bundle.graph import check_graph
    from kernelcast.runtime.errors import DataError

    bundle = read_bundle(BUNDLE)
    entries = [(len(one.features), bundle.files[one.file]) for one in bundle.manifest.regressors]
    runtime, counts = onnx_runtime(), Counts()

    def batch(seed: int) -> Callable[[], None]:
        def run() -> None:
            own = random.Random(seed)
            for _ in range(20):
                columns, model = own.choice(entries)
                changed = bytearray(model)
                for _ in range(own.choice((1, 1, 2, 8))):
                    changed[own.randrange(len(changed))] = own.randrange(256)
                try:
                    check_graph(bytes(changed), columns)
                except DataError:
                    continue
                try:
                    quiet = runtime.SessionOptions()
                    quiet.log_severity_level, quiet.intra_op_num_threads = 4, 1
                    session = runtime.InferenceSession(
                        bytes(changed), quiet, providers=["CPUExecutionProvider"]
                    )
                    session.run(None, {"workload": np.ones((4, columns), np.float32)})
                except Exception as error:
                    if "onnxruntime" not in type(error).__module__ and not isinstance(error, ValueError):
                        raise

        return run

    while time.monotonic() < until:
        guarded("20 damaged graphs", batch(generator.randrange(1 << 30)), counts)
    counts.tried *= 20
    return counts


def bundles(until: float, generator: random.Random, folder: Path) -> Counts:
    """Bundles cut or with bytes changed: every one has to be refused."""
    from kernelcast.runtime.bundle.file import verified_bundle
    from kernelcast.runtime.errors import DataError

    content, counts = BUNDLE.read_bytes(), Counts()
    while time.monotonic() < until:
        changed = bytearray(content)
        if generator.random() < 0.2:
            del changed[generator.randrange(len(changed)) :]
        else:
            changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
        counts.tried += 1
        try:
            verified_bundle(BUNDLE, bytes(changed))
            counts.through.append("a changed bundle was read")
        except DataError:
            counts.refused += 1
        except Exception:
            counts.through.append(traceback.format_exc()[-300:].replace("\n", " | "))
    return counts


def databases(until: float, generator: random.Random, folder: Path) -> Counts:
    """Databases with values, bytes and pages changed, and hostile schemas, given to every reader."""
    from kernelcast.runtime.errors import KernelcastError
    from tests.attacks.databases import (
        HOSTILE_SCHEMAS,
        changed_value,
        damaged_log,
        endless_pages,
        flipped_bytes,
        hostile_schema,
        interrupted,
        readers,
        swapped_pages,
    )

    counts, bad = Counts(), folder / "bad.db"

    def given(what: str) -> None:
        def run() -> None:
            for name, read in readers(bad, SOUND, folder).items():
                try:
                    read()
                except KernelcastError as error:
                    if not str(error).isprintable():
                        raise ValueError(f"{name}: more than a line") from error

        guarded(what, run, counts)

    for name in HOSTILE_SCHEMAS:
        shutil.copy(SOUND, bad)
        hostile_schema(bad, name)
        given(name)
    for table in ("sample", "kernel_name", "predictor"):
        shutil.copy(SOUND, bad)
        endless_pages(bad, table)
        given(f"endless pages of {table}")
    while time.monotonic() < until:
        for damage in (changed_value, flipped_bytes, swapped_pages, damaged_log, interrupted):
            for stray in folder.glob("bad.db*"):
                stray.unlink()
            shutil.copy(SOUND, bad)
            given(damage(bad, generator))
    return counts


def kills(until: float, generator: random.Random, folder: Path) -> Counts:
    """Exports, merges and imports killed at any moment: earlier content stays whole, and stray files are removed."""
    from kernelcast.store.check import check_database

    counts, target, own = Counts(), folder / "killed.db", folder / "own.db"
    shutil.copy(SOUND, own)
    with closing(sqlite3.connect(SOUND)) as connection:
        [rows] = connection.execute("SELECT count(*) FROM sample").fetchone()
    while time.monotonic() < until:
        into = generator.choice((target, own))
        verb = (
            ["merge", str(SOUND), "--into", str(into)] if into is own else ["export", str(SOUND), str(target)]
        )
        target.unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "kernelcast.cli.main", "db", *verb],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(generator.uniform(0.1, 1.5))
        number = generator.choice((signal.SIGKILL, signal.SIGTERM))
        before = set(folder.glob(".*.new*"))
        process.send_signal(number)
        process.wait()
        counts.tried += 1
        if number is signal.SIGTERM and (left := set(folder.glob(".*.new*")) - before):
            counts.through.append(f"{len(left)} unfinished files after SIGTERM")
        for path in (target, own):
            if path.exists() and (found := check_database(path)):
                counts.through.append(f"{verb[0]} killed: {found[0]}")
    with closing(sqlite3.connect(own)) as connection:
        if connection.execute("SELECT count(*) FROM sample").fetchone()[0] != rows:
            counts.through.append("rows were lost")
    target.unlink(missing_ok=True)
    subprocess.run(
        [sys.executable, "-m", "kernelcast.cli.main", "db", "export", str(SOUND), str(target)],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    if left := list(folder.glob(".killed.db.*")):
        counts.through.append(f"{len(left)} strays are left")
    return counts


def zips(until: float, generator: random.Random, folder: Path) -> Counts:
    """Zips that readers see differently: each has to be refused, in little memory."""
    from kernelcast.runtime.bundle.file import verified_bundle
    from tests.attacks.strangers import lying_zips

    counts = Counts()
    for name, content in lying_zips(BUNDLE.read_bytes()):
        before = counts.refused + len(counts.through)
        guarded(name, lambda content=content: verified_bundle(BUNDLE, content), counts)  # type: ignore[misc]
        if counts.refused + len(counts.through) == before:
            counts.through.append(f"{name}: was not refused")
    return counts


def labels(until: float, generator: random.Random, folder: Path) -> Counts:
    """Hostile names in databases, traces and options: no controls are printed, and pages hold no scripts."""
    from tests.attacks.strangers import is_printable, labelled

    counts, trace = Counts(), ROOT / "tests" / "data" / "traces" / "cuda.json"
    while time.monotonic() < until:
        for words in labelled(SOUND, trace, folder, generator):
            counts.tried += 1
            done = subprocess.run(
                [sys.executable, "-m", "kernelcast.cli.main", *words],
                capture_output=True,
                check=False,
                timeout=300,
                cwd=folder,
            )
            text = (done.stdout + done.stderr).decode()
            counts.refused += done.returncode != 0
            if not is_printable(text) or "Traceback" in text:
                counts.through.append(f"{words[:2]}: {text[-200:]!r}")
        page = folder / "page.html"
        if page.exists() and "<script>x" in page.read_text():
            counts.through.append("a script in a page")
    return counts


def jobs(until: float, generator: random.Random, folder: Path) -> Counts:
    """Hostile values in scripts of Slurm, PBS and Flux and in manifests for kubectl: texts, never commands or files."""
    from kernelcast.cli.walltime_k8s import rewrite
    from kernelcast.serve.loaded import Loaded
    from kernelcast.serve.walltimes import for_slurm, walltime
    from tests.attacks.strangers import job_text, manifest

    loaded, counts = Loaded.load(BUNDLE, {"KERNELCAST_SITE": ""}), Counts()

    def batch(seed: int) -> Callable[[], None]:
        def run() -> None:
            from kernelcast.runtime.errors import KernelcastError

            own = random.Random(seed)
            for _ in range(20):
                text, job = job_text(own), manifest(own)
                for attack in (
                    lambda text=text: for_slurm(walltime(loaded, {"script": text})),
                    lambda job=job: rewrite(
                        job, name="job.yaml", folder=folder, options={"bundle": str(BUNDLE)}
                    ),
                ):
                    try:
                        attack()
                    except KernelcastError as error:
                        if not str(error).isprintable():
                            raise ValueError(f"more than a line: {str(error)!r:.200}") from error

        return run

    before = set(folder.iterdir())
    while time.monotonic() < until:
        guarded("20 scripts and manifests", batch(generator.randrange(1 << 30)), counts)
    counts.tried *= 40
    if set(folder.iterdir()) != before or list(ROOT.glob("owned*")):
        counts.through.append("something was executed or written")
    return counts


# Kind, its attack, its share of the time.
_KINDS: tuple[tuple[str, Callable[[float, random.Random, Path], Counts], float], ...] = (
    ("ONNX graphs made to do harm", graphs, 0.05),
    ("ONNX graphs with bytes changed, then run", damaged_graphs, 0.15),
    ("bundles cut or with a bit flipped", bundles, 0.05),
    ("bundles as zips that lie (overlaps, duplicates, bombs)", zips, 0.02),
    ("hostile names, given to everything that prints or writes pages", labels, 0.08),
    ("scripts of Slurm, PBS and Flux, and manifests for kubectl, with hostile values", jobs, 0.05),
    (
        "hostile schemas, and databases with values, bytes or pages changed, each given to every reader",
        databases,
        0.2,
    ),
    ("exports and merges killed or terminated", kills, 0.1),
    ("malformed HTTP requests", clients, 0.1),
    ("clients that are slow, odd or do not read, while bundles are reloaded", slow_clients, 0.2),
)


def table(found: dict[str, Counts]) -> Iterator[str]:
    """Lines of Markdown."""
    yield "| attack | tried | refused | got through |"
    yield "|---|---|---|---|"
    for name, counts in found.items():
        refused = f"{counts.refused:,}" if counts.refused else "–"
        yield f"| {name} | {counts.tried:,} | {refused} | {len(counts.through)} |"


def main() -> None:
    """Run all kinds, print the table, and write it on request."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--only", action="append", metavar="WORD", help="kinds whose name has it")
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    found: dict[str, Counts] = {}
    for name, attack, share in _KINDS:
        if asked.only and not any(word in name for word in asked.only):
            continue
        # A short path: that of a Unix socket has at most 107 bytes.
        with tempfile.TemporaryDirectory(prefix="kc") as folder:
            until = time.monotonic() + 60 * asked.minutes * share
            found[name] = attack(until, random.Random(asked.seed), Path(folder))
        print(f"{name}: {found[name].tried:,} tried, {len(found[name].through)} got through", flush=True)
        for line in found[name].through[:20]:
            print(f"  {line}", flush=True)
    lines = "\n".join(table(found))
    print(lines)
    if asked.write:
        page = asked.write.read_text(encoding="utf-8")
        before, _, rest = page.partition(_BEGIN)
        asked.write.write_text(f"{before}{_BEGIN}{lines}\n{_END}{rest.partition(_END)[2]}", encoding="utf-8")
    sys.exit(any(counts.through for counts in found.values()))


if __name__ == "__main__":
    main()
