"""Kubernetes Jobs: their annotations, their resources, and where a time limit goes.

Works on plain values (dictionaries, lists, texts, numbers); reading and writing manifests is the command's business.
Sources: kubernetes.io/docs/concepts/workloads/controllers/job (activeDeadlineSeconds, completions, parallelism),
kueue.sigs.k8s.io/docs/reference/labels-and-annotations (max-exec-time-seconds).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError, shown
from kernelcast.runtime.frameworks.slurm import Allocation
from kernelcast.walltime.fields import Given, give

PREFIX = "kernelcast/"
"""Of the annotations that describe a Job: `kernelcast/model: llama-2-7b`."""

OFF = PREFIX + "off"
DEADLINE = "activeDeadlineSeconds"
LABEL = "kueue.x-k8s.io/max-exec-time-seconds"
MAX_S = 2**31 - 1
"""Kueue keeps the time as 32-bit seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesJob:
    """A `batch/v1` Job of a manifest. `where` names it in messages: `job.yaml document 2 (Job train)`."""

    where: str
    metadata: Mapping[str, Any]
    spec: Mapping[str, Any]

    @classmethod
    def read(cls, manifest: object, *, where: str) -> "KubernetesJob | None":
        """The Job, or None if the manifest is another object; UsageError for a Job without metadata or spec."""
        if not isinstance(manifest, Mapping) or manifest.get("kind") != "Job":
            return None
        if not str(manifest.get("apiVersion", "")).startswith("batch/"):
            return None
        metadata = manifest.get("metadata")
        name = metadata.get("name", metadata.get("generateName")) if isinstance(metadata, Mapping) else None
        where = f"{where} (Job {name})" if isinstance(name, str) and name.isprintable() else where
        for field in ("metadata", "spec"):
            if not isinstance(manifest.get(field), Mapping):
                raise UsageError(field=field, found=manifest.get(field), expected="a mapping").within(where)
        return cls(where=where, metadata=manifest["metadata"], spec=manifest["spec"])

    def _texts(self, field: str) -> Mapping[str, Any]:
        """The Job's labels or annotations."""
        texts = self.metadata.get(field)
        if texts is None:
            return {}
        if not isinstance(texts, Mapping):
            raise UsageError(f"{self.where}: metadata.{field} is {shown(texts)}, expected a mapping")
        return texts

    @property
    def off(self) -> bool:
        """Whether the annotation `kernelcast/off` asks for no prediction."""
        value = self._texts("annotations").get(OFF)
        if value not in (None, "true", "false"):
            raise UsageError(f'{self.where}: annotation {OFF} is {shown(value)}, expected "true" or "false"')
        return bool(value == "true")

    def given(self, folder: Path) -> dict[str, Given]:
        """The fields of its annotations; relative paths start from `folder`. UsageError for a wrong field."""
        found: dict[str, Given] = {}
        for name, value in self._texts("annotations").items():
            if not isinstance(name, str) or not name.startswith(PREFIX) or name == OFF:
                continue
            origin = f"{self.where}: annotation {name}"
            if not isinstance(value, str):
                raise UsageError(f"{origin} is {shown(value)}, expected a text (in quotes)")
            found = give([(name[len(PREFIX) :], value)], origin=origin, folder=folder, earlier=found)
        return found

    def asked_s(self) -> int | None:
        """The present time limit in seconds; the shorter one if there are two."""
        return min(self.limits(), default=None)

    def limits(self) -> list[int]:
        """The present time limits in seconds, the Job's own and Kueue's label; UsageError for one that is no time."""
        limits = []
        deadline, label = self.spec.get(DEADLINE), self._texts("labels").get(LABEL)
        if deadline is not None:
            if isinstance(deadline, bool) or not isinstance(deadline, int) or deadline < 1:
                found = shown(deadline)
                raise UsageError(f"{self.where}: spec.{DEADLINE} is {found}, expected a whole number from 1")
            limits.append(deadline)
        if label is not None:
            if not isinstance(label, str) or not _is_whole(label) or not 0 < int(label) <= MAX_S:
                raise UsageError(
                    f'{self.where}: label {LABEL} is {shown(label)}, expected a text such as "3600"'
                )
            limits.append(int(label))
        return limits

    def allocation(self) -> Allocation:
        """GPUs of all its pods, where containers request them; UsageError where pods run after one another."""
        pods = self._count("parallelism")
        completions = self._count("completions") if self.spec.get("completions") is not None else pods
        if completions > pods:
            raise UsageError(
                f"{self.where}: spec.completions is {completions}, expected at most spec.parallelism, {pods}: "
                "pods that train together run at the same time"
            )
        per_pod = self._gpus_per_pod()
        if per_pod == 0:
            return Allocation()
        origin = f"{pods} pod(s) with {per_pod} GPU(s) each"
        if pods == 1:
            return Allocation(nodes=1, gpus_per_node=per_pod, gpus=per_pod, origin=origin)
        return Allocation(gpus=pods * per_pod, origin=origin)

    def _count(self, name: str) -> int:
        value = self.spec.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_S:
            raise UsageError(f"{self.where}: spec.{name} is {shown(value)}, expected a whole number from 1")
        return value

    def _gpus_per_pod(self) -> int:
        pod = _mapping(_mapping(self.spec.get("template")).get("spec"))
        containers = pod.get("containers")
        found = 0
        for container in containers if isinstance(containers, list) else []:
            limits = _mapping(_mapping(_mapping(container).get("resources")).get("limits"))
            for resource, amount in limits.items():
                if not str(resource).endswith("/gpu"):  # nvidia.com/gpu, amd.com/gpu
                    continue
                if not _is_whole(str(amount)):
                    raise UsageError(
                        f"{self.where}: limit {resource} is {shown(amount)}, expected a whole number"
                    )
                found += int(str(amount))
        return found


def _is_whole(text: str) -> bool:
    return re.fullmatch("[0-9]{1,10}", text) is not None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
