"""How fast `kernelcast serve` answers, how much it takes at once, and whether its memory grows.

    python benchmarks/bench_serve.py [--seconds 3] [--repeat 3] [--requests 100000] [--bundle FILE] [--write]

A bundle in the size of a trained one, a server on a Unix socket, and a load generator in a process of its own: an
asyncio client that keeps its connections open and asks again as soon as it is answered (wrk, which is faster, speaks
no Unix sockets). Both share this machine's cores. Prints a table; --write puts it into docs/serve.md.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from synthetic_bundle import write_synthetic_bundle

from kernelcast.validate.markdown import fill

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "serve.md"
ASK = ROOT / "integrations" / "slurm" / "kernelcast-ask"
CLIENTS = (1, 8, 64)
SCRIPT = b"#!/bin/bash\n#KERNELCAST model=llama-2-7b pp=2 tp=2 dp=2 micro_batch=1 micro_batches=8 steps=1e4\n"
QUESTIONS = {
    "health": "`/health`",
    "again": "`/predict`, asked before",
    "new": "`/predict`, new",
    "script": "`/walltime`, a batch script",
}
ONE_IN = 10  # of the questions of the memory's part is new
STARTS = 30


def request(path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    """A whole request."""
    method = "POST" if body else "GET"
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: k\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def predict(sequence_length: int) -> bytes:
    """A question that depends on the length."""
    asked = {
        "model": "llama-2-7b", "sequence_length": sequence_length, "pp": 2, "tp": 2, "dp": 2, "micro_batch": 1,
        "micro_batches": 8,
    }  # fmt: skip
    return request("/predict", json.dumps(asked).encode())


def requests_of(kind: str, first: int) -> Iterator[bytes]:
    """Endless requests; new ones begin with number `first`."""
    fixed = {
        "health": request("/health"),
        "again": predict(4096),
        "script": request("/walltime", SCRIPT, "text/plain"),
    }
    while kind in fixed:
        yield fixed[kind]
    while True:
        yield predict(64 + 2 * first) if kind == "new" or first % ONE_IN == 0 else predict(4096)
        first += 1


async def client(path: str, requests: Iterator[bytes], until: float, most: int, seen: list[float]) -> None:
    """One connection: asks until it is time, or all clients together have asked so much."""
    reader, writer = await asyncio.open_unix_connection(path)
    while time.perf_counter() < until and len(seen) < most:
        begin = time.perf_counter()
        writer.write(next(requests))
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.split(b":")[1]))
        seen.append(time.perf_counter() - begin)
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"answered {head[:60]!r}")
    writer.close()
    await writer.wait_closed()


async def load(path: str, kind: str, clients: int, seconds: float, most: int, first: int) -> None:
    """What the process of the load generator does; prints percentiles as JSON."""
    seen: list[float] = []
    requests, begin = requests_of(kind, first), time.perf_counter()
    await asyncio.gather(*(client(path, requests, begin + seconds, most, seen) for _ in range(clients)))
    taken = time.perf_counter() - begin
    cuts = statistics.quantiles(seen, n=100)
    print(json.dumps({"p50": cuts[49], "p99": cuts[98], "rate": len(seen) / taken, "count": len(seen)}))


class Bench:
    """A server, and how it is asked."""

    def __init__(self, folder: Path, bundle: Path) -> None:
        self.socket = folder / "s"
        self.asked = 0
        self.bundle = bundle
        command = [
            "-m",
            "kernelcast.cli.main",
            "serve",
            "--bundle",
            str(bundle),
            "--socket",
            str(self.socket),
        ]
        environment = {**os.environ, "KERNELCAST_SITE": ""}
        self.process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, env=environment)
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def load(self, kind: str, clients: int, *, seconds: float = 1e9, most: int = 10**12) -> dict[str, float]:
        """Load of one kind."""
        words = [str(self.socket), kind, str(clients), str(seconds), str(most), str(self.asked)]
        done = subprocess.run([sys.executable, __file__, "--load", *words], check=True, capture_output=True)
        found: dict[str, float] = json.loads(done.stdout)
        self.asked += int(found["count"]) if kind in ("new", "mixed") else 0
        return found

    def memory_mib(self) -> float:
        """Resident memory of the server."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def starts(self) -> dict[str, float]:
        """Median times in s of the ways to a time limit for a batch script, started anew each time."""
        script = self.socket.with_name("job")
        script.write_bytes(SCRIPT)
        words = ["--format", "slurm", "--", str(script)]
        ways = {
            "`kernelcast-ask`": [str(ASK), *words],
            "`kernelcast walltime`": [
                sys.executable, "-m", "kernelcast.cli.main", "walltime", "--bundle", str(self.bundle), *words,
            ],
            "a process that does nothing": ["/bin/true"],
        }  # fmt: skip
        environment = {**os.environ, "KERNELCAST_SOCKET": str(self.socket), "KERNELCAST_SITE": ""}
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(STARTS):
            for way, command in ways.items():
                begin = time.perf_counter()
                subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
                times[way].append(time.perf_counter() - begin)
        return {way: statistics.median(found) for way, found in times.items()}


def measure(bench: Bench, seconds: float, repeat: int, requests: int) -> str:
    """All parts; the text for the page."""
    lines = ["| question | clients | p50 | p99 | requests per s |", "|---|---|---|---|---|"]
    bench.load("mixed", 8, most=1000)
    first_mib = bench.memory_mib()
    for kind, name in QUESTIONS.items():
        for clients in CLIENTS:
            found = [bench.load(kind, clients, seconds=seconds) for _ in range(repeat)]
            p50, p99, rate = (statistics.median(one[key] for one in found) for key in ("p50", "p99", "rate"))
            lines.append(f"| {name} | {clients} | {1e3 * p50:.2f} ms | {1e3 * p99:.1f} ms | {rate:,.0f} |")
            print(lines[-1], flush=True)
    starts = bench.starts()
    nothing = starts.pop("a process that does nothing")
    ask, command = starts.values()
    lines += [
        "",
        f"From nothing to a time limit (median of {STARTS} starts, in turn): `kernelcast-ask` {1e3 * ask:.0f} ms, "
        f"`kernelcast walltime` {1e3 * command:.0f} ms, {command / ask:.0f} times as long; a process that does "
        f"nothing takes {1e3 * nothing:.0f} ms.",
    ]
    bench.load("mixed", 8, most=requests)
    last_mib = bench.memory_mib()
    lines += [
        "",
        f"Memory: {first_mib:.0f} MiB after 1,000 requests, {last_mib:.0f} MiB after {requests:,} more of which one in "
        f"{ONE_IN} was new, and all of the above ({bench.asked:,} different questions).",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--requests", type=int, default=100_000, help="of the memory's part")
    parser.add_argument("--bundle", type=Path, help="instead of a synthetic one")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--load", nargs=6, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load:
        path, kind, clients, seconds, most, first = given.load
        asyncio.run(load(path, kind, int(clients), float(seconds), int(most), int(first)))
        return
    with tempfile.TemporaryDirectory(prefix="kc") as name:
        bundle = given.bundle or Path(name, "synthetic.kcast")
        if given.bundle is None:
            write_synthetic_bundle(bundle)
        bench = Bench(Path(name), bundle)
        try:
            load_1, _, _ = os.getloadavg()
            text = measure(bench, given.seconds, given.repeat, given.requests)
        finally:
            bench.process.terminate()
            bench.process.wait()
    size_mb = f"{os.cpu_count()} cores, shared with the load generator; load before: {load_1:.1f}"
    text = f"{text}\n({size_mb}.)\n"
    print(text)
    if given.write:
        fill(PAGE, "bench-serve", text)


if __name__ == "__main__":
    main()
