"""How fast `kernelcast serve` answers, how much it takes at once, and whether its memory grows.

The bundle of a shipped device, a server on a Unix socket, and a load generator in a process of its own: an
asyncio client that keeps its connections open and asks again as soon as it is answered (wrk, which is faster, speaks
no Unix sockets). Both share this machine's cores.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from kernelcast.benchmarks.harness import ROOT, SHIPPED, Bench, in_turn, script, write_shipped_bundle
from kernelcast.docs.markdown import table

COMMAND = ("-m", "kernelcast.cli.main")
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
    """One connection: sends requests until the time is up, or all clients together have sent `most`."""
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


def load(path: str, kind: str, clients: int, seconds: float, most: int, first: int) -> dict[str, float]:
    """What the process of the load generator does: percentiles and rate of the answers."""

    async def ask() -> float:
        begin = time.perf_counter()
        await asyncio.gather(*(client(path, requests, begin + seconds, most, seen) for _ in range(clients)))
        return time.perf_counter() - begin

    seen: list[float] = []
    requests = requests_of(kind, first)
    taken = asyncio.run(ask())
    cuts = statistics.quantiles(seen, n=100)
    return {"p50": cuts[49], "p99": cuts[98], "rate": len(seen) / taken, "count": len(seen)}


class Server:
    """A server and its requests."""

    def __init__(self, bench: Bench, folder: Path, bundle: Path) -> None:
        self.bench, self.socket, self.bundle = bench, folder / "s", bundle
        self.asked = 0
        command = [sys.executable, *COMMAND, "serve", "--bundle", str(bundle), "--socket", str(self.socket)]
        environment = {**os.environ, "KERNELCAST_SITE": ""}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def load(self, kind: str, clients: int, *, seconds: float = 1e9, most: int = 10**12) -> dict[str, float]:
        found = self.bench.part(
            "load",
            repeat=1,
            path=self.socket,
            kind=kind,
            clients=clients,
            seconds=seconds,
            most=most,
            first=self.asked,
        )
        self.asked += int(found["count"]) if kind in ("new", "mixed") else 0
        return found

    def processor_s(self) -> float:
        """CPU time of the server so far, which other work on the machine changes little (clock_gettime(2))."""
        return time.clock_gettime(~self.process.pid << 3 | 2)

    def memory_mib(self) -> float:
        """Resident memory of the server."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def starts(self) -> dict[str, float]:
        """Median times in s of the ways to a time limit for a batch script, started again each time."""
        script = self.socket.with_name("job")
        script.write_bytes(SCRIPT)
        words = ["--format", "slurm", "--", str(script)]
        ways = {
            "ask": [str(ASK), *words],
            "command": [sys.executable, *COMMAND, "walltime", "--bundle", str(self.bundle), *words],
            "nothing": ["/bin/true"],
        }
        environment = {**os.environ, "KERNELCAST_SOCKET": str(self.socket), "KERNELCAST_SITE": ""}
        run = partial(subprocess.run, check=True, env=environment, stdout=subprocess.DEVNULL)
        return in_turn({way: partial(run, command) for way, command in ways.items()}, STARTS)


def measure(server: Server, seconds: float, requests: int) -> list[str]:
    """All parts; lines for the page."""
    server.load("mixed", 8, most=1000)
    first_mib = server.memory_mib()
    rows = []
    for kind, name in QUESTIONS.items():
        for clients in CLIENTS:
            before_s = server.processor_s()
            found = [server.load(kind, clients, seconds=seconds) for _ in range(server.bench.repeat)]
            own_s = (server.processor_s() - before_s) / sum(one["count"] for one in found)
            p50, p99, rate = (statistics.median(one[key] for one in found) for key in ("p50", "p99", "rate"))
            rows.append(
                (
                    name,
                    f"{clients}",
                    f"{1e3 * p50:.2f} ms",
                    f"{1e3 * p99:.1f} ms",
                    f"{rate:,.0f}",
                    f"{1e3 * own_s:.2f} ms",
                )
            )
            print(*rows[-1], flush=True)
    starts = server.starts()
    server.load("mixed", 8, most=requests)
    ask, command, nothing = (f"{1e3 * starts[way]:.0f} ms" for way in ("ask", "command", "nothing"))
    return [
        *table(("question", "clients", "p50", "p99", "requests per s", "CPU of one"), rows, is_padded=False),
        "",
        f"From nothing to a time limit (median of {STARTS} starts, in turn): `kernelcast-ask` {ask}, `kernelcast "
        f"walltime` {command}, {starts['command'] / starts['ask']:.0f} times as long; a process that does nothing "
        f"takes {nothing}.",
        "",
        f"Memory: {first_mib:.0f} MiB after 1,000 requests, {server.memory_mib():.0f} MiB after all of the above and "
        f"{requests:,} more, one new request in {ONE_IN} ({server.asked:,} different questions).",
    ]


@script(
    page="serve.md",
    repeat=3,
    options={
        "--seconds": {"type": float, "default": 3.0, "help": "of each measurement"},
        "--requests": {"type": int, "default": 100_000, "help": "of the memory's part"},
        "--bundle": {"type": Path, "help": "instead of a shipped device's"},
    },
    load=load,
)
def main(bench: Bench) -> None:
    given = bench.given
    with tempfile.TemporaryDirectory(prefix="kc") as name:
        bundle = given.bundle or Path(name, f"{SHIPPED}.kcast")
        if given.bundle is None:
            write_shipped_bundle(bundle)
        server = Server(bench, Path(name), bundle)
        try:
            lines = measure(server, given.seconds, given.requests)
        finally:
            server.process.terminate()
            server.process.wait()
    bench.publish("\n".join([*lines, "", f"({bench.machine()}; the load generator shares the cores.)"]))
