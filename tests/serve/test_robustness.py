"""Whatever comes in, the server answers on: no crash, no hang, no leak, and never status 500."""

import http.client
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, get_args

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from kernelcast.runtime.catalogue import all_hardware
from kernelcast.runtime.request.fields import Schedule
from kernelcast.serve.loaded import MOST_LOADED

Server, Start = Any, Callable[..., Any]  # of conftest.py, which cannot be imported

PATHS = ("/predict", "/search", "/walltime")
# Schemas cannot say which fields go together, so that not all they allow is accepted.
LEFT_OUT = [positive_data_acceptance]
SCRIPT = (
    b"#!/bin/bash\n#SBATCH --nodes=2 --gpus=8\n#KERNELCAST model=llama-2-7b micro_batch=1 steps=10 pp=2\n"
)

FOR_ALL_BUNDLES_BYTES = 80 << 20  # sent answers (16), and data shared by layouts (64), see docs/serve.md
ALLOCATOR_BYTES = 64 << 20

degrees = st.sampled_from([1, 1, 1, 2, 3, 4, 8, 16, 512, 1_000_000])
models = st.one_of(
    st.sampled_from(["llama-2-7b", "gpt-20b", "mistral-7b", "x"]),
    st.fixed_dictionaries(
        {"hidden_size": degrees.map(lambda n: n * 64), "sequence_length": degrees, "attention_heads": degrees,
         "layers": degrees, "vocabulary_size": degrees},
        optional={"norm": st.sampled_from(["rms_norm", "layer_norm"]), "kv_heads": degrees, "mlp_size": degrees},
    ),
)  # fmt: skip
layouts = st.fixed_dictionaries(
    {"model": models, "micro_batch": degrees, "micro_batches": degrees},
    optional={
        "pp": degrees, "tp": degrees, "dp": degrees, "zero": st.integers(0, 3), "virtual_stages": degrees,
        "schedule": st.sampled_from(get_args(Schedule)),
        "recompute": st.sampled_from(["none", "selective", "full"]), "sequence_parallel": st.booleans(),
        "timeline": st.sampled_from(["simulate", "closed-form"]), "gpus_per_node": degrees,
    },
)  # fmt: skip
jobs = st.builds(lambda layout, more: {**layout, **more}, layouts, st.fixed_dictionaries({"steps": degrees}))
searches = st.fixed_dictionaries(
    {"model": models, "gpus": degrees, "global_batch": degrees},
    optional={
        "pp": degrees,
        "zero": st.integers(0, 3),
        "top": st.integers(1, 5),
        "gpu_memory_bytes": st.none(),
    },
)
# Questions that make sense, or nearly: they reach what computes.
sensible = st.one_of(
    st.tuples(st.just("/predict"), layouts),
    st.tuples(st.just("/walltime"), jobs),
    st.tuples(st.just("/search"), searches),
)


class Fuzz:
    """Sends requests of every kind, and counts what came back."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        self.statuses: Counter[int] = Counter()
        self.url = server.where
        self.session = requests.Session()
        schema = schemathesis.openapi.from_url(f"{self.url}/openapi.json")
        self.operations = [found.ok() for found in schema.get_all_operations()]
        self.connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close what is open."""
        self.session.close()
        if self.connection is not None:
            self.connection.close()

    def see(self, status: int, what: object) -> None:
        """Count an answer; 503 is the only one from 500 on that may be."""
        self.statuses[status] += 1
        assert status < 500 or status == 503, what

    def described(self, mode: GenerationMode, examples: int) -> None:
        """Requests made from the description; their answers have to be as it says."""
        cases = st.one_of([operation.as_strategy(mode) for operation in self.operations])

        @settings(
            max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(cases)
        def ask(case: Any) -> None:
            response = case.call(base_url=self.url, session=self.session, timeout=600)
            self.see(response.status_code, case.body)
            case.validate_response(response, excluded_checks=LEFT_OUT)

        ask()

    def sensible(self, examples: int) -> None:
        """Questions that mostly have an answer."""

        @settings(
            max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(sensible)
        def ask(question: tuple[str, dict[str, Any]]) -> None:
            path, values = question
            self.post(path, json.dumps(values).encode(), "application/json")

        ask()

    def bodies(self, count: int) -> None:
        """Random bytes, and questions with random damage."""
        good = json.dumps({"model": "llama-2-7b", "micro_batch": 1, "micro_batches": 4, "pp": 2}).encode()
        for _ in range(count):
            path = self.random.choice(PATHS)
            script = path == "/walltime" and self.random.random() < 0.5
            body = bytearray(SCRIPT if script else good)
            if self.random.random() < 0.3:
                body = bytearray(self.random.randbytes(self.random.randrange(200)))
            for _ in range(self.random.randrange(4)):
                at = self.random.randrange(len(body) + 1)
                body[at : at + self.random.randrange(3)] = self.random.choice(
                    [
                        b"",
                        b'"',
                        b"{",
                        b"[" * 50,
                        b"\0",
                        b"\xff",
                        b"9" * 30,
                        b"1e9",
                        b"null",
                        b"-",
                        b" pp=3",
                        b"=",
                    ]
                )
            self.post(path, bytes(body), "text/plain" if script else "application/json")

    def raw(self, count: int) -> None:
        """Bytes that are no HTTP, or nearly."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        head = b"POST /predict HTTP/1.1\r\nHost: k\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
        for _ in range(count):
            with socket.create_connection((host, int(port)), timeout=300) as client:
                data = bytearray(head if self.random.random() < 0.7 else self.random.randbytes(300))
                for _ in range(self.random.randrange(1, 4)):
                    data[self.random.randrange(len(data))] = self.random.randrange(256)
                client.sendall(bytes(data))
                if self.random.random() < 0.5:
                    client.shutdown(socket.SHUT_WR)
                    answer = client.recv(4096)
                    if answer:
                        self.see(int(answer.split()[1]), bytes(data))

    def post(self, path: str, body: bytes, kind: str) -> None:
        """One request on the connection that stays open."""
        if self.connection is None:
            self.connection = self.server.connection()
        self.connection.request("POST", path, body, {"Content-Type": kind})
        response = self.connection.getresponse()
        content = response.read()
        self.see(response.status, body)
        if kind == "application/json" and response.status != 200:
            assert list(json.loads(content)) == ["error"]
        if response.will_close:
            self.connection.close()
            self.connection = None

    def for_a_while(self, duration_s: float) -> None:
        """All kinds in turn."""
        end = time.monotonic() + duration_s
        while time.monotonic() < end:
            self.described(GenerationMode.POSITIVE, 20)
            self.described(GenerationMode.NEGATIVE, 40)
            self.sensible(40)
            self.bodies(2000)
            self.raw(50)


@pytest.fixture
def fuzzed(start: Start, make_bundle: Callable[..., Path]) -> Iterator[Fuzz]:
    limits = ("--max-search", "2000", "--max-body", "100000", "--time-limit", "300")
    server = start(*limits, bundle=make_bundle(), listen="127.0.0.1:0")
    fuzz = Fuzz(server, seed=33)
    yield fuzz
    fuzz.close()


def survives(
    fuzz: Fuzz,
    until: Callable[..., None],
    *,
    warm_s: float,
    long_s: float,
    growth_bytes: int,
    load: Callable[[], None] = lambda: None,
) -> None:
    """Memory is compared after `load`, so that the same is loaded both times."""
    server = fuzz.server
    fuzz.for_a_while(warm_s)
    load()
    files, memory_bytes = server.open_files(), server.memory_bytes()
    fuzz.for_a_while(long_s)
    load()
    until(lambda: server.open_files() <= files)
    grown_bytes = server.memory_bytes() - memory_bytes
    print(
        f"{fuzz.statuses.total()} requests: {dict(fuzz.statuses)}; memory grew by {grown_bytes / 2**20:.1f} MiB "
        f"from {memory_bytes / 2**20:.0f}"
    )
    assert grown_bytes < growth_bytes
    assert server.process.poll() is None
    assert server.get("/health").json["status"] == "ok"
    assert {200, 400, 422} <= set(fuzz.statuses), fuzz.statuses
    assert "Traceback" not in server.log.read_text()


@pytest.mark.slow(minutes=1)
def test_a_few_seconds_of_anything(fuzzed: Fuzz, until: Callable[..., None]) -> None:
    survives(fuzzed, until, warm_s=5, long_s=8, growth_bytes=150 << 20)


@pytest.mark.slow(minutes=6)
def test_five_minutes_of_anything(fuzzed: Fuzz, until: Callable[..., None]) -> None:
    """A leak of 1 KB per request fails: they are some 180,000, and what may grow is bounded."""
    rounds = count(1)

    def ask(names: Iterable[str], questions: int) -> None:
        micro_batches = next(rounds)  # new questions: the regressors of their answers are loaded
        for name in names:
            for micro_batch in range(1, questions + 1):
                asked = {"micro_batch": micro_batch, "micro_batches": micro_batches, "hardware": name}
                body = json.dumps({"model": "llama-2-7b", **asked}).encode()
                fuzzed.post("/predict", body, "application/json")

    def load() -> None:
        ask(list(all_hardware())[:MOST_LOADED], 400)  # enough to fill the caches of a bundle

    ask(all_hardware(), 1)  # read once
    growth_bytes = FOR_ALL_BUNDLES_BYTES + ALLOCATOR_BYTES
    survives(fuzzed, until, warm_s=60, long_s=240, growth_bytes=growth_bytes, load=load)
