"""Attacks on a running `serve` over its Unix socket."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.attacks.guarded import BUNDLE, Counts

_HEALTH_S = 0.2


def _serving(folder: Path, log: Path, *options: str) -> "subprocess.Popen[str]":
    where = ["--socket", str(folder / "s"), *options]
    command = [sys.executable, "-m", "kernelcast.cli.main", "serve", "--bundle", str(BUNDLE), *where]
    with log.open("w") as errors:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert server.stdout is not None
    server.stdout.readline()
    return server


def _ended(server: "subprocess.Popen[str]", log: Path, counts: Counts) -> None:
    if server.poll() is not None:
        counts.through.append(f"the server ended with status {server.poll()}")
    server.terminate()
    try:
        if server.wait(60):
            counts.through.append(f"the server ended with status {server.returncode}")
    except subprocess.TimeoutExpired:
        server.kill()
        counts.through.append("the server did not end")
    assert server.stdout is not None
    server.stdout.close()
    if "Traceback" in log.read_text():
        counts.through.append(f"a traceback in the log: {log.read_text()[-300:]}")


def clients(until: float, generator: random.Random, folder: Path) -> Counts:
    """Malformed HTTP: never a status 500, a hang or a line of a log; /health answers all the time."""
    from tests.attacks.clients import request_of, sent

    where, log, counts = folder / "s", folder / "log", Counts()
    server = _serving(folder, log)
    health = b"GET /health HTTP/1.1\r\nHost: k\r\nConnection: close\r\n\r\n"
    try:
        while time.monotonic() < until and server.poll() is None:
            request = request_of(generator)
            counts.tried += 1
            try:
                status = sent(where, request)
            except TimeoutError:
                counts.through.append(f"no answer within 15 s: {request[:120]!r}")
                continue
            if b" 500 " in status:
                counts.through.append(f"status 500: {request[:200]!r}")
            counts.refused += b" 4" in status
            if counts.tried % 50 == 0 and b" 200 " not in sent(where, health):
                counts.through.append("/health did not answer")
    finally:
        _ended(server, log, counts)
    return counts


def slow_clients(until: float, generator: random.Random, folder: Path) -> Counts:
    """Clients that are slow or odd, while bundles are reloaded: 99 of 100 answers of /health come within 0.2 s."""
    from tests.attacks.strangers import SLOW, health_s

    log, counts = folder / "log", Counts()
    server = _serving(folder, log)

    def reload() -> None:
        if generator.random() < 0.02:
            server.send_signal(signal.SIGHUP)

    try:
        each_s = max(2.0, (until - time.monotonic()) / len(SLOW))
        for name, (many, content) in SLOW.items():
            times_s = sorted(health_s(folder / "s", content, many, each_s, reload))
            counts.tried += many
            p99_s = times_s[int(0.99 * (len(times_s) - 1))]
            print(f"  {name}: /health p99 {p99_s:.3f} s of {len(times_s)}", flush=True)
            if p99_s > _HEALTH_S:
                counts.through.append(f"{name}: p99 of /health is {p99_s:.2f} s")
    finally:
        _ended(server, log, counts)
    return counts
