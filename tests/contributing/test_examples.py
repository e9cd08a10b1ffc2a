"""The worked examples of CONTRIBUTING.md: each patch is applied to a copy of the package, which then answers."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
PACKAGES = (
    "runtime",
    "walltime",
    "store",
    "train",
    "collector",
    "sampling",
    "validate",
    "cli",
    "integrations",
)

# What every question begins with: a model of two layers, on two devices of one node.
BEFORE = """
import sys
from dataclasses import replace
from pathlib import Path
from kernelcast.runtime import Cluster, Estimator, ModelConfig, Parallelism
from kernelcast.runtime.memory.stages import stage_memory
from kernelcast.runtime.step.decomposition import decompose

bundle, folder = sys.argv[1:]
model = ModelConfig(
    name="tiny", hidden_size=8, sequence_length=16, attention_heads=2, layers=2, vocabulary_size=100
)
layout = Parallelism(pp=1, tp=1, dp=2, micro_batch=1, micro_batches=2)


def predicted(model=model, layout=layout):
    return Estimator.load(bundle).predict(model=model, parallelism=layout)


def calls(model=model, layout=layout):
    parts = decompose(model=model, parallelism=layout, cluster=Cluster(gpus_per_node=8), bucket_entries=10**9)
    return [(one.operator, one.role, one.count) for _, one in parts.calls(0)]


def added_us(after, before):
    return round(1e6 * (after - before), 3)
"""

QUESTIONS = {
    # A bundle without it answers by additions that move as much.
    "layer_scale": """
scaled = replace(model, layer_scale=True)
after, before = predicted(scaled), predicted()
found = added_us(after.components.layer_forward_s, before.components.layer_forward_s)
assert found > 0, found
assert added_us(after.components.layer_backward_s, before.components.layer_backward_s) > 0
[one], [other] = (stage_memory(one, layout) for one in (scaled, model))
assert one.parameters - other.parameters == 2 * 2 * 8
assert one.activations_bytes - other.activations_bytes == 2 * 2 * (2 * 16 * 8)
assert predicted(scaled, replace(layout, recompute="full")).step_time_s > after.step_time_s
""",
    "operator": """
found = [row.time_us for row in predicted().operators if row.operator == "logit_cap"]
assert len(found) == 2 and min(found) > 0, found
from kernelcast.collector.benches import elementwise
assert callable(elementwise.logit_cap)
""",
    "collective": """
cut = replace(layout, tp=2, dp=1, sequence_parallel=True)
assert ("ring_exchange", "tensor", 2) in calls(layout=cut)
assert not [name for name, role, _ in calls(layout=cut) if (name, role) == ("all_gather", "tensor")]
from kernelcast.collector.communication.collectives import COLLECTIVES
assert "ring_exchange" in COLLECTIVES
""",
    "layer_kind": """
mixed = replace(model, layer_pattern="*- C-")
found = {(role, count) for name, role, count in calls(mixed) if name == "gemm"}
assert {("qkv", 1), ("convolution_in", 1), ("mlp_up", 1)} <= found, found
assert predicted(mixed).step_time_s > 0
[one], [other] = (stage_memory(one, layout) for one in (mixed, model))
# Product in 3d², taps 3d and product out d² instead of attention's 4d² and biases of 4d.
assert other.parameters - one.parameters == 4 * 8 - 3 * 8
""",
    "degree": """
two = replace(layout, sites=2)
assert (two.world_size, two.replicas, two.samples_per_update) == (4, 4, 2 * layout.samples_per_update)
assert predicted(layout=two).step_time_s > 0
sizes = [stage_memory(model, one)[0].optimizer_bytes for one in (two, layout)]
assert sizes[0] < sizes[1]
from click.testing import CliRunner
from kernelcast.cli.main import kernelcast as main
assert "--sites" in CliRunner().invoke(main, ["predict", "--help"]).output
""",
    "request_field": """
without = replace(layout, gradient_clipping=False)
assert "gradient_clip" in {name for name, *_ in calls()}
assert "gradient_clip" not in {name for name, *_ in calls(layout=without)}
from click.testing import CliRunner
from kernelcast.cli.main import kernelcast as main
assert "gradient-clipping" in CliRunner().invoke(main, ["predict", "--help"]).output
""",
    "importer": """
from click.testing import CliRunner
from kernelcast.cli.main import kernelcast as main
log = Path(folder, "allreduce.log")
log.write_text("# OSU MPI Allreduce Latency Test\\n1024 12.5\\n2048 14.0\\nbroken\\n")
options = ["--device-name", "NVIDIA H100", "--gpus-per-node", "4", "--db", str(Path(folder, "fabric.db"))]
found = CliRunner().invoke(main, ["import", "osu", str(log), *options])
assert found.exit_code == 0 and "2 samples added" in found.output, found.output
""",
    "plugin": """
import os
import subprocess
qsub, asked = Path(folder, "qsub"), Path(folder, "kernelcast")
qsub.write_text("#!/bin/sh\\necho qsub $*\\n")
asked.write_text("#!/bin/sh\\necho 3600\\n")
script = Path(folder, "job.sh")
script.write_text("#KERNELCAST model=llama-2-7b\\n")
for one in (qsub, asked):
    one.chmod(0o755)
plugin = Path(os.environ["PYTHONPATH"], "kernelcast", "integrations", "gridengine", "qsub-kernelcast")
own = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
for options, expected in (([], "-l h_rt=3600 "), (["-l", "h_rt=60"], "-l h_rt=60 ")):
    found = subprocess.run(["sh", plugin, *options, script], env=own, capture_output=True, text=True, check=True)
    assert found.stdout == f"qsub {expected}{script}\\n", found.stdout
""",
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package."""
    folder = tmp_path_factory.mktemp("copy")
    package = folder / "kernelcast"
    for name in PACKAGES:
        shutil.copytree(
            ROOT / name, package / name
        )  # with its bytecode: otherwise every module is compiled again
    shutil.copy(ROOT / "schema.sql", package)
    return folder


@pytest.fixture(params=QUESTIONS)
def changed(request: pytest.FixtureRequest, copy: Path) -> Iterator[tuple[str, Path]]:
    """The name of an example, and the copy with its patch."""
    patch = HERE / f"{request.param}.patch"
    for options in ([], ["-R"]):
        subprocess.run(["git", "apply", "-p1", *options, patch], cwd=copy / "kernelcast", check=True)
        if not options:
            yield request.param, copy


def test_an_example_answers(
    changed: tuple[str, Path], make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    name, copy = changed
    lines = [
        "import kernelcast.runtime",
        f"assert kernelcast.runtime.__file__.startswith({str(copy)!r}), kernelcast.runtime.__file__",
    ]
    program = "\n".join((*lines, BEFORE, QUESTIONS[name]))
    done = subprocess.run(
        [sys.executable, "-c", program, str(make_bundle({"residual_add": 7.0})), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_patch_has_a_question() -> None:
    assert {path.stem for path in HERE.glob("*.patch")} == set(QUESTIONS)


def test_a_layer_scale_takes_four_files() -> None:
    patch = (HERE / "layer_scale.patch").read_text()
    assert patch.count("\n+++ ") <= 4
