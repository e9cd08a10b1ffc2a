"""How fast a commons is: publishing, publishing again, the indexes of 50 sources, and pulling a device over loopback.

One source is generated, of 20 devices with 5 operators each, and all its samples. The other sources have its index
under names of their own: an index is fetched and verified without the parts. Each part runs in a process of its own,
so that its peak memory is its own.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from kernelcast.benchmarks.harness import Bench, script, seconds_of
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, SoftwareFingerprint
from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.store import Database, Run, Sample
from kernelcast.store.commons.index import INDEX_FILE, read_index
from kernelcast.store.commons.publish import publish
from kernelcast.store.commons.pull import pull, refresh
from kernelcast.store.commons.sources import Source

DEVICES = 20
NAMES = ("gemm", "gelu", "swiglu", "rms_norm", "rope")
SOFTWARE = SoftwareFingerprint(torch="2.13.0", driver="570")
SAMPLES_AT_ONCE = 10_000
NEW = 0.01  # of the rows, before publishing again


class Quiet(SimpleHTTPRequestHandler):
    """Python's web server without its log."""

    def log_message(self, *arguments: Any) -> None:
        """Nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder on loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def measured(path: str, count: int, day: int, devices: int) -> dict[str, float]:
    """Add a run of a day on every device, `count` samples in all."""
    with Database.open(Path(path), create=True) as database:
        for number in range(devices):
            device = ComputeFingerprint(kind="cuda", device_name=f"Example {number}", memory_gib=80)
            run = Run(
                started_at=f"2026-01-{day:02}T08:00:00Z",
                kernelcast_version="0.1.0",
                command="benchmark",
                compute_id=device.digest,
                software_id=SOFTWARE.digest,
            )
            database.add_run(run, device, None, SOFTWARE)
            each = count // devices // len(NAMES)
            for name in NAMES:
                rest = (128,) * (len(OPERATORS[name].features) - 1)
                for first in range(0, each, SAMPLES_AT_ONCE):
                    database.add_samples(
                        Sample(
                            run_id=run.id,
                            operator=name,
                            direction=Direction.FORWARD,
                            dtype="bfloat16",
                            vector=(index + 1, *rest),
                            time_us=10.0 + index / 7 + number,
                            measured_at=run.started_at,
                        )
                        for index in range(first, min(first + SAMPLES_AT_ONCE, each))
                    )
    return {}


def published(database: str, folder: str) -> dict[str, float]:
    """Publish, and count the bytes that are new."""
    found: list[Any] = []
    took_s = seconds_of(lambda: found.append(publish(Path(database), Path(folder))))
    written = found[0].written
    return {"s": took_s, "bytes": sum(one.size_bytes for one in written), "files": len(written)}


def refreshed(folder: str, sources: int) -> dict[str, float]:
    with served(Path(folder)) as address:
        asked = [Source(name=f"s{i}", address=f"{address}/s{i}") for i in range(sources)]
        return {"s": seconds_of(lambda: [refresh(one) for one in asked])}


def pulled(folder: str, into: str) -> dict[str, float]:
    """Pull one device from the source with all its samples."""
    found: list[Any] = []
    with served(Path(folder)) as address:
        one = Source(name="s0", address=f"{address}/s0")
        took_s = seconds_of(lambda: found.append(pull(one, Path(into), ("Example 7,",))))
    return {
        "s": took_s,
        "requests": found[0].requests,
        "bytes": found[0].received_bytes,
        "rows": found[0].rows.total(),
    }


@script(
    page="sharing.md",
    options={
        "--sources": {"type": int, "default": 50, "metavar": "N", "help": "sources [50]"},
        "--samples": {"type": int, "default": 10**6, "metavar": "N", "help": "samples of a source [1000000]"},
    },
    measured=measured,
    published=published,
    refreshed=refreshed,
    pulled=pulled,
)
def main(bench: Bench) -> None:
    given = bench.given
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= {"XDG_CONFIG_HOME": f"{name}/config", "XDG_CACHE_HOME": f"{name}/cache"}
        database, served_folder = folder / "bench.db", folder / "served"
        bench.part("measured", path=database, count=given.samples, day=1, devices=DEVICES)
        served_folder.mkdir()
        first = bench.part("published", database=database, folder=served_folder / "s0")
        index = read_index((served_folder / "s0" / INDEX_FILE).read_bytes(), "index")
        for number in range(1, given.sources):
            other = replace(index, about=replace(index.about, site=f"Site {number}"))
            (served_folder / f"s{number}").mkdir()
            (served_folder / f"s{number}" / INDEX_FILE).write_bytes(other.text())
        indexes = bench.part("refreshed", folder=served_folder, sources=given.sources)
        pull_device = bench.part("pulled", folder=served_folder, into=folder / "own.db")
        pull_again = bench.part("pulled", folder=served_folder, into=folder / "own.db")
        bench.part("measured", path=database, count=int(given.samples * NEW), day=2, devices=1)
        again = bench.part("published", database=database, folder=served_folder / "s0")
        rows = [
            (
                f"publish {given.samples:,} samples of {DEVICES} devices",
                first,
                f"{first['files']:,.0f} parts",
            ),
            (
                "publish again after 1 % of new rows",
                again,
                f"{again['bytes'] / first['bytes']:.1%} of the bytes",
            ),
            (f"indexes of {given.sources} sources", indexes, f"{given.sources} requests"),
            ("pull one device", pull_device, f"{pull_device['rows']:,.0f} rows"),
            ("pull it again", pull_again, f"{pull_again['requests']:.0f} request"),
        ]
        lines = ["| what | time | peak memory | transferred or written | |", "|---|---|---|---|---|"]
        for what, one, more in rows:
            size = f"{one['bytes'] / 1e6:.2f} MB" if "bytes" in one else ""
            lines.append(f"| {what} | {one['s']:.1f} s | {one['peak_mb']:.0f} MB | {size} | {more} |")
        bench.publish("\n".join([f"{bench.machine()}:", "", *lines]))
