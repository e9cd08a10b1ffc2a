"""`kernelcast walltime --k8s`: Jobs get time limits, everything else stays as it is, character by character."""

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelcast.cli.walltime import walltime
from kernelcast.cli.walltime_k8s import rewrite
from kernelcast.runtime import DataError, UsageError

Ask = Callable[[str], int]
K8s = Callable[..., Result]

LABEL = "kueue.x-k8s.io/max-exec-time-seconds"
FIELDS = "model=tiny micro_batch=1 micro_batches=3 steps=1e6"
OPTIONS = ["--model", "tiny", "--micro-batch", "1", "--micro-batches", "3", "--steps", "1e6"]
ANNOTATIONS = """\
  annotations:
    # what it trains
    kernelcast/model: tiny
    kernelcast/micro_batch: "1"   # a text
    kernelcast/micro_batches: '3'
    kernelcast/steps: 1e6
"""
JOB = f"""\
# A job.
apiVersion: batch/v1
kind: Job
metadata:
  name: train   # its name
{ANNOTATIONS}
spec:
    # indented by four
    backoffLimit: 0
    template:
      spec:
        containers:
        - name: a
          env: [{{name: A, value: "yes"}}]
        volumes:
        - configMap: {{name: m, defaultMode: 0644}}
"""
SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: s, annotations: {kernelcast/steps: 5}}\n"


def inserted(before: str, after: str) -> list[str]:
    """Lines that were put in; nothing may have been taken out or changed."""
    lines = [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "+-"]
    assert all(line.startswith("+ ") for line in lines), lines
    return [line[2:] for line in lines]


def limits(text: str) -> list[tuple[Any, Any]]:
    jobs = [job for job in yaml.safe_load_all(text) if job and job["kind"] == "Job"]
    return [
        (job["spec"].get("activeDeadlineSeconds"), (job["metadata"].get("labels") or {}).get(LABEL))
        for job in jobs
    ]


@pytest.mark.parametrize("stdin", [False, True])
def test_a_job_that_describes_itself(k8s: K8s, predicted_s: Ask, stdin: bool) -> None:
    asked_s = predicted_s(FIELDS)
    done = k8s(JOB, stdin=stdin)
    assert done.exit_code == 0
    assert inserted(JOB, done.stdout) == [
        "  labels:",
        f'    {LABEL}: "{asked_s}"',
        f"    activeDeadlineSeconds: {asked_s}",
    ]
    assert limits(done.stdout) == [(asked_s, str(asked_s))]
    # Above comments, which stay with what follows them.
    assert (
        f"\nspec:\n    activeDeadlineSeconds: {asked_s}\n    # indented by four\n    backoff" in done.stdout
    )
    name = "manifest" if stdin else "job.yaml"
    assert done.stderr.startswith(f"kernelcast: {name} document 1 (Job train): time limit 0")


def test_options_go_before_annotations(k8s: K8s, predicted_s: Ask) -> None:
    asked_s = predicted_s(FIELDS.replace("1e6", "5000"))
    assert limits(k8s(JOB, "--steps", "5000").stdout) == [(asked_s, str(asked_s))]
    bare = JOB.replace(ANNOTATIONS, "")
    assert limits(k8s(bare, *OPTIONS).stdout) == [(predicted_s(FIELDS), str(predicted_s(FIELDS)))]


def test_a_job_file_beside_it_counts(k8s: K8s, folder: Path, predicted_s: Ask) -> None:
    (folder / "kernelcast.toml").write_text("steps = 7\nmargin = 1.0\n")
    asked_s = predicted_s(FIELDS + " margin=1")
    assert limits(k8s(JOB).stdout) == [(asked_s, str(asked_s))]


def test_only_jobs_change(k8s: K8s, predicted_s: Ask) -> None:
    other = JOB.replace("name: train", "name: prepare").replace(ANNOTATIONS, "")
    text = f"{SERVICE}---\n{JOB}---\n# nothing\n---\n{other}...\n---\n{SERVICE}"
    done = k8s(text)
    asked_s = predicted_s(FIELDS)
    assert limits(done.stdout) == [(asked_s, str(asked_s)), (None, None)]
    assert len(inserted(text, done.stdout)) == 3
    assert "document 2 (Job train)" in done.stderr
    assert "prepare" not in done.stderr
    # Where no Job describes itself, options describe all of them.
    both = f"{other}---\n{other}"
    assert limits(k8s(both, *OPTIONS).stdout) == [(asked_s, str(asked_s))] * 2


def test_lists_and_json(k8s: K8s, predicted_s: Ask) -> None:
    items = "".join(
        f"{'-' if index == 0 else ' '} {line}\n" for index, line in enumerate(JOB.splitlines()[1:])
    )
    text = f"apiVersion: v1\nkind: List\nitems:\n{items}"
    done = k8s(text)
    asked_s = predicted_s(FIELDS)
    found = yaml.safe_load(done.stdout)["items"][0]
    assert (found["spec"]["activeDeadlineSeconds"], found["metadata"]["labels"]) == (
        asked_s,
        {LABEL: str(asked_s)},
    )
    assert "job.yaml document 1 item 1 (Job train): " in done.stderr
    other = text.replace("kind: List", "kind: Template")
    done = k8s(other)
    assert (done.stdout, done.exit_code) == ("", 1), done.stderr
    text = (
        '{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"a","labels":{}},"spec":{"template":{}}}\n'
    )
    done = k8s(text, *OPTIONS)
    assert limits(done.stdout) == [(asked_s, str(asked_s))]
    assert done.stdout == text.replace('"labels":{', f'"labels":{{"{LABEL}": "{asked_s}"').replace(
        '"spec":{', f'"spec":{{"activeDeadlineSeconds": {asked_s}, '
    )


def test_line_ends_stay(k8s: K8s) -> None:
    done = k8s(JOB.replace("\n", "\r\n"))
    assert done.stdout_bytes.count(b"\r\n") == done.stdout_bytes.count(b"\n") == JOB.count("\n") + 3


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("    backoffLimit", "    activeDeadlineSeconds: 60\n    backoffLimit"),
        ("  annotations:", f'  labels: {{{LABEL}: "60"}}\n  annotations:'),
    ],
)
def test_explicit_limits_are_kept(k8s: K8s, predicted_s: Ask, before: str, after: str) -> None:
    text = JOB.replace(before, after)
    done = k8s(text)
    assert done.stdout == text
    lines = done.stderr.splitlines()
    assert lines[0].startswith(
        "kernelcast: warning: job.yaml document 1 (Job train): time limit 00:01:00 is shorter than the "
    )
    assert lines[1:] == ["kernelcast: job.yaml document 1 (Job train): keeps its time limit, 00:01:00"]
    done = k8s(text, "--overwrite")
    assert limits(done.stdout) == [(predicted_s(FIELDS), str(predicted_s(FIELDS)))]
    assert "shorter" not in done.stderr
    assert k8s(done.stdout, "--overwrite").stdout == done.stdout


def test_off(k8s: K8s) -> None:
    text = JOB.replace("    kernelcast/model", '    kernelcast/off: "true"\n    kernelcast/model')
    assert (k8s(text).stdout, k8s(text).stderr) == (text, "")


def test_output(k8s: K8s, folder: Path) -> None:
    printed = k8s(JOB).stdout
    done = k8s(JOB, "-o", "job.yaml")
    assert done.stdout == ""
    assert (folder / "job.yaml").read_text() == printed
    assert [path.name for path in folder.iterdir()] == ["job.yaml"]
    done = k8s(JOB, "-o", "none/job.yaml")
    assert isinstance(done.exception, UsageError)


@pytest.mark.parametrize(
    ("changes", "gpus"),
    [
        ({"parallelism": 2, "completions": 2}, 8),
        ({"parallelism": 2}, 8),
        ({}, 4),
    ],
)
def test_the_layout_must_have_the_gpus_of_the_pods(k8s: K8s, changes: dict[str, int], gpus: int) -> None:
    counts = "".join(f"    {name}: {value}\n" for name, value in changes.items())
    limit = "        - name: a\n          resources: {limits: {nvidia.com/gpu: 4, cpu: 8}}\n"
    text = JOB.replace("    backoffLimit", f"{counts}    backoffLimit").replace("        - name: a\n", limit)
    assert limits(k8s(text, "--pp", "2", "--dp", str(gpus // 2)).stdout)[0][0]
    refused = k8s(text, "--pp", "2", "--dp", "1")
    assert isinstance(refused.exception, UsageError)
    assert f"has 2 GPU(s), expected {gpus}, as the job asks for" in str(refused.exception)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('micro_batch: "1"', "micro_batch: 1", "annotation kernelcast/micro_batch is 1, expected a text"),
        ('micro_batch: "1"', "micro_batch: few", "annotation kernelcast/micro_batch: micro_batch is 'few'"),
        ("kernelcast/steps", "kernelcast/stops", "annotation kernelcast/stops: field 'stops' is unknown"),
        ("kernelcast/steps", "kernelcast/models", "annotation kernelcast/models: field models is set here"),
        ("model: tiny", "model: huge", "annotation kernelcast/model: model 'huge' is unknown, known are "),
        ("    backoffLimit", "    completions: 4\n    backoffLimit", "spec.completions is 4, expected at most"),
        ("    backoffLimit", "    parallelism: x\n    backoffLimit", "spec.parallelism is 'x', expected a"),
        (
            "    backoffLimit",
            "    activeDeadlineSeconds: 1h\n    backoffLimit",
            "spec.activeDeadlineSeconds is '1h', expected a whole number from 1",
        ),
        (
            "  annotations:",
            f"  labels: {{{LABEL}: 60}}\n  annotations:",
            f'label {LABEL} is 60, expected a text such as "3600"',
        ),
        ("  annotations:", "  labels: [a]\n  annotations:", "metadata.labels is ['a'], expected a mapping"),
        ("  annotations:", "  labels:\n  annotations:", "metadata.labels is empty, expected a mapping"),
        ("  annotations:", "  labels: {}\n  labels:\n    {}\n  annotations:", "labels is given again in line 11"),
        ("spec:\n", "spec: 5\nother:\n", "spec is 5, expected a mapping"),
        ("    backoffLimit", "    <<: {a: 1}\n    backoffLimit", "spec has a merge key (<<), expected plain keys"),
        ("kernelcast/micro_batch:", 'kernelcast/off: "no"\n    a:', 'annotation kernelcast/off is \'no\''),
    ],
)  # fmt: skip
def test_slips_name_document_field_and_value(k8s: K8s, before: str, after: str, message: str) -> None:
    text = f"{SERVICE}---\n{JOB.replace(before, after)}"
    done = k8s(text)
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).startswith(f"job.yaml document 2 (Job train): {message}")
    assert "\n" not in str(done.exception)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "job.yaml: not YAML (line 1: "),
        ("a: b: c", "job.yaml: not YAML (line 1: mapping values are not allowed here)"),
        ("a: 1\n\tb: 2\n", "job.yaml: not YAML (line 2: "),
        ("[" * 5_000, "job.yaml: not YAML ("),
        ("a: \x07", "job.yaml: not YAML ("),
        (b"\xff\xfe\xff", "manifest job.yaml: not UTF-8 (byte 0)"),
        (
            "kind: Job\napiVersion: batch/v1\nat: 2026-13-45\n",
            "job.yaml document 1: not a manifest (month must be in",
        ),
        (
            "kind: Job\na: !!python/object:os.system {}\n",
            "job.yaml document 1: not a manifest (line 2: could not",
        ),
        (b" " * (17 << 20), "manifest job.yaml: larger than 16777216 bytes"),
    ],
)
def test_files_that_are_no_manifests(k8s: K8s, text: str | bytes, message: str) -> None:
    done = k8s(text)
    assert isinstance(done.exception, DataError)
    assert str(done.exception).startswith(message)
    assert "\n" not in str(done.exception)


@pytest.mark.parametrize("text", ["", "# nothing\n", SERVICE, "5\n", "- a\n", "kind: Job\napiVersion: v2\n"])
def test_there_must_be_a_job(k8s: K8s, text: str) -> None:
    done = k8s(text)
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).startswith("job.yaml: has no Job of batch/v1 among ")


@pytest.mark.parametrize(
    "options",
    [["--format", "json"], ["--asked", "5"], ["--slurm", "nodes=2"], ["--untrusted"]],
)
def test_options_that_mean_nothing_here(k8s: K8s, options: list[str]) -> None:
    done = k8s(JOB, *options)
    assert str(done.exception) == f"{options[0]} is given with --k8s, expected one of them"


@pytest.mark.parametrize("options", [["--overwrite"], ["-o", "x.yaml"]])
def test_options_that_mean_nothing_elsewhere(folder: Path, options: list[str]) -> None:
    done = CliRunner().invoke(walltime, ["train.sbatch", *options])
    assert isinstance(done.exception, UsageError)
    assert "is given without --k8s, expected both" in str(done.exception)


def test_a_manifest_must_be_named(folder: Path) -> None:
    done = CliRunner().invoke(walltime, ["--k8s"])
    assert str(done.exception).startswith("--k8s is given without JOB, expected a manifest's file")
    assert "no such file" in str(CliRunner().invoke(walltime, ["--k8s", "none.yaml"]).exception).lower()
    assert "is a folder, expected a regular file" in str(
        CliRunner().invoke(walltime, ["--k8s", "."]).exception
    )


def test_a_time_that_kueue_cannot_keep(k8s: K8s) -> None:
    done = k8s(JOB, "--startup", "3500d", "--margin", "1000%")
    assert str(done.exception).endswith("expected at most 2147483647, Kueue's longest")


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 10**9) | NAMES | st.floats(-1e3, 1e3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    others=st.lists(VALUES.filter(lambda value: value is not None), max_size=2),
    name=NAMES,
    labels=st.none() | st.dictionaries(NAMES, NAMES, max_size=2),
    rest=st.dictionaries(NAMES.filter(lambda key: key != "activeDeadlineSeconds"), VALUES, max_size=2),
    flow=st.sampled_from([None, True, False]),
    indent=st.sampled_from([2, 4]),
)
def test_any_job_reads_as_before_and_has_its_limits(
    folder: Path,
    predicted_s: Ask,
    others: list[Any],
    name: str,
    labels: dict[str, str] | None,
    rest: dict[str, Any],
    flow: bool | None,
    indent: int,
) -> None:
    rest = {
        key: value for key, value in rest.items() if key not in ("completions", "parallelism", "template")
    }
    metadata = {"name": name} if labels is None else {"name": name, "labels": labels}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {**rest, "template": {}}}
    text = yaml.safe_dump_all(
        [*others, job], default_flow_style=flow, indent=indent, explicit_start=True, allow_unicode=True
    )
    options = dict(field.split("=") for field in FIELDS.split())
    after = list(yaml.safe_load_all(rewrite(text, name="job.yaml", folder=folder, options=options)[0]))
    *others_after, job_after = after
    assert others_after == list(yaml.safe_load_all(text))[:-1]
    time_s = job_after["spec"].pop("activeDeadlineSeconds")
    assert job_after["metadata"].get("labels", {}).pop(LABEL) == str(time_s)
    if labels is None:
        del job_after["metadata"]["labels"]
    assert job_after == list(yaml.safe_load_all(text))[-1]
