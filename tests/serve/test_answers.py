"""What a server answers is what the commands print."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kernelcast.cli.main import kernelcast

Server, Start = Any, Callable[..., Any]  # of conftest.py, which cannot be imported

TINY = {
    "name": "tiny",
    "hidden_size": 8,
    "sequence_length": 4,
    "attention_heads": 2,
    "layers": 4,
    "vocabulary_size": 100,
}
LINES = "#!/bin/bash\n#KERNELCAST model=llama-2-7b micro_batch=1\n#KERNELCAST micro_batches=3 steps=1e6\n"


def printed(*command: str) -> Any:
    result = CliRunner().invoke(kernelcast, command, catch_exceptions=False)
    return json.loads(result.stdout)


def without_path(values: Any) -> Any:
    values["provenance"]["bundle"] = Path(values["provenance"]["bundle"]).name
    return values


@pytest.fixture
def bundle(make_bundle: Callable[..., Path]) -> Path:
    return make_bundle()


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"micro_batches": 8}, "--micro-batches 8"),
        (
            {"micro_batches": 8, "gpu_memory_bytes": 80_000_000_000},  # it does not fit, but would
            "--micro-batches 8 --gpu-memory 80GB",
        ),
        (
            {"global_batch": 32, "dp": 2, "tp": 2, "pp": 2, "schedule": "zero_bubble", "zero": 3, "gpus_per_node": 4},
            "--global-batch 32 --dp 2 --tp 2 --pp 2 --schedule zero_bubble --zero 3 --gpus-per-node 4",
        ),
        (
            {
                "micro_batches": 4, "pp": 2, "schedule": "interleaved", "virtual_stages": 2, "recompute": "full",
                "layer_counts": [8, 8, 8, 8], "sequence_length": 128, "timeline": "closed-form",
                "bucket_entries": 1000, "gpu_memory_bytes": 80_000_000_000,
            },
            "--micro-batches 4 --pp 2 --schedule interleaved --virtual-stages 2 --recompute full --layer-counts 8,8,8,8"
            " --sequence-length 128 --timeline closed-form --bucket-entries 1000 --gpu-memory 80GB",
        ),
        (
            {"micro_batches": 1, "tp": 2, "sequence_parallel": True},
            "--micro-batches 1 --tp 2 --sequence-parallel",
        ),
    ],
)  # fmt: skip
def test_predict(start: Start, bundle: Path, fields: dict[str, Any], options: str) -> None:
    server = start(bundle=bundle)
    expected = printed(
        "predict",
        "--bundle",
        str(bundle),
        "--model",
        "llama-2-7b",
        "--micro-batch",
        "2",
        "--json",
        *options.split(),
    )
    asked = {"model": "llama-2-7b", "micro_batch": 2, **fields}
    for _ in range(2):  # new, then as it was answered before
        reply = server.post("/predict", asked)
        assert reply.status == 200, reply
        assert reply.json == without_path(expected)


def test_a_model_by_its_fields(start: Start, bundle: Path, tmp_path: Path) -> None:
    server = start(bundle=bundle)
    file = tmp_path / "tiny.json"
    file.write_text(json.dumps(TINY))
    options = ["--micro-batch", "2", "--micro-batches", "8", "--json"]
    expected = printed("predict", "--bundle", str(bundle), "--model", str(file), *options)
    reply = server.post("/predict", {"model": TINY, "micro_batch": 2, "micro_batches": 8})
    assert reply.json == without_path(expected)


def test_a_model_as_hugging_face_writes_it(server: Server) -> None:
    config = Path(__file__).parent.parent / "runtime" / "request" / "models" / "configs" / "llama-2-7b.json"
    asked = {"micro_batch": 1, "micro_batches": 1}
    reply = server.post("/predict", {"model": json.loads(config.read_text()), **asked})
    expected = server.post("/predict", {"model": "llama-2-7b", **asked})
    assert reply.json["step_time_s"] == expected.json["step_time_s"]


def test_search(start: Start, bundle: Path) -> None:
    server = start(bundle=bundle)
    options = "--model llama-2-7b --gpus 4,8 --global-batch 16 --zero 1 --pp 1-2 --top 3 --json"
    expected = printed(
        "search", *options.split(),
        "--gpu-memory", "any", "--bundle", str(bundle),
    )  # fmt: skip
    reply = server.post(
        "/search",
        {"model": "llama-2-7b", "gpus": [4, 8], "global_batch": 16, "zero": 1, "pp": "1-2", "top": 3,
         "gpu_memory_bytes": None},
    )  # fmt: skip
    found = reply.json
    assert found.pop("seconds") > 0
    del expected["seconds"]
    expected["provenance"]["bundle"] = bundle.name
    assert found == expected
    assert len(found["top"]) == 3


def test_search_with_all_its_fields(server: Server) -> None:
    asked = {
        "model": TINY, "gpus": 4, "global_batch": 8, "gpus_per_node": 2, "gpu_memory_bytes": 10**12, "pp": [1, 2],
        "tp": 1, "dp": "1-", "micro_batch": [1, 2, 4], "micro_batches": "1-8", "virtual_stages": 2, "top": 1,
        "schedules": ["1f1b", "interleaved"], "recompute": "none", "zero": [0, 1], "sequence_parallel": False,
        "timeline": "closed-form", "rank_by": "tokens-per-gpu", "bucket_entries": 10, "sequence_length": 2,
    }  # fmt: skip
    reply = server.post("/search", asked)
    assert reply.status == 200, reply
    assert len(reply.json["top"]) == 1
    assert reply.json["best"]["parallelism"]["tp"] == 1


def test_nothing_found_is_an_answer(server: Server) -> None:
    reply = server.post(
        "/search", {"model": "llama-2-7b", "gpus": 1, "global_batch": 1, "gpu_memory_bytes": 1}
    )
    assert (reply.status, reply.json["best"], reply.json["out_of_memory"] > 0) == (200, None, True)


def test_walltime_of_fields(start: Start, bundle: Path) -> None:
    server = start(bundle=bundle)
    options = (
        "--model llama-2-7b --micro-batch 1 --micro-batches 3 --tokens 1e9 --dp 2 --startup 3m --asked 1:00"
    )
    expected = printed("walltime", "--bundle", str(bundle), "--format", "json", *options.split())
    reply = server.post(
        "/walltime",
        {"model": "llama-2-7b", "micro_batch": 1, "micro_batches": "3", "tokens": 1e9, "dp": 2, "startup": "3m",
         "asked": "1:00"},
    )  # fmt: skip
    found = reply.json
    assert found["settings"].pop("bundle") == {"value": bundle.name, "origin": "server"}
    assert found["settings"]["startup"] == {"value": 180.0, "origin": "request"}
    del found["settings"], expected["settings"]
    assert found == without_path(expected)
    assert found["warnings"]


def test_a_script_as_text(start: Start, bundle: Path, tmp_path: Path) -> None:
    server = start(bundle=bundle)
    script = tmp_path / "job"
    script.write_text(LINES)
    command = ["walltime", str(script), "--bundle", str(bundle), "--format", "slurm", "--asked", "00:01"]
    result = CliRunner().invoke(kernelcast, [*command, "--slurm", "gpus=1"], catch_exceptions=False)
    reply = server.script(LINES.encode(), "?asked=00:01&slurm=gpus=1")
    assert reply.status == 200
    limit, *warnings = reply.body.decode().splitlines()
    assert limit == result.stdout.strip()
    assert [f"{line}\n" for line in warnings] == result.stderr.splitlines(keepends=True)


def test_a_script_as_json(server: Server) -> None:
    asked = {"script": LINES, "steps": 10, "slurm": {"nodes": "1", "gpus-per-node": "1"}, "model": TINY}
    reply = server.post("/walltime", asked)
    assert reply.status == 200, reply
    assert reply.json["steps"] == 10
    assert reply.json["settings"]["model"] == {"value": "tiny", "origin": "request"}
    assert reply.json["settings"]["micro_batches"]["origin"] == "batch script line 3"


def test_the_site_s_file_counts(start: Start, tmp_path: Path) -> None:
    models = tmp_path / "secret-models"
    models.mkdir()
    (models / "ours.json").write_text(json.dumps({**TINY, "name": "ours"}))
    (models / "broken.toml").write_text("hidden_size = 0\n")
    site = tmp_path / "site.toml"
    site.write_text('bundle = "nowhere.kcast"\nmargin = "50%"\nmodels = "secret-models"\n')
    server = start(site=site)
    assert "broken" in server.log.read_text()
    asked = {"model": "ours", "micro_batch": 1, "micro_batches": 1}
    assert server.post("/predict", asked).json["model"]["layers"] == 4
    found = server.post("/walltime", {**asked, "steps": 10}).json
    assert found["margin"] == 0.5
    assert found["settings"]["margin"]["origin"] == "site file"
    script = b"#KERNELCAST model=ours micro_batch=1 micro_batches=1 steps=1\n"
    assert server.script(script).body == b"00:01:00\n"
    wrong = server.script(script + b"#KERNELCAST model=broken\n").body
    assert b"ours" in server.post("/predict", {**asked, "model": "x"}).body
    for body in (wrong, json.dumps(found).encode()):
        assert str(tmp_path).encode() not in body


def test_health_metrics_and_description(start: Start) -> None:
    server = start()
    health = server.get("/health").json
    assert health["status"] == "ok"
    assert len(health["bundle_digest"]) == 64
    server.post("/predict", {})
    assert server.metric('kernelcast_requests_total{path="/predict",status="422"}') == 1
    assert server.metric('kernelcast_requests_total{path="/health",status="200"}') == 1
    assert server.metric(f'kernelcast_bundle_info{{digest="{health["bundle_digest"]}"}}') == 1
    server.get("/x/1")
    server.get("/x/2")
    assert server.metric('kernelcast_requests_total{path="other",status="404"}') == 2
    assert server.metric("process_resident_memory_bytes") > 1e6
    described = server.get("/openapi.json").json
    assert described["openapi"].startswith("3.1")
    assert set(described["paths"]) == {
        "/predict", "/search", "/walltime", "/layouts", "/choices", "/model", "/pictures", "/page", "/trace", "/plan",
        "/catalogue", "/health", "/metrics", "/openapi.json", "/reload",
    }  # fmt: skip


def test_the_description_knows_every_field(server: Server) -> None:
    """Fields that a question takes are those that the description has, and the other way round."""
    schemas = server.get("/openapi.json").json["components"]["schemas"]
    for path, name in (
        ("/predict", "PredictRequest"),
        ("/search", "SearchRequest"),
        ("/layouts", "LayoutsRequest"),
        ("/choices", "PredictRequest"),
        ("/model", "ModelRequest"),
        ("/walltime", "WalltimeRequest"),
        ("/plan", "PlanRequest"),
    ):
        known = server.post(path, {"unheard of": 1}).error
        assert known.split("known are ")[1].split(", ") == list(schemas[name]["properties"])


def test_the_description_names_what_a_prediction_answers_first(server: Server) -> None:
    paths = server.get("/openapi.json").json["paths"]
    content = paths["/predict"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    asked = {"model": "llama-2-7b", "micro_batch": 1, "micro_batches": 1}
    answer = server.post("/predict", asked).json
    assert {"mfu", "tflops_per_device", "peak"} <= set(content["properties"]) <= set(answer)
    assert set(content["required"]) == set(content["properties"])


def test_no_answer_names_a_path_of_the_server(server: Server, tmp_path: Path) -> None:
    folder = Path(server.where.removeprefix("unix:")).parent
    asked = {"model": "llama-2-7b", "micro_batch": 1, "micro_batches": 1, "steps": 1}
    bodies = [server.get(path).body for path in ("/health", "/metrics", "/openapi.json", "/no/such/path")]
    bodies += [
        server.post("/walltime", asked).body,
        server.post("/walltime", {**asked, "model": "/etc/passwd"}).body,
    ]
    del asked["steps"]
    bodies += [
        server.post("/predict", asked).body,
        server.post("/predict", {**asked, "model": "x.toml"}).body,
    ]
    for body in bodies:
        for secret in (tmp_path, folder, Path(__file__).parent.parent.parent, os.getcwd()):
            assert str(secret).encode() not in body


OURS = {
    "name": "ours",
    "devices_per_node": 8,
    "inside": {"kind": "NVSwitch", "gb_per_s": 450},
    "between": {"kind": "RoCE", "cards": 8, "gbit_per_s": 400},
}


@pytest.mark.parametrize("fabric", ["h100-3200g", OURS])
def test_a_fabric_by_name_or_by_its_fields(bundle: Path, start: Start, fabric: Any) -> None:
    server = start(bundle=bundle)
    name = fabric if isinstance(fabric, str) else "ours"
    asked = {"model": TINY, "micro_batch": 1, "micro_batches": 2, "dp": 16, "fabric": fabric}
    estimate = server.post("/predict", asked).json
    assert estimate["provenance"]["collectives"]["name"] == name
    assert estimate["cluster"] == {"gpus_per_node": 8, "source": "fabric"}
    found = server.post("/search", {"model": TINY, "gpus": 16, "global_batch": 16, "fabric": fabric}).json
    assert found["provenance"]["collectives"]["name"] == name
    job = server.post("/walltime", {**asked, "steps": 10}).json
    assert job["provenance"]["collectives"]["name"] == name
    assert job["step_time_s"] == estimate["step_time_s"]


def test_a_measured_fabric_answers_by_its_bundle(bundle: Path, start: Start) -> None:
    server = start(bundle=bundle)
    asked = {"model": TINY, "micro_batch": 1, "micro_batches": 2, "dp": 16, "fabric": "vista-measured"}
    assert server.post("/predict", asked).json["provenance"]["collectives"]["name"] == "vista-measured"


def test_requests_name_no_file_as_fabric(bundle: Path, start: Start) -> None:
    server = start(bundle=bundle)
    asked = {"model": TINY, "micro_batch": 1, "micro_batches": 2, "steps": 1}
    for fabric in ("/etc/passwd", "ours.toml", "test.kcast", "nothing", 3, {"name": "x"}, {**OURS, "a": 1}):
        for place in ("/predict", "/walltime"):
            fields = {name: value for name, value in asked.items() if name != "steps" or place == "/walltime"}
            reply = server.post(place, {**fields, "fabric": fabric})
            assert reply.status == 422
            assert "fabric" in reply.error


def test_the_site_chooses_a_fabric(bundle: Path, start: Start, tmp_path: Path) -> None:
    ours = (Path(__file__).parents[2] / "runtime/shipped/fabrics/h200-3200g.toml").read_text()
    (tmp_path / "network.toml").write_text(ours.replace("h200-3200g", "site's own"))
    (tmp_path / "site.toml").write_text('fabric = "network.toml"\n')
    server = start(bundle=bundle, site=tmp_path / "site.toml")
    asked = {"model": TINY, "micro_batch": 1, "micro_batches": 2, "dp": 16}
    job = server.post("/walltime", {**asked, "steps": 10}).json
    assert job["provenance"]["collectives"]["name"] == "site's own"
    assert str(tmp_path) not in json.dumps(job)
    by_name = server.post("/predict", {**asked, "fabric": "site's own"}).json
    assert by_name["step_time_s"] == job["step_time_s"]
