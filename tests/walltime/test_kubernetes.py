"""Kubernetes Jobs: which annotations describe a job, what a time limit may be, how many GPUs its pods have."""

from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import UsageError
from kernelcast.walltime.kubernetes import DEADLINE, LABEL, MAX_S, OFF, KubernetesJob


def job(*, annotations: object = None, labels: object = None, **spec: Any) -> KubernetesJob:
    metadata = {"name": "a", "annotations": annotations, "labels": labels}
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    found = KubernetesJob.read(manifest, where="job.yaml")
    assert found is not None
    return found


def pods(*limits: dict[str, object], **spec: Any) -> KubernetesJob:
    return job(template={"spec": {"containers": [{"resources": {"limits": one}} for one in limits]}}, **spec)


@pytest.mark.parametrize("manifest", [None, {"kind": "Pod"}, {"kind": "Job", "apiVersion": "example.com/v1"}])
def test_other_objects(manifest: object) -> None:
    assert KubernetesJob.read(manifest, where="job.yaml") is None


def test_annotations_of_others_are_passed_over() -> None:
    annotations = {5: "", "app/pp": "8", "pp": "9", OFF: "false", "kernelcast/pp": "4", "kernelcast/tp": "2"}
    found = job(annotations=annotations).given(Path("/folder"))
    assert {name: one.value for name, one in found.items()} == {"pp": 4, "tp": 2}
    assert found["pp"].origin == "job.yaml (Job a): annotation kernelcast/pp"
    assert not job(annotations=annotations).off
    assert job(annotations={OFF: "true"}).off


def test_an_annotation_is_a_text() -> None:
    with pytest.raises(UsageError, match=r"annotation kernelcast/pp is 4, expected a text \(in quotes\)"):
        job(annotations={"kernelcast/pp": 4}).given(Path("/folder"))


@pytest.mark.parametrize(
    ("name", "where"), [("a", "job.yaml (Job a)"), (3, "job.yaml"), ("a\x1b", "job.yaml")]
)
def test_a_job_is_named_by_a_name_that_can_be_printed(name: object, where: str) -> None:
    with pytest.raises(UsageError) as caught:
        KubernetesJob.read(
            {"kind": "Job", "apiVersion": "batch/v1", "metadata": {"name": name}}, where="job.yaml"
        )
    assert str(caught.value).startswith(f"{where}: spec is")


def test_limits() -> None:
    assert job().asked_s() is None
    assert job(**{DEADLINE: 1}).limits() == [1]
    assert job(labels={LABEL: "1"}).limits() == [1]
    assert job(labels={LABEL: str(MAX_S)}, **{DEADLINE: 60}).limits() == [60, 2_147_483_647]
    assert job(labels={LABEL: "30"}, **{DEADLINE: 60}).asked_s() == 30


@pytest.mark.parametrize("label", ["0", "-5", "1h", "2147483648", 60, True])
def test_labels_that_are_no_time(label: object) -> None:
    with pytest.raises(UsageError, match=f'label {LABEL} is .*, expected a text such as "3600"'):
        job(labels={LABEL: label}).limits()


@pytest.mark.parametrize("deadline", [0, True, "60", 1.5])
def test_deadlines_that_are_no_time(deadline: object) -> None:
    with pytest.raises(UsageError, match=f"spec.{DEADLINE} is .*, expected a whole number from 1"):
        job(**{DEADLINE: deadline}).limits()


def test_gpus_of_all_pods() -> None:
    two = {"nvidia.com/gpu": "2", "memory": "1Gi"}
    assert pods({"cpu": 4}).allocation().gpus is None
    one = pods(two, {"amd.com/gpu": 1}).allocation()
    assert (one.nodes, one.gpus_per_node, one.gpus) == (1, 3, 3)
    many = pods(two, parallelism=2).allocation()
    assert (many.nodes, many.gpus_per_node, many.gpus) == (None, None, 4)
    assert pods(two, parallelism=3, completions=3).allocation().gpus == 6


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"parallelism": 0}, "spec.parallelism is 0, expected a whole number from 1"),
        ({"parallelism": True}, "spec.parallelism is True, expected a whole number from 1"),
        ({"parallelism": 2**31}, "spec.parallelism is 2147483648, expected a whole number from 1"),
        ({"parallelism": 2, "completions": 3}, "spec.completions is 3, expected at most spec.parallelism, 2"),
    ],
)
def test_counts_of_pods(spec: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pods({"nvidia.com/gpu": 1}, **spec).allocation()


def test_a_number_of_gpus_is_whole() -> None:
    with pytest.raises(UsageError, match=r"limit nvidia.com/gpu is '1.5', expected a whole number"):
        pods({"nvidia.com/gpu": "1.5"}).allocation()
