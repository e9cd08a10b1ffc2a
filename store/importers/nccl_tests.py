"""Collectives from logs of nccl-tests: rows as workload vectors.

In nccl-tests, `size` is the larger of a process's two buffers and `count` the number of elements in the smaller buffer:
the shard of an all-gather, the output of a reduce-scatter, the part of an all-to-all for one process. Workload vectors
have the shard of an all-gather, but the whole input of a reduce-scatter or an all-to-all.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from kernelcast.runtime.errors import DataError, UsageError
from kernelcast.runtime.hardware.element_types import ELEMENT_BYTES
from kernelcast.runtime.operators import Direction, operator
from kernelcast.store.importers.description import Description, device_named
from kernelcast.store.importers.nccl_log import LogRow, Section, read_sections
from kernelcast.store.importers.parsed import Parsed, imported_sample
from kernelcast.store.importers.text_file import LeftOut, Malformed, Skipped, TextFile, read_text_file
from kernelcast.store.records import Sample

OPERATORS_OF: Mapping[str, str] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "point_to_point",
}
"""The operator of each test, without a role."""
# Names of types: torch's name and bytes per element. Integers have no dtype of a training step.
_TYPES: Mapping[str, tuple[str, int]] = {
    "double": ("float64", 8),
    "float": ("float32", 4),
    "half": ("float16", 2),
    "bfloat16": ("bfloat16", 2),
    "f8e4m3": ("float8_e4m3fn", 1),
    "f8e5m2": ("float8_e5m2", 1),
    "int8": ("", 1),
    "uint8": ("", 1),
    "int32": ("", 4),
    "uint32": ("", 4),
    "int64": ("", 8),
    "uint64": ("", 8),
}
_GATHERING = ("all_gather", "reduce_scatter", "alltoall")  # size is count × processes
_WHOLE = ("reduce_scatter", "alltoall")  # entries of the vector are the elements of the larger buffer
_ORDINARY_REDUCTIONS = ("", "sum", "none")


_Log = tuple[TextFile, list[Section]]


def read_nccl_tests(
    paths: Sequence[Path],
    *,
    described: Description | None = None,
    collective: str = "",
    as_dtype: str = "",
    strict: bool = False,
) -> Parsed:
    """Read logs of one cluster. Devices per node are the largest number that a test used on a node.

    `collective` is the collective of logs of older versions, which do not name it. With `as_dtype`, messages count as
    elements of that dtype; the conditions of the run list the measured types.

    Raises:
        DataError: a file is not such a log, the logs name several devices, or, with `strict`, a line is malformed.
        UsageError: `as_dtype` is unknown.
    """
    if as_dtype and as_dtype not in ELEMENT_BYTES:
        raise UsageError(f"as-dtype: found {as_dtype!r:.40}, expected one of {', '.join(ELEMENT_BYTES)}")
    parsed = Parsed(strict=strict, files=len(paths))
    logs: list[_Log] = []
    for path in paths:
        file = read_text_file(path)
        logs.append((file, read_sections(file, parsed)))
        for section in logs[-1][1]:
            section.collective = section.collective or collective
    description = (described or Description()).over(_described_by_logs(logs))
    _check_device(logs, description)
    fabric = description.network()
    for file, sections in logs:
        for section in sections:
            own = description.over(_described_by_section(section, as_dtype))
            samples = partial(_samples, section, as_dtype, file, parsed)
            with parsed.row(file.path, section.line):
                parsed.add_run("import nccl-tests", file, own, samples, fabric=fabric)
    return parsed.checked(paths)


def _described_by_logs(logs: Sequence[_Log]) -> Description:
    """The device and the devices per node of the logs."""
    sections = [section for _, of_file in logs for section in of_file]
    devices = sorted({device for section in sections for device in section.devices})
    hardware = device_named(devices[0]) if devices else {}
    most = max((section.hosts.count(host) for section in sections for host in section.hosts), default=0)
    return Description(hardware=hardware, fabric={"gpus_per_node": most} if most else {})


def _check_device(logs: Sequence[_Log], description: Description) -> None:
    expected = description.compute().device_name
    for file, sections in logs:
        for section in sections:
            if odd := sorted(section.devices - {expected}):
                raise DataError(
                    f"{file.path}:{section.line}: measured on {odd[0]!r:.60}, expected {expected!r:.60} "
                    "as elsewhere; import one kind of device at a time"
                )


def _described_by_section(section: Section, as_dtype: str) -> Description:
    versions = {"nccl": section.nccl_version, "cuda": section.cuda_version}
    conditions: dict[str, object] = {
        "benchmark": f"nccl-tests {section.benchmark_version}".strip(),
        "threads_per_process": section.settings.get("nThread", 1),
        "gpus_per_thread": section.settings.get("nGpus", 1),
        "aggregated_iterations": section.settings.get("agg iters", 1),
        "cuda_graph_launches": section.settings.get("graph", 0),
    }
    if as_dtype:
        conditions["bytes_counted_as"] = as_dtype
        conditions["measured_types"] = sorted({row.type_name for row in section.rows})
    return Description(
        software={name: version for name, version in versions.items() if version}, conditions=conditions
    )


def _samples(
    section: Section, as_dtype: str, file: TextFile, skipped: Skipped, run_id: str
) -> Iterator[Sample]:
    if not section.collective:
        raise Malformed(
            "the log does not say which collective this test is ('# Collective test starting: …')"
        )
    name = OPERATORS_OF.get(section.collective)
    if name is None:
        skipped.left_out[f"of {section.collective}: no operator for it"] += len(section.rows)
        return
    nodes, gpus_per_node = section.layout()
    if nodes * gpus_per_node == 1:
        skipped.left_out["of one process alone"] += len(section.rows)
        return
    for row in section.rows:
        with skipped.row(file.path, row.line):
            if not row.count:
                raise LeftOut("of empty messages")
            message_bytes, dtype = _message(section, row, nodes * gpus_per_node)
            dtype = as_dtype or dtype
            if not dtype:
                raise LeftOut(f"of {row.type_name}: no dtype of a training step")
            entries, rest = divmod(message_bytes, ELEMENT_BYTES[dtype])
            if rest:
                raise Malformed(f"{message_bytes} bytes are no whole number of {dtype} elements")
            vector = (entries, nodes, gpus_per_node)
            yield from [
                imported_sample(
                    operator(name),
                    Direction.ONCE,
                    dtype,
                    vector,
                    run_id=run_id,
                    time_us=time_us,
                    statistic=f"mean of {section.settings.get('iters', 0) or 'several'}",
                    repetition_count=section.settings.get("iters", 0),
                    variant=_variant(section, row, place, nodes * gpus_per_node),
                )
                for place, time_us in (("out-of-place", row.out_of_place_us), ("in-place", row.in_place_us))
                if time_us is not None
            ]


def _message(section: Section, row: LogRow, processes: int) -> tuple[int, str]:
    """Bytes of the entries of the workload vector, and torch's name of the type (empty for integers)."""
    if row.type_name not in _TYPES:
        raise Malformed(f"type: found {row.type_name!r:.40}, expected one of {', '.join(_TYPES)}")
    dtype, element_bytes = _TYPES[row.type_name]
    smaller = row.count * element_bytes
    larger = smaller * processes if section.collective in _GATHERING else smaller
    if row.size_bytes != larger:
        raise Malformed(
            f"size {row.size_bytes} does not fit count {row.count} of {row.type_name}, expected {larger}"
        )
    return (larger if section.collective in _WHOLE else smaller), dtype


def _variant(section: Section, row: LogRow, place: str, processes: int) -> str:
    parts = [place]
    if section.collective == "sendrecv" and processes > 2:
        parts.append("ring")  # every process sends to the next one at the same time
    if row.reduction not in _ORDINARY_REDUCTIONS:
        parts.append(row.reduction)
    return ", ".join(parts)
