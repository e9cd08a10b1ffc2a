"""Documents of every JSON form, as the code makes them from what ships and from small data; for generate_json.py.

Documents that take minutes to make are the ones kept in docs/validation.
"""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from click.testing import CliRunner

from kernelcast.cli.main import kernelcast
from kernelcast.cli.validate_steps import ERRORS_FORMAT
from kernelcast.docs import example_traces
from kernelcast.plan import plan
from kernelcast.runtime import Estimator, predict, read_bundle
from kernelcast.runtime.answers import warnings
from kernelcast.runtime.answers.uncertainty import shipped_step_errors
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.estimate.estimate import ESTIMATE_FORMAT
from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.json_text import json_text
from kernelcast.runtime.operators import OPERATORS, Direction
from kernelcast.runtime.shipped import BUNDLES, FABRICS
from kernelcast.runtime.stack import stack_named
from kernelcast.runtime.views.estimate_page import pictures
from kernelcast.serve.answering import catalogue, model_fields
from kernelcast.serve.limits import Limits
from kernelcast.serve.loaded import Loaded
from kernelcast.serve.questions import compact_layouts, layout_choices
from kernelcast.serve.questions import predict as predict_of_server
from kernelcast.store import Database, Run, Sample
from kernelcast.train.report.figures import FORMAT as TRAINING_FORMAT
from kernelcast.train.report.figures import OperatorFigures, Outlier
from kernelcast.validate.fabrics import Across, Described, Extended, FabricValidation, Size
from kernelcast.validate.run_report import FORMAT as RUN_FORMAT
from kernelcast.validate.run_report import ComparedOperator

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
KEPT = (
    *(
        "calibration-simulate",
        "memory/cases",
        "published",
        "published_vista",
        "run",
        "run_modern",
        "steps",
        "steps_options",
    ),
    *("scoreboard/fsdp-composer", "scoreboard/megatron-core"),
)
_H200, _A100 = (f"--hardware {name} --model llama-2-7b" for name in ("h200-sxm", "a100-sxm"))
_LAYOUT = "--pp 2 --tp 2 --dp 8 --micro-batch 1 --global-batch 64"
_SNAPSHOT = {
    "segments": [{"device": 0, "total_size": 2048, "blocks": [{"size": 1024, "state": "active_allocated"}]}]
}
_LOG = "Theoretical memory footprints: weight and optimizer=57438.81 MB\n"
_ONE_DEVICE = """
site = "Example"
device = "a100-sxm"
hardware = "one device"
source = "made up"
[defaults]
model = "llama-2-7b"
pp = 1
tp = 1
dp = 1
micro_batch = 1
[[runs]]
micro_batches = 2
measured_s = 2.0
[[runs]]
micro_batches = 4
measured_s = 4.5
"""
_TWO_DEVICES = "[[runs]]\ndp = 2\nmicro_batches = 2\nmeasured_s = 2.0\n"
_CONFIG = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 2,
    "num_attention_heads": 8, "vocab_size": 32000, "max_position_embeddings": 4096, "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip
_TRACED = """
name = "traced"
hidden_size = 2048
sequence_length = 4096
attention_heads = 16
layers = 2
vocabulary_size = 32000
norm = "layer_norm"
activation = "gelu"
rotary = false
"""
_GEMM = ("gemm", Direction.FORWARD)


def documents() -> Iterator[dict[str, Any]]:
    """Documents of all forms, several of a form that has optional keys."""
    for name in KEPT:
        text = (ROOT / "docs" / "validation" / f"{name}.json").read_text(encoding="utf-8")
        yield json.loads(text)["result"]
    yield json.loads((ROOT / "docs" / "prior.json").read_text(encoding="utf-8"))
    with TemporaryDirectory() as name:
        for made in (
            _answers,
            _of_commons,
            _warnings,
            _of_server,
            _of_files,
            _of_traces,
            _of_training,
            _validation,
        ):
            for document in made(Path(name)):
                yield json.loads(json_text(document))


def _printed(*words: str | Path, **environment: str) -> dict[str, Any]:
    """What a command prints with --json; a path is one word, a text several."""
    arguments = [part for word in words for part in ([str(word)] if isinstance(word, Path) else word.split())]
    done = CliRunner().invoke(kernelcast, [*arguments, "--json"], env={"KERNELCAST_SITE": "", **environment})
    if not done.stdout:
        raise SystemExit(f"{' '.join(arguments)}: {done.exception}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _answers(folder: Path) -> Iterator[dict[str, Any]]:
    names = ("calibrated.kcast", "runs.toml", "config.json", "published.db", "snapshot.json")
    calibrated, runs, config, samples, snapshot = (folder / name for name in names)
    runs.write_text(_ONE_DEVICE)
    config.write_text(json.dumps(_CONFIG))
    a100 = BUNDLES / "a100-sxm.kcast"
    yield _printed("calibrate --bundle", a100, "--runs", runs, "-o", calibrated, "--force")
    yield _printed("bundle info", calibrated)
    yield _printed("import estimate-train-time", DATA / "importers" / "Example", "--db", samples)
    one = "predict --micro-batch 1 --micro-batches 4"
    yield _printed(one, "--bundle", calibrated, "--model", config, "--explain qkv --db", samples)
    layout = "--tp 4 --dp 16 --micro-batch 4 --micro-batches 8 --explain memory --memory-snapshot"
    for text in (json.dumps(_SNAPSHOT), _LOG):
        snapshot.write_text(text)
        yield _printed("predict --hardware h100-sxm --model llama-3.1-8b", layout, snapshot)
    script = ROOT / "docs" / "small" / "train.sh"
    yield _printed("predict --hardware h100-sxm --model llama-3.1-8b --layout", script)
    yield _printed(one, _H200, "--explain swiglu --optimizer lion --attention-kernel flash-2")
    yield _printed(one, _H200, "--offload-optimizer 0.5 --host-memory-gb-per-s 200 --offload-activations 0.1")
    yield _printed(one, "--hardware h100-sxm --model mixtral-8x7b --ep 4 --cp 2 --dp 2")
    yield _printed("predict", _H200, _LAYOUT, "--tokens 1B --price 2 --software nemo-1.0 --suggest")
    yield _printed(one, _A100, "--dp 8 --framework llm-foundry --recompute full --suggest")
    yield _printed("predict", _A100, _LAYOUT, "--fabric perlmutter-measured --gpus-per-node 8")
    yield _printed("predict", _H200, "--global-batch 64 --tokens 1B --days 1 --recompute none")
    yield _printed("predict", _A100, "--gpus 16 --global-batch 64")
    yield _printed("predict", _H200, "--gpus 8 --largest global-batch")
    both = "--hardware v100-pcie-16gb,h200-sxm --model llama-2-7b"
    yield _printed("predict", both, "--gpus 2 --global-batch 64 --tokens 1B --price 2")
    search = "search --gpus 2 --global-batch 64 --micro-batch 1 --top 2"
    yield _printed(search, "--hardware h200-sxm --fabric h200-3200g --tokens 1B --model", config)
    yield _printed(search, "--hardware v100-pcie-16gb --model llama-2-7b")
    run = "--tokens 1B --storage-total 1TB/s"
    yield _printed("plan", _H200, _LAYOUT, f"{run} --price 2 --spares 2 --elastic")
    yield _printed("plan", _H200, _LAYOUT, f"{run} --failure-rate 0")
    planned = plan(Estimator.load("h200-sxm"), "llama-2-7b", dp=8, micro_batch=1, micro_batches=1, steps=1000)
    yield planned.to_dict(with_fan=True)
    yield _printed("plan", _A100, f"--gpus 8,16 --global-batch 64 {run}")
    yield _printed("walltime", _H200, _LAYOUT, "--steps 1000 --price 2 --max-time 1h --asked 1h")


def _of_commons(folder: Path) -> Iterator[dict[str, Any]]:
    """An answer by a bundle that a source publishes."""
    homes = {"XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    published = [
        "publish",
        str(DATA / "small.db"),
        str(folder / "public"),
        "--bundle",
        str(BUNDLES / "a100-sxm.kcast"),
    ]
    for words in (published, ["add", str(folder / "public")]):
        CliRunner().invoke(kernelcast, ["commons", *words], env=homes, catch_exceptions=False)
    yield _printed("predict --from commons --fabric h200-3200g", _A100, _LAYOUT, **homes)


def _warnings(_: Path) -> Iterator[dict[str, Any]]:
    """Kinds of warnings that no answer from shipped files has."""
    gemm = read_bundle(BUNDLES / "a100-sxm.kcast").entries[_GEMM]
    cpu = ComputeFingerprint(kind="cpu", device_name="Example", cores=2, threads=1)
    found = (
        warnings.left_out_warning(["rope"]),
        warnings.layout_warning(("all_reduce", Direction.ONCE), (2, 8), [(1, 8)]),
        warnings.extended_warning("all_reduce", (2, 8), [(1, 8)], fabric="ours"),
        warnings.equal_features_warning(("flash_attention", Direction.FORWARD), ("kv_heads", "heads")),
        warnings.concurrency_warning([cpu], [1], 2),
        warnings.large_error_warning(_GEMM, 0.3),
        warnings.stack_load_warning(
            stack_named("fsdp-composer"), [_GEMM], {_GEMM: replace(gemm, load=Load.SUSTAINED)}
        ),
        *warnings.devices_per_node_warnings(4, "asked", bundle=[8], fabric=None),
    )
    yield {"format": ESTIMATE_FORMAT, "warnings": [one.to_dict() for one in found if one is not None]}


def _of_server(_: Path) -> Iterator[dict[str, Any]]:
    loaded = Loaded.load(BUNDLES / "a100-sxm.kcast", {})
    asked = {"model": "mixtral-8x7b", "tp": 2, "dp": 4, "micro_batch": 1, "global_batch": 16}
    yield catalogue(loaded)
    yield model_fields(loaded, {"model": _CONFIG})
    yield layout_choices(loaded, asked)
    asked_of = asked | {"hardware": "h100-sxm", "framework": "nemo", "gpus_per_node": 8}
    yield predict_of_server(loaded, asked_of)
    search = {"model": "llama-2-7b", "gpus": 8, "global_batch": 16, "zero": [1], "top": 4}
    yield compact_layouts(loaded, search, Limits())  # no answer: the bundle has no collectives
    yield compact_layouts(loaded, search | {"hardware": "h100-sxm"}, Limits())
    h100 = Estimator.load("h100-sxm")
    yield pictures(predict(h100, "llama-2-7b", pp=2, micro_batch=1, micro_batches=4))
    yield pictures(
        predict(h100, "llama-2-7b", pp=4, micro_batch=1, micro_batches=10**6, timeline="closed-form")
    )
    yield _printed("hardware")
    yield _printed("hardware a100-sxm")
    yield _printed("fabric show h100-3200g")


def _of_files(folder: Path) -> Iterator[dict[str, Any]]:
    a100, h100 = BUNDLES / "a100-sxm.kcast", BUNDLES / "h100-sxm.kcast"
    b200 = folder / "b200.kcast"
    yield _printed("hardware b200-sxm -o", b200)
    yield _printed("bundle info", b200)
    yield _printed("bundle info", next(FABRICS.glob("*.kcast")))
    yield _printed("bundle verify", h100)
    yield _printed("bundle diff", a100, h100)
    yield _printed("bundle diff", h100, a100)
    small = DATA / "small.db"
    yield _printed("db info", small)
    yield _printed("db diff", small, small)
    yield from _of_operation(folder)
    times = folder / "times.csv"
    times.write_text((DATA / "importers" / "times.csv").read_text() + "gelu,,forward\nnot_one,,forward,1\n")
    describe = DATA / "importers" / "times.toml"
    yield _printed("import csv", times, "--describe", describe, "--db", folder / "times.db")
    yield _printed("db diff", folder / "times.db", small)


def _of_operation(folder: Path) -> Iterator[dict[str, Any]]:
    log, steps, database = folder / "jobs.csv", folder / "result.txt", folder / "site.db"
    log.write_text(
        "start,end,nodes,outcome,cause\n2026-01-01,2026-01-02,2,ok,\n"
        + "2026-01-02,2026-01-03,2,failed,switch\n" * 6
    )
    event = ':::MLLOG {{"time_ms": {}, "key": "tracked_stats", "value": {{"train_step_time": {}.5}}}}\n'
    begin = ':::MLLOG {"time_ms": -9, "key": "init"}\n:::MLLOG {"time_ms": 0, "key": "run_start"}\n'
    steps.write_text(begin + "".join(event.format(number, 1 + number % 3) for number in range(20)))
    for more in ((), ("--db", database)):
        yield _printed("plan fit-failures", log, *more)
    log.write_text("start,end,nodes,outcome\n2026-01-01,2026-01-02,2,ok\n")
    yield _printed("plan fit-failures", log)
    yield _printed("import mlperf", steps, "--gpus 8 --db", database)
    yield _printed("validate plans")


def _of_traces(folder: Path) -> Iterator[dict[str, Any]]:
    paths = example_traces.write(folder)
    database, model, log = folder / "traces.db", folder / "traced.toml", folder / "train.log"
    model.write_text(_TRACED)
    log.write_text("elapsed time per iteration (ms): 12.5\n" * 6)
    for _ in range(2):
        yield _printed("ingest", *paths, DATA / "traces" / "cuda.json", "--db", database)
    yield _printed("trace report", *paths)
    yield _printed("trace diff", *paths)
    asked = ("--hardware h100-sxm --model", model, "--dp 2 --micro-batch 1 --micro-batches 1")
    yield _printed("compare", *paths, *asked)
    yield _printed("compare", *paths, *asked, "--dp 1 --tp 2")  # another layout on the same number of devices
    yield _printed("compare", "--log", log, *asked)
    yield _printed("db diff", database, DATA / "small.db")


def _of_training(folder: Path) -> Iterator[dict[str, Any]]:
    database, bundle = folder / "measured.db", folder / "here.kcast"
    measured(database)
    yield _printed("db check", database)
    damaged = folder / "damaged.db"
    shutil.copy(database, damaged)
    with closing(sqlite3.connect(damaged)) as changed, changed:
        changed.execute("UPDATE sample SET time_us = 2 * time_us")
    yield _printed("db check", damaged)
    reference = DATA / "importers" / "Example"
    yield _printed("train --db", database, "-o", bundle, "--jobs 1 --compare-with", reference)
    yield _printed("bundle info", bundle)
    transferred = next(
        one for one in read_bundle(BUNDLES / "b200-sxm.kcast").manifest.regressors if one.transfer
    )
    outlier = Outlier(vector=(1, 2), time_us=1.0, held_out_us=2.0)
    of_prior = OperatorFigures(entry=transferred, selected=None, roles=(), layouts=(), outliers=(outlier,))
    yield {"format": TRAINING_FORMAT, "operators": [of_prior.to_dict()]}
    yield _printed("probe --device cpu")
    yield _printed("collect plan --plan", DATA / "plans" / "tiny.toml", "--hardware h100-sxm")


def measured(path: Path) -> None:
    """A database of made-up times: products in bursts and under sustained load, a few of a function, a collective."""
    compute = ComputeFingerprint(kind="cpu", device_name="Example CPU", cores=2, threads=1)
    fabric = FabricFingerprint(backend="gloo", gpus_per_node=4)
    software = SoftwareFingerprint(torch="2.13.0")
    run = Run(started_at="2026-01-31T08:15:00Z", kernelcast_version="0.1.0", command="collect compute",
              compute_id=compute.digest, fabric_id=fabric.digest, software_id=software.digest)  # fmt: skip
    products = [("gemm", "qkv", (64 * i, 64 * j, 256)) for i in range(1, 5) for j in range(1, 4)]
    workloads = [
        *((*one, load) for one in products for load in (Load.BURST, Load.SUSTAINED)),
        *(("rope", "", (4, 128, 8, 8, 32 * i), Load.BURST) for i in range(1, 4)),
        *(("all_reduce", "tensor", (2**i, n, 4), Load.BURST) for i in range(10, 20) for n in (1, 2)),
    ]
    samples = []
    for operator, role, vector, load in workloads:
        [direction, *_] = OPERATORS[operator].directions
        time_us = (10 + OPERATORS[operator].moved_bytes(direction, vector, 2) / 1e3) * (
            1 + 0.1 * load.is_sustained
        )
        flags = (("outlier", "made up"),) if vector[0] == 256 else ()
        samples.append(Sample(run_id=run.id, operator=operator, role=role, direction=direction, dtype="float16",
                              vector=vector, time_us=time_us, quiet_us=time_us, load=load, flags=flags,
                              measured_at="2026-01-31T08:16:00Z"))  # fmt: skip
    with Database.open(path, create=True) as database:
        database.add_run(run, compute, fabric, software)
        database.add_samples(samples)


def _validation(folder: Path) -> Iterator[dict[str, Any]]:
    runs = folder / "two_devices.toml"
    runs.write_text(_ONE_DEVICE + _TWO_DEVICES)
    yield _printed("validate steps", runs, "--stack megatron-core")
    yield _printed("validate steps", runs, "--effects")
    yield _printed(
        "stack fit", runs, "--fix attention=1 --kernel flash-2 --bundle", BUNDLES / "a100-sxm.kcast"
    )  # has no collectives
    yield {"format": ERRORS_FORMAT, **asdict(shipped_step_errors())}
    # Needs rows that do not ship.
    size = Size(message_bytes=2**28, measured_us=2.0, predicted_us=2.1, slower_level_us=1.5)
    errors: dict[str, Any] = {"source": "one", "median_error": 0.1, "median_signed_error": -0.1, "rows": 8}
    yield FabricValidation(
        described=(Described(efficiency=0.7, by_devices={8: 0.1}, **errors),),
        extended=(Extended(**errors),),
        across=(Across(operator="all_reduce", sizes=(size,)),),
    ).to_dict()
    # Kept runs have no operators: thousands of lines.
    times: dict[str, Any] = {"calls": 2, "predicted_s": 1.0, "measured_s": 1.1, "share": 0.5}
    one = ComparedOperator(name="gemm", direction="forward", known=True, **times)
    yield {"format": RUN_FORMAT, "runs": [{"operators": [one.to_dict()]}]}
