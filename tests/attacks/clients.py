"""HTTP that is malformed, cut, slow or too much, sent to `kernelcast serve` on a Unix socket."""

import json
import random
import socket
from pathlib import Path

_GOOD = json.dumps({"model": "llama-2-7b", "micro_batch": 1, "micro_batches": 4}).encode()
_VALUES = (None, True, -1, 0, 2**63, 1e308, "x" * 10_000, [], {}, "\x00", "../../etc/passwd", "~root", [[[]]])
_FIELDS = ("model", "pp", "tp", "dp", "micro_batch", "micro_batches", "schedule", "fabric", "stack", "zzz")


def request_of(generator: random.Random) -> bytes:
    """Bytes that are nearly a request, or none at all."""
    values = {"model": "llama-2-7b", "micro_batch": 1, "micro_batches": 4}
    for _ in range(generator.randrange(3)):
        values[generator.choice(_FIELDS)] = generator.choice(_VALUES)  # type: ignore[assignment]
    body = generator.choice(
        (json.dumps(values).encode(), _GOOD, b"{" * 5_000, b"\xff" * 50, generator.randbytes(80))
    )
    length = generator.choice((len(body), len(body), len(body) + 1, -1, 10**30, "x"))
    path = generator.choice(("/predict", "/search", "/walltime", "/reload", "/health", "/../..", "/%00", "*"))
    lines = [
        f"{generator.choice(('POST', 'GET', 'PUT', 'BREW'))} {path} HTTP/{generator.choice(('1.1', '1.0', '9.9'))}",
        "Host: k",
        f"Content-Length: {length}",
        f"Content-Type: {generator.choice(('application/json', 'text/plain', 'x'))}",
        "Connection: close",
    ]
    if generator.random() < 0.2:
        lines.append(
            generator.choice(("Transfer-Encoding: chunked", "X: " + "y" * 20_000, "Host: other", ": :"))
        )
    whole = bytearray("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    if generator.random() < 0.3:
        whole[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
    if generator.random() < 0.2:
        del whole[generator.randrange(len(whole)) :]
    return bytes(whole)


def sent(where: Path, request: bytes) -> bytes:
    """The status line that comes back, perhaps none: the client ends its side and reads for at most 15 s."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(15)
        client.connect(str(where))
        found = b""
        try:
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            while len(found) < 12 and (part := client.recv(4096)):
                found += part
        except (ConnectionError, BrokenPipeError):
            pass
        return found.partition(b"\r\n")[0]
