"""Answers that pages draw: what can be named, many layouts, choices, pictures, files; and hardware by name."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kernelcast.plan import plan
from kernelcast.runtime import Estimator
from kernelcast.runtime.catalogue import all_hardware
from kernelcast.runtime.request.layout import Parallelism
from kernelcast.runtime.request.models import built_in_names, load_model

Server, Start = Any, Callable[..., Any]  # of conftest.py, which cannot be imported

ASKED = {
    "model": "llama-2-7b",
    "hardware": "h100-sxm",
    "pp": 2,
    "tp": 2,
    "dp": 2,
    "micro_batch": 1,
    "global_batch": 16,
}
SEARCHED = {"model": "llama-2-7b", "hardware": "h100-sxm", "gpus": 8, "global_batch": 16, "zero": [1]}


def test_what_can_be_named(server: Server) -> None:
    found = server.get("/catalogue").json
    assert found["format"] == "kernelcast.catalogue/1"
    assert found["bundle"] == "test.kcast"
    assert [one["name"] for one in found["hardware"]] == list(all_hardware())
    assert [one["name"] for one in found["models"]] == list(built_in_names())
    assert {"h100-3200g", "vista"} <= {one["name"] for one in found["fabrics"]}
    assert found["measured_fabrics"] == ["perlmutter-measured", "vista-measured"]
    assert {"fsdp-composer", "megatron-core"} <= {one["name"] for one in found["stacks"]}
    kernels = {one["name"]: one["attention_kernels"] for one in found["hardware"]}
    assert kernels["gh200"] == ["flash-1", "flash-2", "flash-3", "cudnn"]
    assert kernels["v100-pcie-32gb"] == []
    assert set(kernels["a100-sxm"]) < set(found["attention_kernels"])
    llama = next(one for one in found["models"] if one["name"] == "llama-2-7b")
    assert (llama["parameters"], llama["layers"], llama["sequence_length"]) == (6_738_415_616, 32, 4096)


def test_hardware_by_name_answers_instead_of_the_bundle(server: Server) -> None:
    estimator = Estimator.load("hardware:h100-sxm")
    layout = Parallelism(pp=2, tp=2, dp=2, micro_batch=1, micro_batches=8)
    expected = estimator.predict(model=load_model("llama-2-7b"), parallelism=layout).to_dict()
    answered = server.post("/predict", ASKED).json
    for name in ("step_time_s", "interval_s", "stages", "memory", "parallelism", "provenance"):
        assert answered[name] == json.loads(json.dumps(expected[name])), name
    own = server.post("/predict", {name: value for name, value in ASKED.items() if name != "hardware"}).json
    assert own["provenance"]["bundle"] == "test.kcast"
    assert own["step_time_s"] != expected["step_time_s"]
    refused = server.post("/predict", {**ASKED, "hardware": "h1000"})
    assert refused.status == 422
    assert refused.error.startswith("hardware is 'h1000', expected one of ")
    job = server.post("/walltime", {**ASKED, "steps": 10}).json
    # The mean step of the run: steps scatter above the predicted one.
    assert expected["step_time_s"] < job["step_time_s"] < 1.01 * expected["step_time_s"]


def test_more_hardware_than_is_kept(server: Server) -> None:
    names = list(all_hardware())[:6]
    first = [server.post("/predict", {**ASKED, "hardware": name}).json["step_time_s"] for name in names]
    again = [
        server.post("/predict", {**ASKED, "hardware": name, "zero": 1}).json["step_time_s"] for name in names
    ]
    assert first == again
    assert len(set(first)) == len(names)


def test_measured_fabrics_by_name(server: Server) -> None:
    found = server.post("/predict", {**ASKED, "hardware": "a100-sxm", "fabric": "perlmutter-measured"}).json
    assert found["provenance"]["collectives"]["name"] == "perlmutter-measured"


def test_layouts(server: Server) -> None:
    found, whole = (
        server.post("/layouts", {**SEARCHED, "top": 5}).json,
        server.post("/search", {**SEARCHED, "top": 5}).json,
    )
    assert found["format"] == "kernelcast.layouts/1"
    assert found["step_time_s"][:5] == pytest.approx([one["step_time_s"] for one in whole["top"]])
    assert found["best"]["parallelism"] == whole["best"]["parallelism"]
    assert found["asked"] == whole["asked"]
    many = server.post("/layouts", {**SEARCHED, "top": 10_000})
    assert len(many.json["rows"]) == many.json["evaluated"]
    assert server.post("/layouts", {**SEARCHED, "top": 10_001}).error.startswith("top is 10001, expected")
    assert server.post("/search", {**SEARCHED, "top": 101}).error.startswith("top is 101, expected")


def test_choices(server: Server) -> None:
    found = server.post("/choices", ASKED).json
    assert (found["format"], found["gpus"], found["global_batch"]) == ("kernelcast.choices/1", 8, 16)
    by_tp = {one["value"]: one for one in found["choices"]["tp"]}
    assert list(by_tp) == [1, 2, 4, 8]
    assert by_tp[4]["layout"]["dp"] == 1
    assert by_tp[4]["fits"] is True
    assert by_tp[8] == {
        "value": 8, "layout": None, "problem": "pp · tp · cp is 16, expected a divisor of the 8 devices",
        "memory_bytes": None, "fits": None,
    }  # fmt: skip
    changed = server.post("/predict", {**ASKED, **by_tp[4]["layout"], "micro_batches": 16}
                          | {"global_batch": 16})  # fmt: skip
    assert changed.error == "micro_batches and global_batch are both given, expected one of them"
    assert server.post("/choices", {**ASKED, "micro_batch": 3}).error.startswith(
        "global_batch is 16, expected"
    )


def test_models_as_fields(server: Server) -> None:
    found = server.post("/model", {"model": "mixtral-8x7b", "sequence_length": 4096}).json
    assert (found["format"], found["model"]["experts"], found["sequence_length"]) == (
        "kernelcast.model/1",
        8,
        4096,
    )
    # Fields are a model again.
    assert server.post("/model", {"model": found["model"]}).json["model"] == found["model"]
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 32, "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
    }  # fmt: skip
    read = server.post("/model", {"model": config}).json
    assert (read["model"]["mlp_size"], read["model"]["activation"]) == (128, "swiglu")
    assert server.post("/model", {"model": {**config, "model_type": "t5"}}).error.startswith(
        "model file model: "
    )
    assert server.post("/model", {}).error == "model is not given in the request"


def test_pictures_pages_and_traces(server: Server) -> None:
    pictures, estimate = server.post("/pictures", ASKED).json, server.post("/predict", ASKED).json
    assert pictures["format"] == "kernelcast.pictures/1"
    assert pictures["timeline"]["svg"].startswith("<svg ")
    assert "stage 1" in pictures["memory"]["svg"]
    assert "stage 1: at most" in pictures["memory_over_step"]["svg"]
    assert sum(one["time_s"] for one in pictures["shares"]) == pytest.approx(estimate["step_time_s"])
    page = server.post("/page", ASKED)
    assert page.headers["content-type"].startswith("text/html")
    assert page.body.startswith(b"<!doctype html>")
    trace = server.post("/trace", ASKED).json
    assert trace["otherData"]["model"] == "llama-2-7b"
    refused = server.post("/page", {**ASKED, "tp": 3})
    assert (refused.status, list(refused.json)) == (422, ["error"])


def test_a_long_step_is_not_drawn(server: Server) -> None:
    asked = {**ASKED, "timeline": "closed-form", "global_batch": 1_000_000, "dp": 1, "tp": 1, "pp": 4}
    pictures = server.post("/pictures", asked).json
    assert pictures["timeline"]["svg"] == ""
    assert pictures["timeline"]["notes"][0].startswith("not drawn: ")


def test_a_search_ends_when_its_client_leaves(
    start: Start, until: Callable[[Callable[[], bool]], None]
) -> None:
    server = start("--max-search", "2000000", "--time-limit", "3000")
    large = {"model": "mixtral-8x7b", "hardware": "h100-sxm", "gpus": 1024, "global_batch": 2048}
    connection = server.connection()
    connection.request("POST", "/layouts", json.dumps(large).encode(), {"Content-Type": "application/json"})
    until(lambda: server.metric('kernelcast_pending{pool="search"}') == 1)
    connection.close()
    until(lambda: server.metric('kernelcast_pending{pool="search"}') == 0)  # long before its limit
    # The request is counted a moment after its place is free.
    counted = 'kernelcast_requests_total{path="/layouts",status="499"} 1.0'
    until(lambda: counted in server.get("/metrics").body.decode().splitlines())


def test_hardware_is_loaded_once_for_many(start: Start) -> None:
    server = start()
    steps: list[float] = []
    asked = {**ASKED, "hardware": "gh200"}
    clients = [
        threading.Thread(target=lambda: steps.append(server.post("/predict", asked).json["step_time_s"]))
        for _ in range(6)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert len(steps) == 6
    assert len(set(steps)) == 1


def test_a_run_is_planned_as_the_command_plans_it(server: Server) -> None:
    found = server.post("/plan", {**ASKED, "tokens": 10**9, "price": 2}).json
    estimator = Estimator.load("h100-sxm")
    fields = {name: value for name, value in ASKED.items() if name not in ("model", "hardware")}
    expected = plan(estimator, "llama-2-7b", tokens=10**9, price=2, **fields).to_dict(with_fan=True)
    assert found == json.loads(json.dumps(expected))
    refused = server.post("/plan", ASKED).error
    assert refused == "none of tokens, samples and steps is given, expected one of them"
    assert "failure_rate is -1" in server.post("/plan", {**ASKED, "tokens": 1, "failure_rate": -1}).error
