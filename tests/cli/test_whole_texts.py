"""All that commands print, to the letter: `whole_texts*.txt`, which WRITE_WHOLE_TEXTS=1 pytest THIS_FILE writes again.

Measurements and times by hand; sizes of memory and digests are masked. Times of real hardware have tests/golden.
"""

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from kernelcast.docs import example_traces
from kernelcast.runtime.operators import OPERATORS
from tests.cli.printed import ended

TEXTS = sorted(Path(__file__).parent.glob("whole_texts*.txt"))
DATA = Path(__file__).parents[1] / "data"
JOBS = """start,end,nodes,outcome,cause
2026-01-01T00:00,2026-01-02T00:00,20,failed,switch
2026-01-02T00:00,2026-01-05T00:00,300,ok,
2026-01-02T00:00,2026-01-02T06:00,40,failed,disk
2026-01-05T00:00,2026-01-06T12:00,200,failed,disk
2026-01-07T00:00,2026-01-08T00:00,120,failed,
2026-01-07T00:00,yesterday,2,ok,
"""
RUNS = """site = "Example"
hardware = "two devices"
source = "made up"
licence = "CC0"
left_out = ["a step"]
[defaults]
model = "small"
gpus_per_node = 4
pp = 1
mp = 1
dp = 1
micro_batch = 1
micro_batches = 2
[models.small]
hidden_size = 64
sequence_length = 8
attention_heads = 8
layers = 4
vocabulary_size = 100
[[runs]]
measured_s = 0.009
[[runs]]
pp = 2
micro_batches = 4
measured_s = 0.007
published_error = -0.1
[[runs]]
dp = 4
zero = 1
recompute = "full"
measured_s = 0.015
flag = "disturbed"
[[runs]]
mp = 2
dp = 2
measured_s = 0.0123
"""
# The model of docs/example_traces.py.
TRACED = """name = "traced"
hidden_size = 2048
sequence_length = 4096
attention_heads = 16
layers = 2
vocabulary_size = 128
norm = "layer_norm"
activation = "gelu"
rotary = false
learned_positions = 4096
"""
SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=2
#KERNELCAST bundle=test.kcast model=tiny.toml pp=2 dp=2
#KERNELCAST micro_batch=1 micro_batches=3 steps=1e6
srun true
"""
MERGED = """apiVersion: batch/v1
kind: Job
metadata: {name: one}
spec:
  template: &pod {<<: {spec: {}}}
"""
JOBS_YAML = """apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: other}}
- apiVersion: batch/v1
  kind: Job
  metadata:
    name: two
    annotations: &told
      kernelcast/bundle: test.kcast
      kernelcast/model: tiny.toml
      kernelcast/dp: "2"
      kernelcast/micro_batch: "1"
      kernelcast/micro_batches: "3"
      kernelcast/steps: "1e6"
  spec:
    parallelism: 2
    completions: 2
    completionMode: Indexed
    template: &pod {spec: {containers: [{name: train, resources: {limits: {nvidia.com/gpu: 1}}}]}}
- apiVersion: batch/v1
  kind: Job
  metadata: {name: kept, annotations: *told}
  spec: {activeDeadlineSeconds: 7200, parallelism: 2, completions: 2, completionMode: Indexed, template: *pod}
"""
MEMORY = """[Rank 3] (after 2 iterations) memory (MB) | allocated: 5.5 | max allocated: 57.25 | max reserved: 60.0
"""
# Products and a gelu of an annotated step on a CPU.
CALLS = [("aten::mm", [[64, 32], [32, 8]])] * 3 + [
    ("aten::mm", [[64, 8], [8, 32]]),
    ("aten::gelu", [[2, 8, 32]]),
]
STEP = {
    "schemaVersion": 1,
    "traceEvents": [
        {"ph": "X", "pid": 1, "tid": 1, "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 1, "dur": 2000},
        *(
            {"ph": "X", "pid": 1, "tid": 1, "cat": "cpu_op", "name": name, "ts": 10 + 200 * place, "dur": 100 + place,
             "args": {"External id": place, "Input Dims": dims, "Input type": ["float"] * len(dims)}}
            for place, (name, dims) in enumerate(CALLS)
        ),
    ],
}  # fmt: skip
LAYOUT = """torchrun --nproc-per-node 2 pretrain_gpt.py --tensor-model-parallel-size 2 --micro-batch-size 1 \\
  --global-batch-size 4 --weight-decay 0.1
"""
DAMAGED = (
    """# kernelcast.csv/1
operator,role,direction,dtype,m,k,n,time_us
gemm,qkv,forward,bfloat16,8,8,8,4
gemm,qkv,forward,bfloat16,8,8,none,4
"""
    + 30 * "gemm,qkv,sideways,bfloat16,8,8,8,4\n"
)
LOG = 6 * "elapsed time per iteration (ms): 6.5 |\n"
PLAIN = JOBS_YAML.partition("- apiVersion: batch")[2].partition("- apiVersion")[0].replace("\n  ", "\n")
PLAIN = f"apiVersion: batch{PLAIN}"
MORE = "".join(f"2026-02-01T00:00,2026-02-{day:02}T{day:02}:00,{day},failed,fan\n" for day in range(2, 16, 2))
_SEARCH = re.compile(r"(?:(?<=memory, )|(?<=^ {10}))[\d.]+ s$", re.MULTILINE)
# Digests, last digits, memory, and what is fitted to measured steps: intervals, grades.
_VARIES = re.compile(
    r"(?P<digest>(?<!\.)\b[0-9a-f]{12,64}\b)|(?<=\.\d{3})\d{3,}|[\d.,]+(?= (?:days|min) at)|[\d.,]+(?= [KMG]i?B\b(?!/))"
    r"|(?<=not signed  )[\d:.TZ-]+"
    r'|\(\d+ simulated, \d+ pruned|"p\d\d": \S+|nterval(?:_s)?": \[[^]]*'
    r"|slower than \d+ %|\(90 %: [\d.]+ to [\d.]+\)|^(?:grade|interval) .*$"
    r"|\([\d.]+(?: [mµ]?s)? to [\d.]+ [mµ]?s(?:, 90 %)?\)",
    re.MULTILINE,
)


def _masked(match: re.Match[str]) -> str:
    """Digests keep their length, also one of digits alone; other numbers have as many digits as they happen to need."""
    return "#" if not match["digest"] and _DIGITS.match(match[0]) else len(match[0]) * "#"


_STYLES = re.compile(r"<(style|script)\b.*?</\1>", re.DOTALL)
_DIGITS = re.compile(r'\d{3,}$|"p\d|nterval')
# Inner lines of JSON, joined.
_DEEP = re.compile(r'\n +(?=["\]}[{])|(?<=[\[,])\n +(?=[-\d.#tfn]+,?$)', re.MULTILINE)


@pytest.fixture
def folder(
    tmp_path: Path,
    bundle: Path,
    model_file: Path,
    make_bundle: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Measurements, two bundles, a model, jobs and steps."""
    for one in (DATA / "importers", DATA / "traces"):
        shutil.copytree(one, tmp_path, dirs_exist_ok=True)
    shutil.copy(DATA / "small.db", tmp_path)
    files = {"jobs.csv": JOBS, "more.csv": JOBS + MORE, "job.sbatch": SCRIPT, "train.sh": LAYOUT,
             "step.json": json.dumps(STEP), "runs.toml": RUNS, "traced.toml": TRACED,
             "array.sbatch": SCRIPT.replace("#SBATCH", "#SBATCH --array=0-1"), "merge.yaml": MERGED,
             "jobs.yaml": JOBS_YAML, "memory.log": MEMORY,
             "added.toml": f'device = "h100-sxm"\nstack = "a stack"\n{RUNS}',
             "damaged.csv": DAMAGED, "megatron.log": LOG,
             "plain.yaml": PLAIN, "long.yaml": PLAIN.replace("1e6", "1e12"),
             "none.yaml": "kind: Job\nmetadata: {name: a}\n",
             "one.toml": RUNS[: RUNS.index("[[runs]]\npp")]}  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    without = {
        "rope": OPERATORS.keys() - {"gemm", "gelu"},
        "gelu": OPERATORS.keys() - {"gemm", "rope", "all_reduce"},
    }
    for name, others in without.items():
        make_bundle(
            {"gemm": 12.5 * len(others)}, without=sorted(others), name=f"{name}.kcast", dtype="bfloat16"
        )
    for variable, value in {"KERNELCAST_SITE": "", "KERNELCAST_RUNS": str(tmp_path / "runs"),
                            "XDG_CONFIG_HOME": str(tmp_path / "config"),
                            "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():  # fmt: skip
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("COLUMNS", "100")  # pytest-xdist's workers have 80
    assert (bundle.parent, model_file.parent) == (tmp_path, tmp_path)
    return tmp_path


@pytest.fixture
def traces(folder: Path) -> None:
    """Two ranks with modules, and the same where some kernels take longer and one is another."""
    for name in ("ranks", "slower"):
        (folder / name).mkdir()
        for path in example_traces.write(folder / name):
            document, later_us = json.loads(path.read_text()), 0.0
            events = document["traceEvents"]
            for place, event in enumerate(sorted(events, key=lambda one: one["ts"])):
                event["ts"] += later_us
                if event["cat"] == "cpu_op":
                    names = "Model_0", f"Block_{place % 2}", f"Linear_{place % 3}"
                    events += [
                        {**event, "cat": "python_function", "name": f"nn.Module: {one}", "dur": 12 - level}
                        for level, one in enumerate(names)
                    ]
                if name == "slower" and event["name"].startswith(("gemm_up", "nccl")):
                    event["dur"] += (longer_us := event["dur"] * (0.5 if "gemm" in event["name"] else 0.1))
                    later_us += longer_us
                if name == "slower":
                    event["name"] = event["name"].replace("gelu_kernel", "tanh_kernel")
            path.write_text(json.dumps(document))


@pytest.mark.usefixtures("traces")
@pytest.mark.parametrize("texts", TEXTS, ids=[one.stem for one in TEXTS])
def test_commands_print_what_they_did(folder: Path, texts: Path) -> None:
    text, output = texts.read_text(encoding="utf-8"), BytesIO()
    found = TextIOWrapper(output, encoding="utf-8", newline="", write_through=True)  # bytes are written too
    with chdir(folder), redirect_stdout(found), redirect_stderr(found):
        for command in re.findall(r"^\$ ((?:kernelcast|cat) .*)$", text, re.MULTILINE):
            print(f"$ {command}")
            program, *words = shlex.split(command)
            if program == "kernelcast":
                ended(*words)
            else:  # a file that a command wrote, without the styles and scripts of a page
                print(_STYLES.sub("", Path(words[0]).read_text(encoding="utf-8")))
    said = _SEARCH.sub("# s", output.getvalue().decode().replace(str(folder), "HERE"))
    printed = _DEEP.sub(
        " ", _VARIES.sub(lambda match: "#" if _DIGITS.match(match[0]) else len(match[0]) * "#", said)
    )
    if "WRITE_WHOLE_TEXTS" in os.environ:
        texts.write_text(printed, encoding="utf-8")
    assert printed == text
