"""Zips that lie, hostile names in what is printed, job scripts and manifests, clients that are slow or odd."""

import contextlib
import io
import itertools
import json
import random
import shutil
import socket
import sqlite3
import struct
import threading
import time
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path

HOSTILE = (
    "\x1b]0;owned\x07",
    "\x1b[2J",
    "\x9b31m",
    "\x7f",
    "\u202eforged",
    "\r\nsound",
    "<script>x</script>",
)
TEXTS = (
    *HOSTILE, "$(touch owned)", "`touch owned`", "'; touch owned; '", '"; touch owned; "', "--help", "-o/owned",
    "\ud800", "../../owned", "~root", "%s%n", "a=b=c", "9" * 5_000, "1e999",
    "!!python/object/apply:os.system [touch owned]",
)  # fmt: skip


def lying_zips(sound: bytes) -> Iterator[tuple[str, bytes]]:
    """Zips with the members of a sound bundle and something that readers see differently."""
    with zipfile.ZipFile(io.BytesIO(sound)) as archive:
        members = [(one.filename, archive.read(one)) for one in archive.infolist()]

    def zipped(*more: tuple[str, bytes], method: int = zipfile.ZIP_STORED, comment: bytes = b"") -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as new:
            for name, data in (*members, *more):
                new.writestr(name, data)
            new.comment = comment
        return buffer.getvalue()

    yield "a member twice", zipped(members[0])
    yield "a manifest twice", zipped(("manifest.json", b"{}"))
    yield "names that differ in case", zipped(("Manifest.json", members[0][1]))
    for name in ("../owned", "/etc/owned", "a\\b", "models/\x1b[31m.onnx", "x" * 60_000):
        yield f"a member {name[:20]!r}", zipped((name, b"x"))
    yield "compressed", zipped(method=zipfile.ZIP_DEFLATED)
    yield "a bomb", zipped(("bomb", b"\0" * (64 << 20)), method=zipfile.ZIP_DEFLATED)
    yield "a bomb in LZMA", zipped(("bomb", b"\0" * (64 << 20)), method=zipfile.ZIP_LZMA)
    yield "a comment", zipped(comment=b"x" * 65_535)
    yield "bytes before", b"MZ" + b"\0" * 512 + sound
    yield "bytes after", sound + b"\0" * 512
    yield "two zips", sound + sound
    end = sound.rindex(b"PK\x05\x06")
    places = [n for n in range(end) if sound.startswith(b"PK\x01\x02", n)]
    for field, size, what in (
        (42, 4, "place"),
        (20, 4, "compressed size"),
        (24, 4, "size"),
        (16, 4, "checksum"),
    ):
        for value in (0, 1, 0x7FFFFFFF, 0xFFFFFFFF):
            changed = bytearray(sound)
            changed[places[-1] + field : places[-1] + field + size] = struct.pack("<I", value)
            yield f"{what} {value:#x}", bytes(changed)
    overlapping = bytearray(sound)
    overlapping[places[1] + 42 : places[1] + 46] = sound[places[0] + 42 : places[0] + 46]
    yield "members that overlap", bytes(overlapping)
    for count in (0, 1, 0xFFFF):
        changed = bytearray(sound)
        changed[end + 8 : end + 12] = struct.pack("<HH", count, count)
        yield f"{count} members", bytes(changed)


def is_printable(text: str) -> bool:
    """No controls but ends of lines and tabs."""
    return not [
        c for c in text if unicodedata.category(c) in ("Cc", "Zl", "Zp") and c not in "\n\t"
    ] and not any(
        c in text for c in "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    )


def labelled(sound: Path, trace: Path, folder: Path, generator: random.Random) -> list[list[str]]:
    """Files with hostile texts in all places that nothing verifies, and commands that print them."""
    text = "".join(generator.sample(TEXTS[:7], 3)) + generator.choice(TEXTS[:-3]).replace("\ud800", "?")
    database, traced = folder / "labelled.db", folder / f"t{text[:9]!r}.json"
    shutil.copy(sound, database)
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        for table in ("hardware", "fabric", "software"):
            connection.execute(f"UPDATE {table} SET description = ?", [text])
        connection.execute("UPDATE operator SET title = ?", [text])
    document = json.loads(trace.read_text())
    for event in document["traceEvents"]:
        if event.get("cat") == "kernel":
            event["name"] += text
    traced.write_text(json.dumps(document))
    page, name, form = (
        folder / "page.html",
        text.replace("/", "")[:40],
        generator.choice(["csv", "json", "table"]),
    )
    return [
        ["db", "info", str(database)],
        ["db", "check", str(database)],
        ["db", "diff", str(sound), str(database)],
        ["db", "query", str(database), "SELECT description FROM hardware", "--format", form],
        ["trace", "report", str(traced), "--html", str(page)],
        ["trace", "diff", str(traced), str(trace)],
        ["bundle", "info", text.replace("\0", "")],
        ["train", "--db", str(database), "-o", str(folder / name), "--report", name],
    ]  # fmt: skip


def job_text(generator: random.Random) -> str:
    """A batch script of Slurm, PBS or Flux whose values are hostile."""
    fields = ("model", "pp", "steps", "tokens", "micro_batch", "micro_batches", "bundle", "models", "zzz")
    prefix = generator.choice(("#SBATCH --time=", "#PBS -l walltime=", "#FLUX: -t ", "#flux: --time-limit="))
    lines = [
        "#!/bin/bash",
        prefix + generator.choice(TEXTS),
        "#KERNELCAST model=llama-2-7b micro_batch=1 steps=10",
    ]
    for _ in range(generator.randrange(4)):
        lines.append(f"#KERNELCAST {generator.choice(fields)}={generator.choice(TEXTS)}")
    generator.shuffle(lines)
    return "\n".join(lines)


def manifest(generator: random.Random) -> str:
    """A Kubernetes Job whose annotations and resources are hostile."""
    from yaml import safe_dump

    def value() -> object:
        return generator.choice(
            (*[one for one in TEXTS if "\ud800" not in one], None, -1, 10**40, 1e308, [], {}, True)
        )

    container = {"resources": {"limits": {"nvidia.com/gpu": value()}}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": value(),
            "annotations": {"kernelcast/model": value(), "kernelcast/steps": value(), f"kernelcast/{value()}": "1"},
            "labels": generator.choice((value(), {"kueue.x-k8s.io/max-exec-time-seconds": value()})),
        },
        "spec": {
            "completions": value(),
            "parallelism": value(),
            "activeDeadlineSeconds": value(),
            "template": {"spec": {"containers": generator.choice((value(), [container]))}},
        },
    }  # fmt: skip
    text: str = safe_dump(job)
    anchors = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else 'x'}]" for n in range(9))
    return generator.choice((text, text, f"{text}---\n{anchors}\n", text[: generator.randrange(len(text))]))


_HEAD = b"POST /predict HTTP/1.1\r\nHost: k\r\nContent-Type: application/json\r\n"
_GOOD = json.dumps({"model": "llama-2-7b", "micro_batch": 1, "micro_batches": 4}).encode()
SLOW: dict[str, tuple[int, bytes]] = {
    "unfinished heads": (300, b"GET /health HTTP/1.1\r\nHost: k\r\nX: "),
    "unfinished bodies": (300, _HEAD + b"Content-Length: 100\r\n\r\n{"),
    "unfinished chunks": (300, _HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"),
    "chunks of a byte": (4, _HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n{\r\n" * 300_000),
    "two lengths": (50, _HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "bodies above the limit": (8, _HEAD + b"Content-Length: 4000000\r\n\r\n" + b"x" * 4_000_000),
    "questions": (100, _HEAD + f"Content-Length: {len(_GOOD)}\r\n\r\n".encode() + _GOOD),
    "new questions": (100, b""),
    "catalogues": (20, b"GET /catalogue HTTP/1.1\r\nHost: k\r\n\r\n"),
    "pipelined questions": (4, b"GET /metrics HTTP/1.1\r\nHost: k\r\n\r\n" * 2_000),
}
"""Clients at once, and what each sends, a new question each time by default; none reads an answer."""


def _question(sequence_length: int) -> bytes:
    asked = {"model": "llama-2-7b", "sequence_length": sequence_length, "micro_batch": 1, "micro_batches": 4}
    body = json.dumps(asked).encode()
    return _HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


def _attack(where: Path, sent: bytes, clients: int) -> None:
    """Connect, send, wait a second, and again, with many clients, until killed."""
    lengths = itertools.count(64, 2)

    def attack() -> None:
        while True:
            question = sent or _question(next(lengths))
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
                client.settimeout(1)
                client.connect(str(where))
                client.sendall(question)
                time.sleep(1)

    for _ in range(clients - 1):
        threading.Thread(target=attack, daemon=True).start()
    attack()


def health_s(
    where: Path, sent: bytes, clients: int, for_s: float, between: Callable[[], object]
) -> list[float]:
    """Seconds of /health while clients send this and read nothing; `between` is called in turn with it."""
    health, found = b"GET /health HTTP/1.1\r\nHost: k\r\nConnection: close\r\n\r\n", []
    # In a process of its own, so that its threads do not delay the one that measures.
    attacking = get_context("fork").Process(target=_attack, args=(where, sent, clients), daemon=True)
    attacking.start()
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        between()
        begin = time.monotonic()
        answer = b""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.settimeout(15)
            client.connect(str(where))
            client.sendall(health)
            answer = client.recv(12)
        found.append(time.monotonic() - begin if answer == b"HTTP/1.1 200" else 15.0)
        time.sleep(0.02)
    attacking.kill()
    attacking.join()
    return found
