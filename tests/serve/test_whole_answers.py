"""What every endpoint answers, to the letter: `whole_answers.txt`, which WRITE_WHOLE_ANSWERS=1 pytest THIS_FILE writes.

In this process, without sockets. Numbers have four digits, long lists their ends; what differs from run to run is
masked. Fields in the description of the server that tables of fields state stand there by their names alone.
"""

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kernelcast.plan.fields import PLAN
from kernelcast.runtime.bundle.fingerprint import FabricFingerprint
from kernelcast.runtime.operators import OPERATORS
from kernelcast.runtime.request.fields import MEMORY, MODEL, REQUEST, SEARCH, SHARED
from kernelcast.serve import Limits, Loaded
from kernelcast.serve.application import Application

TEXT = Path(__file__).with_name("whole_answers.txt")
TINY = {
    "name": "tiny",
    "hidden_size": 8,
    "sequence_length": 4,
    "attention_heads": 2,
    "layers": 4,
    "vocabulary_size": 100,
}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 256,
         "max_position_embeddings": 128}  # fmt: skip
OURS = {"name": "ours", "devices_per_node": 2, "inside": {"kind": "NVSwitch", "gb_per_s": 450},
        "between": {"kind": "RoCE", "cards": 2, "gbit_per_s": 400}}  # fmt: skip
STEP: dict[str, Any] = {"model": TINY, "micro_batch": 1, "micro_batches": 3}
SEARCHED: dict[str, Any] = {"model": TINY, "gpus": 4, "global_batch": 8, "gpu_memory_bytes": None}
SMALL = {**SEARCHED, "pp": [1, 2], "tp": 1, "top": 2}
JOB: dict[str, Any] = {**STEP, "steps": 1000}
SCRIPT = "#!/bin/bash\n#SBATCH --nodes=2 --gpus-per-node=1\n#KERNELCAST model=llama-2-7b micro_batch=1 dp=2\n" \
         "#KERNELCAST micro_batches=3 steps=1e5\n"  # fmt: skip
JSON, PLAIN = "application/json", "text/plain; charset=utf-8"

# Path and body: an object as JSON, a text as it is; then its content type, query, and whether its client leaves.
ASKED: list[tuple[str, Any, dict[str, Any]]] = [
    *((path, None, {}) for path in ("/catalogue", "/health", "/openapi.json", "/nothing", "/predict")),
    ("/predict", STEP, {}),
    ("/predict", STEP, {}),
    ("/predict", {**STEP, "model": "ours", "pp": 2, "schedule": "interleaved", "virtual_stages": 2, "tp": 2, "dp": 2,
                  "gpu_memory_bytes": 30_000, "reserved_memory_bytes": 10_000, "zero": 1, "micro_batches": 4}, {}),
    ("/predict", {**STEP, "framework": "megatron-lm", "dp": 2, "fabric": OURS}, {}),
    ("/predict", {**STEP, "stack": "megatron-core", "fabric": "h100-3200g"}, {}),
    ("/predict", {**STEP, "stack": "none such"}, {}),
    ("/predict", {**STEP, "framework": "deepspeed", "dp": 2, "gpus_per_node": 4, "timeline": "closed-form"}, {}),
    ("/predict", {**STEP, "hardware": "none such"}, {}),
    ("/predict", {**STEP, "hardware": ["h100-sxm"]}, {}),
    ("/predict", {**STEP, "model": LLAMA, "sequence_length": 32}, {}),
    ("/predict", {**STEP, "model": {**LLAMA, "model_type": "none such"}}, {}),
    ("/predict", {**STEP, "fabric": "none such"}, {}),
    ("/predict", {**STEP, "fabric": {**OURS, "inside": 3}}, {}),
    ("/predict", {**STEP, "pp": 16, "model": {**TINY, "layers": 32}}, {}),
    ("/predict", {**STEP, "pp": 32, "model": {**TINY, "layers": 32}}, {}),
    ("/choices", {**STEP, "dp": 2, "gpu_memory_bytes": 200_000}, {}),
    ("/choices", {**STEP, "pp": 2, "timeline": "closed-form", "gpu_memory_bytes": 9_000,
                  "reserved_memory_bytes": 9_999}, {}),
    ("/pictures", {**STEP, "pp": 2}, {}),
    ("/trace", {**STEP, "micro_batches": 1}, {}),
    ("/page", STEP, {}),
    ("/model", {"model": LLAMA}, {}),
    ("/model", {"model": "LLaMA-2 7B", "sequence_length": 128}, {}),
    ("/model", {"model": "ours", "steps": 3}, {}),
    ("/model", {"sequence_length": 128}, {}),
    ("/model", {"model": 7}, {}),
    ("/plan", {**STEP, "dp": 2, "steps": 100_000, "price": 2, "failure_rate": 9}, {}),
    ("/plan", {**STEP, "dp": 2, "steps": 0}, {}),
    ("/search", SMALL, {}),
    ("/search", {**SMALL, "top": 101}, {}),
    ("/search", {**SMALL, "top": 0}, {}),
    ("/search", {**SMALL, "gpu_memory_bytes": 10}, {}),
    ("/search", {**SMALL, "fabric": "ours", "global_batch": None}, {}),
    ("/search", {**SEARCHED, "gpus": [4096, 8192], "global_batch": 720_720}, {}),
    ("/search", {**SEARCHED, "gpus": 64, "global_batch": 64, "model": "llama-2-7b"}, {}),
    ("/search", SMALL, {"leaves": True}),
    ("/layouts", {**SMALL, "top": 10_000}, {}),
    ("/layouts", {**SMALL, "top": 10_001}, {}),
    ("/walltime", {**JOB, "slurm": {"nodes": "1", "ntasks": "1"}, "asked": "00:01"}, {}),
    ("/walltime", {**JOB, "model": {**TINY, "name": "a/b.toml"}, "fabric": OURS, "startup": "3m", "margin": "10%"}, {}),
    ("/walltime", {**JOB, "script": SCRIPT, "steps": 10, "dp": 1, "slurm": {"nodes": "1"}}, {}),
    ("/walltime", {**JOB, "hardware": "none such"}, {}),
    ("/walltime", SCRIPT, {"type": PLAIN}),
    ("/walltime", SCRIPT, {"type": PLAIN, "query": "asked=1&slurm=nodes=1&slurm=gpus-per-node=2"}),
    ("/walltime", SCRIPT, {"type": PLAIN, "query": "pp=2&asked=1"}),
    ("/walltime", SCRIPT, {"type": PLAIN, "query": "&".join(["slurm=nodes=2"] * 32)}),
    ("/walltime", SCRIPT, {"type": PLAIN, "query": "&".join(["slurm=nodes=2"] * 33)}),
    ("/walltime", SCRIPT + "#KERNELCAST stack=\udcff\n", {"type": PLAIN}),
    ("/walltime", "x" * 5000, {"type": PLAIN}),
    ("/walltime", "x", {"type": "text/html"}),
    *(("/predict", body, {"type": JSON}) for body in ("", "[1]", '{"pp": Infinity}', '{"pp": 1, "pp": 1}', "\udcff{}")),
    ("/predict", "{}", {"type": "Application/JSON; charset=utf-8"}),
    ("/predict", "{}", {}),
    ("/predict", "{}", {"type": "x" * 100}),
    ("/predict", " " * 5000, {"type": JSON, "leaves": True}),
    ("/reload", {}, {}),
]  # fmt: skip
HOSTS = [
    *((b"host", one) for one in (b"localhost", b"LOCALHOST:80", b"127.9.9.9:1", b"[::1]:80", b"::1", b"10.0.0.1",
                                 b"example.org", b"[::2]", b"localhost:123456", b"", b" localhost ", b"127.0.0.1.org")),
    *((b"sec-fetch-site", one) for one in (b"none", b" Same-Origin ", b"same-site", b"cross-site", b"")),
]  # fmt: skip
# What stands in answers, and differs from run to run or is of this process.
_VARIES = re.compile(
    r'(?<="seconds": )[\d.e+-]+|(?<="version": )"[^"]*"|\b[0-9a-f]{64}\b|\d{4}-\d\d-\d\dT[\d:]+\+00:00'
)
_DEEP = re.compile(r'\n +(?=["\]}[{])|(?<=[\[,])\n +(?=[-\d.#tfn"]+,?)', re.MULTILINE)
_FIELDS = {**PLAN, **MEMORY, **MODEL, **REQUEST, **SEARCH, **SHARED}


def short(value: Any) -> Any:
    """Four digits, the ends of lists and texts; a field of the description that a table states in full is its name."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, str):
        return value if len(value) <= 400 else f"{value[:200]} … {len(value) // 100} hundred … {value[-100:]}"
    if isinstance(value, list):
        ends = value if len(value) <= 8 else [*value[:3], f"… {len(value)} …", value[-1]]
        return [short(one) for one in ends]
    if isinstance(value, dict):
        return {
            name: "as the field"
            if name in _FIELDS and isinstance(one, dict) and one == _FIELDS[name].schema
            else short(one)
            for name, one in value.items()
        }
    return value


def shown(body: bytes, before: dict[str, Any]) -> str:
    """An answer; of a second one of its format what differs from the one `before`."""
    if not body.startswith(b"{"):
        return str(short(body.decode()))
    found = short(json.loads(body))
    first = before.setdefault(found["format"], found) if "format" in found else found
    if first is not found:
        found = {
            name: found.get(name, "none") for name in {**first, **found} if found.get(name) != first.get(name)
        }
    text = json.dumps(found, indent=1, ensure_ascii=False)
    return _VARIES.sub("#", _DEEP.sub(" ", text))


async def answered(asgi: Any, path: str, body: bytes | None, headers: list[Any], *, query: str = "",
                   leaves: bool = False) -> tuple[int, list[tuple[bytes, bytes]], bytes]:  # fmt: skip
    """What a client reads that sends all at once, and then waits, or `leaves`."""
    coming: list[dict[str, Any]] = [
        {"type": "http.request", "body": one, "more_body": more}
        for one, more in (((body or b"")[:1000], True), ((body or b"")[1000:], False))
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not coming and not leaves:
            await asyncio.Event().wait()
        return coming.pop(0) if coming else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "path": path,
             "method": "GET" if body is None else "POST", "query_string": query.encode(), "headers": headers,
             "raw_path": path.encode(), "root_path": "", "client": None, "server": None}  # fmt: skip
    await asgi(scope, receive, send)
    start, *parts = sent
    assert [one.get("more_body", False) for one in parts] == [True] * (len(parts) - 1) + [False]
    return start["status"], start["headers"], b"".join(one.get("body", b"") for one in parts)


def whole(asked: list[tuple[str, Any, dict[str, Any]]], asgi: Any) -> Iterator[str]:
    before: dict[str, Any] = {}
    for path, body, more in asked:
        kind = more.pop("type", JSON if isinstance(body, dict) else "")
        content = body if body is None else (
            json.dumps(body) if isinstance(body, dict) else body
        ).encode(errors="surrogateescape")  # fmt: skip
        headers = [(b"host", b"k"), *([(b"content-type", kind.encode())] if kind else [])]
        status, found, text = asyncio.run(answered(asgi, path, content, headers, **more))
        lengths = [int(value) for name, value in found if name == b"content-length"]
        assert lengths in ([], [len(text)]), path
        yield f"> {path} {short(str(body))} {kind} {more or ''}".rstrip()
        others = [b": ".join(one).decode() for one in found if one[0] != b"content-length"]
        yield f"< {status} {'; '.join(others)}{'' if lengths else '; without a length'}"
        yield shown(text, before)


def everything(bundle: Path, environment: Mapping[str, str]) -> Iterator[str]:
    loaded = Loaded.load(bundle, environment)
    limits = Limits(
        workers=1, waiting=2, max_body_bytes=4096, max_search_layouts=500, small_chunks=8, most_chunks=16
    )

    def application(limits: Limits = limits, **more: Any) -> Application:
        options = {"environment": environment, "can_reload": False, **more}
        return Application(bundle, loaded, limits, **options)

    served = application(can_reload=True)
    yield f"{loaded.name} {loaded.site} {sorted(loaded.fabrics)} {loaded.problems}"
    yield from whole([(path, body, dict(more)) for path, body, more in ASKED], served.asgi)
    figures = asyncio.run(answered(served.asgi, "/metrics", None, []))
    yield f"{figures[0]} {figures[1][0]}"
    for line in figures[2].decode().splitlines():
        if 'seconds_bucket{le="' in line and "/health" in line:
            yield line.rpartition(" ")[0]
        if line.startswith("# ") or re.match(r"kernelcast_(?!request_seconds_(?:bucket|sum))", line):
            yield _VARIES.sub("#", line)
    for name, limited in (
        ("times", Limits(time_s=-1.0)),
        ("bytes", Limits(answer_bytes=9, workers=1, waiting=0)),
        ("no reload", Limits()),
    ):
        other = application(limited)
        yield f"= {name}"
        yield from whole(
            [("/predict", STEP, {}), ("/walltime", SCRIPT, {"type": PLAIN}), ("/reload", {}, {})], other.asgi
        )
        if name == "bytes":
            other._unread.response(b"12345", JSON)  # which is not read
            again = [("/predict", {**STEP, "dp": 2}, {}), ("/walltime", SCRIPT, {"type": PLAIN})]
            yield from whole(again, other.asgi)
        described = json.loads(asyncio.run(answered(other.asgi, "/openapi.json", None, []))[2])
        yield ", ".join(described["paths"])
        other.close()
    local = application(is_local=True)
    for header in HOSTS:
        status, _, text = asyncio.run(answered(local.asgi, "/health", None, [header]))
        yield f"{header} {status} {text.decode() if status != 200 else ''}"
    (bundle.parent / "site.toml").write_text("models = 3\n")
    yield from whole([("/reload", {}, {})], served.asgi)
    for one in (served, local):
        one.close()


def test_answers(make_bundle: Callable[..., Path], linear_model: Callable[..., bytes], tmp_path: Path,
                 capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    times = {
        operator.name: linear_model([1e-3] * len(operator.features), number)
        for number, operator in enumerate(OPERATORS.values(), start=1)
    }
    bundle = make_bundle(times, fabric=[FabricFingerprint(backend="nccl", gpus_per_node=4)])
    shipped = (Path(__file__).parents[2] / "runtime/shipped/fabrics/h200-3200g.toml").read_text()
    (tmp_path / "network.toml").write_text(shipped.replace("h200-3200g", "site's own"))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "ours.json").write_text(json.dumps({**TINY, "name": "ours", "layers": 8}))
    (tmp_path / "models" / "broken.toml").write_text("hidden_size = 0\n")
    (tmp_path / "site.toml").write_text(
        'models = "models"\nfabric = "network.toml"\nmargin = "50%"\nmodel = "models/ours.json"\n'
    )
    environment = {"KERNELCAST_SITE": str(tmp_path / "site.toml")}
    waited_s, timeout = [], asyncio.timeout

    def sooner(time_s: float) -> asyncio.Timeout:
        waited_s.append(time_s)
        return timeout(time_s if time_s != 5 else 0.01)

    monkeypatch.setattr(asyncio, "timeout", sooner)
    found = "\n".join(everything(bundle, environment)) + f"\n{_VARIES.sub('#', capsys.readouterr().err)}"
    found += f"waited at most {sorted(set(waited_s))} s\n"
    found = found.encode("utf-8", "backslashreplace").decode()  # a request of no UTF-8
    found = re.sub(
        r"(?<=\.kcast )[0-9a-f]{12}|(?<=refused, )[0-9a-f]{12}", "#", found.replace(str(tmp_path), "HERE")
    )
    if "WRITE_WHOLE_ANSWERS" in os.environ:
        TEXT.write_text(found, encoding="utf-8")
    assert found == TEXT.read_text(encoding="utf-8")
