"""Wrong requests: one line that names the field, what was found and what was expected; never a file of the server."""

import json
from collections.abc import Callable
from typing import Any

import pytest

Server, Start = Any, Callable[..., Any]  # of conftest.py, which cannot be imported

ASKED = {"model": "llama-2-7b", "micro_batch": 1, "micro_batches": 4}
SEARCHED = {"model": "llama-2-7b", "gpus": 4, "global_batch": 8}
MODEL = {"hidden_size": 8, "sequence_length": 4, "attention_heads": 2, "layers": 4, "vocabulary_size": 100}
JSON = {"Content-Type": "application/json"}

FIELDS: list[tuple[str, dict[str, Any], str]] = [
    ("/predict", {**ASKED, "modle": 1}, "field 'modle' is unknown (did you mean model?)"),
    ("/predict", {"micro_batch": 1, "micro_batches": 1}, "model is not given"),
    ("/predict", {"model": "llama-2-7b", "micro_batches": 1}, "micro_batch is not given"),
    ("/predict", {"model": "llama-2-7b", "micro_batch": 1}, "neither micro_batches nor global_batch"),
    ("/predict", {**ASKED, "global_batch": 4}, "micro_batches and global_batch are both"),
    ("/predict", {**ASKED, "global_batch": None}, "global_batch is null"),
    ("/predict", {**ASKED, "micro_batch": 1.0}, "micro_batch is 1.0, expected a whole number from 1 to 1000000"),
    ("/predict", {**ASKED, "pp": True}, "pp is true, expected a whole number"),
    ("/predict", {**ASKED, "pp": 10**30}, "pp is 1000"),
    ("/predict", {**ASKED, "tp": 5}, "tp is 5, expected a divisor of attention_heads (32)"),
    ("/predict", {**ASKED, "schedule": "fifo"}, "schedule is 'fifo', expected gpipe, 1f1b, interleaved, zero_"),
    ("/predict", {**ASKED, "schedule": ["1f1b"]}, "schedule is ['1f1b'], expected"),
    ("/predict", {**ASKED, "layer_counts": 4}, "layer_counts is 4, expected one number per stage, 1 in all"),
    ("/predict", {**ASKED, "layer_counts": [4, "a"]}, "layer_counts is "),
    ("/predict", {**ASKED, "timeline": {}}, "timeline is {}, expected"),
    ("/predict", {**ASKED, "gpus_per_node": "8"}, "gpus_per_node is '8', expected"),
    ("/predict", {**ASKED, "gpu_memory_bytes": 0}, "gpu_memory_bytes is 0, expected"),
    ("/predict", {**ASKED, "sequence_length": 0}, "sequence_length is 0, expected"),
    ("/predict", {**ASKED, "model": "llama"}, "model 'llama' is unknown, nearest are llama-"),
    ("/predict", {**ASKED, "model": "/etc/passwd"}, "model '/etc/passwd' is unknown, known are "),
    ("/predict", {**ASKED, "model": ["llama-2-7b"]}, "model is ['llama-2-7b'], expected"),
    ("/predict", {**ASKED, "model": {**MODEL, "hidden_size": "8"}}, "model: hidden_size is '8', expected"),
    ("/predict", {**ASKED, "model": {"hidden_size": 8}}, "model: field sequence_length is missing"),
    ("/predict", {**ASKED, "model": {"model_type": "mixtral"}}, "model file model: "),
    ("/search", {**SEARCHED, "gpus": []}, "gpus is [], expected"),
    ("/search", {**SEARCHED, "gpus": [4, 4]}, "gpus is (4, 4), expected one or more different values"),
    ("/search", {**SEARCHED, "virtual_stages": [2, 3, 2]}, "virtual_stages is (2, 3, 2), expected one or more"),
    ("/search", {**SEARCHED, "gpus": ["4"]}, "gpus is '4', expected a whole number"),
    ("/search", {**SEARCHED, "gpus": [[4]]}, "gpus is [4], expected"),
    ("/search", {**SEARCHED, "gpus": 0}, "gpus is 0, expected"),
    ("/search", {**SEARCHED, "global_batch": "8"}, "global_batch is '8', expected"),
    ("/search", {**SEARCHED, "pp": "1;2"}, "pp is '1;2', expected numbers and ranges"),
    ("/search", {**SEARCHED, "pp": [0]}, "pp is 0, expected"),
    ("/search", {**SEARCHED, "zero": [4]}, "zero is 4, expected"),
    ("/search", {**SEARCHED, "zero": [True]}, "zero is true, expected"),
    ("/search", {**SEARCHED, "schedules": [{}]}, "schedules is {}, expected"),
    ("/search", {**SEARCHED, "sequence_parallel": 1}, "sequence_parallel is 1, expected"),
    ("/search", {**SEARCHED, "top": 101}, "top is 101, expected a whole number from 1 to 100"),
    ("/search", {**SEARCHED, "rank_by": "price"}, "rank_by is 'price', expected"),
    ("/search", {**SEARCHED, "gpu_memory_bytes": "80GB"}, "gpu_memory_bytes is '80GB', expected"),
    ("/walltime", ASKED, "neither steps, tokens nor samples is given"),
    ("/walltime", {**ASKED, "steps": 0}, "request: steps is 0, expected a whole number from 1 to"),
    ("/walltime", {**ASKED, "steps": 1, "tokens": 1}, "request: steps and tokens are both given"),
    ("/walltime", {**ASKED, "steps": 1, "tp": 5}, "request: tp is 5, expected a divisor"),
    ("/walltime", {**ASKED, "steps": 1, "model": "models/x.toml"}, "request: model is 'models/x.toml', expected"),
    ("/walltime", {**ASKED, "steps": 1, "bundle": "x"}, "field 'bundle' is unknown"),
    ("/walltime", {**ASKED, "steps": 1, "hardware": "gh"}, "hardware is 'gh', expected one of a100-sxm, "),
    ("/walltime", {**ASKED, "steps": 1, "models": "/etc"}, "field 'models' is unknown"),
    ("/walltime", {**ASKED, "steps": 1, "script": 3}, "script is 3, expected a batch script's text"),
    ("/walltime", {**ASKED, "steps": 1, "script": "#KERNELCAST off"}, "script contains #KERNELCAST off"),
    ("/walltime", {**ASKED, "steps": 1, "script": "#KERNELCAST pp"}, "batch script line 1: found 'pp', expected"),
    ("/walltime", {**ASKED, "steps": 1, "script": "#KERNELCAST model=/x"}, "batch script line 1: model is '/x'"),
    ("/walltime", {**ASKED, "steps": 1, "slurm": "nodes=1"}, "slurm is 'nodes=1', expected an object"),
    ("/walltime", {**ASKED, "steps": 1, "slurm": {"time": "1"}}, "slurm has 'time', expected only nodes, "),
    ("/walltime", {**ASKED, "steps": 1, "slurm": {"nodes": 1}}, "slurm's nodes is 1, expected a text"),
    ("/walltime", {**ASKED, "steps": 1, "slurm": {"gpus": "2"}}, "layout pp 1 × tp 1 × dp 1 has 1 GPU(s), expected 2"),
    ("/walltime", {**ASKED, "steps": 1, "asked": "soon"}, "asked is 'soon', expected a time"),
    ("/walltime", {**ASKED, "steps": 1, "asked": 60}, "asked is 60, expected a time"),
    ("/walltime", {**ASKED, "steps": 1, "model": {**MODEL, "norm": 1}}, "model: norm is 1, expected"),
]  # fmt: skip

BODIES = [
    (b"", "body is not JSON"),
    (b"{", "body is not JSON"),
    (b"[]", "body is [], expected a JSON object"),
    (b"null", "body is None, expected a JSON object"),
    (b'{"pp": NaN}', "body is not JSON (NaN is no number"),
    (b'{"pp": 1, "pp": 2}', "body has a field twice, expected each field once"),
    (b'\xff{"pp": 1}', "body is not UTF-8 (byte 0)"),
    (b"[" * 100_000, "body is nested too deeply"),
    (b'{"pp": ' + b"9" * 5000 + b"}", "body is not JSON"),
]


def test_fields(server: Server) -> None:
    for path, asked, expected in FIELDS:
        reply = server.post(path, asked)
        assert (reply.status, reply.error[: len(expected)]) == (422, expected), asked


def test_bodies(server: Server) -> None:
    for path in ("/predict", "/search", "/walltime"):
        for body, expected in BODIES:
            reply = server.request("POST", path, body, JSON)
            assert (reply.status, reply.error[: len(expected)]) == (400, expected), body[:20]


@pytest.mark.parametrize("kind", ["text/html", "text/plain", "application/x-www-form-urlencoded", ""])
def test_types(server: Server, kind: str) -> None:
    # A page in a browser can send these to any address without asking; it cannot send JSON.
    body = json.dumps(ASKED).encode()
    for path in ("/predict", "/search"):
        reply = server.request("POST", path, body, {"Content-Type": kind})
        assert (reply.status, reply.error) == (415, f"content type is {kind!r}, expected application/json")


def test_paths_and_methods(server: Server) -> None:
    nothing, got = server.get("/nothing"), server.get("/predict")
    assert (nothing.status, got.status) == (404, 405)
    assert b"path is '/nothing', expected one of /predict, /search, /walltime" in nothing.body
    assert b"method is 'GET', expected POST" in got.body
    assert server.get("/predict").headers["allow"] == "POST"
    assert server.post("/health", {}).status == 405
    assert server.request("HEAD", "/health").status == 200


@pytest.mark.parametrize(
    ("text", "query", "expected"),
    [
        (b"#KERNELCAST steps=x\n", "", "batch script line 1: steps is 'x', expected"),
        (b"#KERNELCAST \xff=x\n", "", "batch script line 1: field '\\udcff' is unknown"),
        (b"#KERNELCAST model=\x1b[31m\n", "", "micro_batch is not given"),
        (b"", "?asked=x", "asked is 'x', expected"),
        (b"", "?slurm=time=1", "slurm has 'time', expected"),
        (b"", "?pp=1", "query has 'pp'"),
        (b"", "?" + "&".join(["slurm=nodes=1"] * 33), "query has 33 parameters"),
        (
            b"#KERNELCAST model=llama-2-7b micro_batch=1 micro_batches=1000000 steps=1e12\n",
            "",
            "the job would take ",
        ),
    ],
)
def test_scripts_as_text(server: Server, text: bytes, query: str, expected: str) -> None:
    reply = server.script(text, query)
    limit, line = reply.body.decode().splitlines()
    assert (reply.status, limit) == (422, "")
    assert line.startswith(f"kernelcast: error: {expected}"), line
    assert line.isprintable()


def test_an_operator_that_the_bundle_lacks(start: Start, make_bundle: Callable[..., Any]) -> None:
    server = start(bundle=make_bundle(without=["rms_norm", "layer_norm"]))
    reply = server.post("/predict", ASKED)
    assert (reply.status, reply.error[:41]) == (422, "bundle test.kcast has no regressor for rm")
