"""Records of measured operators: samples, their repetitions and kernels.

Records are immutable and canonical (see `canonical`): a record read from a database equals the record written. The id
of a record is the digest of its content, so the same measurement is the same row in every database.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import count
from operator import attrgetter
from typing import Any, NamedTuple, Required, Self, TypedDict, Unpack

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.devices import ELEMENT_BYTES, Load
from kernelcast.runtime.operators import OPERATORS, Direction, operator
from kernelcast.store.canonical import canonicalise, record_digest, rounded
from kernelcast.store.statistics import middle_five_mean_us, quiet_us, spread

MIDDLE_FIVE_OF_TEN = "middle five of ten"


class Status(StrEnum):
    """OK: has a time; UNSUPPORTED by the device; FAILED, for example because memory ran out."""

    OK = "ok"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"


class Kernel(NamedTuple):
    """One kernel (on a CPU: one operator call) of a repetition; `start_us` is from the repetition's start.

    A repetition brings the times of its kernels into the canonical form.
    """

    name: str
    start_us: float
    duration_us: float
    stream: int = 0

    def canonical(self) -> "Kernel":
        start_us = rounded(self.start_us, "kernel start_us")
        return Kernel(self.name, start_us, rounded(self.duration_us, "kernel duration_us"), self.stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """One execution, from first kernel start to last kernel end; `start_us` is relative to the first repetition."""

    index: int
    time_us: float
    start_us: float = 0.0
    kernels: tuple[Kernel, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "time_us", rounded(self.time_us, "repetition time_us"))
        object.__setattr__(self, "start_us", rounded(self.start_us, "repetition start_us"))
        kernels = (kernel.canonical() for kernel in self.kernels)
        ordered = sorted(kernels, key=lambda k: (k.start_us, k.stream, k.duration_us, k.name))
        object.__setattr__(self, "kernels", tuple(ordered))


@dataclass(frozen=True, slots=True)
class Repetitions(Sequence[Repetition]):
    """Executions in the stored form as columns: a trace has millions.

    Execution i has the index i, and of all kernels those from `first[i]` to `first[i + 1]`, ordered as in `Repetition`.
    """

    time_us: Sequence[float]
    start_us: Sequence[float]
    kernels: Sequence[Kernel]
    first: Sequence[int]

    def __len__(self) -> int:
        return len(self.time_us)

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]

    def __iter__(self) -> Iterator[Repetition]:
        for index, time_us, start_us, kernels in self.rows():
            yield Repetition(index=index, time_us=time_us, start_us=start_us, kernels=tuple(kernels))

    def rows(self) -> Iterator[tuple[int, float, float, Sequence[Kernel]]]:
        """Index, time, start and kernels of each."""
        kernels = map(self.kernels.__getitem__, map(slice, self.first, self.first[1:]))
        return zip(count(), self.time_us, self.start_us, kernels, strict=False)


class SampleDetails(TypedDict, total=False):
    """Fields that the constructors of a sample pass on."""

    run_id: Required[str]
    operator: Required[str]
    direction: Required[Direction]
    dtype: Required[str]
    vector: Required[Sequence[int]]
    role: str
    variant: str
    reference_us: float | None
    measured_at: str | None
    load: Load
    clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    flags: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFields:
    """One measurement without its repetitions: an operator, a direction and a dtype at a workload vector, and its time.

    Times are in µs; `flops` and `moved_bytes` count one execution. `role` is why a step calls the operator, or empty;
    the time does not depend on it.
    """

    run_id: str
    operator: str
    role: str = ""
    direction: Direction
    dtype: str  # torch's name: float32, bfloat16, …
    vector: tuple[int, ...]
    variant: str = ""  # how it was called, such as "in-place"
    status: Status = Status.OK
    reason: str = ""
    time_us: float | None = None  # the paper's statistic, or what `statistic` names
    quiet_us: float | None = None  # 10th percentile of all repetitions
    spread: float | None = None  # (90th − 10th percentile) / median
    statistic: str = ""
    repetition_count: int = 0
    flops: float | None = None
    moved_bytes: float | None = None
    reference_us: float | None = (
        None  # time of a short fixed kernel, which shows how disturbed the machine was
    )
    measured_at: str | None = None  # UTC ISO-8601
    load: Load = Load.NOT_STATED
    # Readings during the repetitions, None if unavailable:
    clock_mhz: float | None = None  # of a GPU's multiprocessors, or mean of the CPU cores used
    power_w: float | None = None  # of a GPU, or of all CPUs of the machine
    temperature_c: float | None = None
    flags: tuple[tuple[str, str], ...] = ()  # why it is doubtful: (flag, detail), each flag once


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(SampleFields):
    """One measurement with its repetitions.

    Use `from_repetitions` or `without_time` to build a sample; the plain constructor is for reading, and for imported
    times without repetitions.
    """

    repetitions: Sequence[Repetition] = ()

    def __post_init__(self) -> None:
        put = object.__setattr__
        try:
            canonicalise(self, f"{self.operator}:")
            put(self, "vector", _whole_numbers(self.vector))
        except ValueError as error:
            raise UsageError(f"{self.operator}: {error}") from error
        if not isinstance(self.repetitions, Repetitions):
            put(self, "repetitions", tuple(sorted(self.repetitions, key=lambda r: r.index)))
        put(self, "repetition_count", self.repetition_count or len(self.repetitions))
        put(self, "flags", tuple(sorted((flag, " ".join(detail.split())) for flag, detail in self.flags)))
        self._check()

    def _check(self) -> None:
        known = OPERATORS.get(self.operator)
        if known is not None and len(self.vector) != len(known.features):
            expected = ", ".join(known.features)
            found = len(self.vector)
            raise UsageError(f"{self.operator}: workload vector has {found} entries, expected [{expected}]")
        if self.status is Status.OK and (self.time_us is None or self.time_us <= 0):
            raise UsageError(f"{self.operator}: found time_us {self.time_us}, expected more than 0")
        if self.status is not Status.OK and (self.time_us is not None or not self.reason):
            raise UsageError(f"{self.operator}: a sample that is {self.status} has a reason and no time")
        if self.repetitions and self.repetition_count != len(self.repetitions):
            found = len(self.repetitions)
            raise UsageError(
                f"{self.operator}: {found} repetitions, repetition_count {self.repetition_count}"
            )
        is_numbered = isinstance(self.repetitions, Repetitions)
        if not is_numbered and len({one.index for one in self.repetitions}) != len(self.repetitions):
            raise UsageError(f"{self.operator}: two repetitions have the same index")
        names = [flag for flag, _ in self.flags]
        if len(set(names)) != len(names) or "" in names:
            raise UsageError(f"{self.operator}: found flags {names}, expected names, each once")

    @classmethod
    def from_repetitions(cls, *, repetitions: Sequence[Repetition], **details: Unpack[SampleDetails]) -> Self:
        """A measured sample; its statistics, FLOPs and bytes follow from the repetitions and the table of operators.

        UsageError for an unknown operator, direction or dtype, a vector of another length, or no repetition.
        """
        if isinstance(repetitions, Repetitions):
            durations_us: Sequence[float] = repetitions.time_us
        else:
            durations_us = [one.time_us for one in sorted(repetitions, key=attrgetter("index"))]
        flops, moved_bytes = _cost(details)
        return cls(
            time_us=middle_five_mean_us(durations_us),
            quiet_us=quiet_us(durations_us),
            spread=spread(durations_us),
            statistic=MIDDLE_FIVE_OF_TEN,
            flops=flops,
            moved_bytes=moved_bytes,
            repetitions=repetitions,
            **details,  # type: ignore[arg-type]  # `vector` and `flags` become tuples
        )

    @classmethod
    def without_time(cls, *, status: Status | str, reason: str, **details: Unpack[SampleDetails]) -> Self:
        """A workload without a time: `status` is failed or unsupported, `reason` one line; UsageError else."""
        return cls(status=Status(status), reason=" ".join(reason.split()), **details)  # type: ignore[arg-type]

    @property
    def columns(self) -> dict[str, object]:
        """The row in table `sample` without number and id; the vector is a tuple."""
        return {name: getattr(self, name) for name in SAMPLE_COLUMNS}

    @property
    def id(self) -> str:
        """Digest of run, workload, statistics, flags, repetitions and kernels."""
        return sample_digest(self.columns, self.repetitions, self.flags)


def sample_digest(
    columns: Mapping[str, Any], repetitions: Iterable[Any], flags: Sequence[tuple[str, str]]
) -> str:
    """The id of a sample with these columns, vector as a list; `repetitions` as `repetition_rows` takes them."""
    return record_digest(
        "sample", {**columns, "repetitions": list(repetition_rows(repetitions)), "flags": flags}
    )


def repetition_rows(repetitions: Iterable[Any]) -> Iterable[tuple[int, float, float, Sequence[Kernel]]]:
    """Index, time, start and kernels of records, or of rows with their fields."""
    if isinstance(repetitions, Repetitions):
        return repetitions.rows()
    return ((r.index, r.time_us, r.start_us, r.kernels) for r in repetitions)


SAMPLE_COLUMNS = tuple(f.name for f in fields(SampleFields) if f.name != "flags")


def _whole_numbers(vector: Sequence[float]) -> tuple[int, ...]:
    whole = tuple(int(entry) for entry in vector)
    if not whole or whole != tuple(vector) or min(whole) < 0:
        raise ValueError(f"workload vector {list(vector)}, expected whole numbers from 0")
    return whole


def _cost(details: SampleDetails) -> tuple[float, float]:
    """FLOPs and bytes moved of one execution."""
    name, direction, dtype = details["operator"], details["direction"], details["dtype"]
    row, vector = operator(name), details["vector"]
    if direction not in row.costs:
        raise UsageError(f"{name}: found direction {direction!r}, expected one of {', '.join(row.costs)}")
    if dtype not in ELEMENT_BYTES:
        raise UsageError(f"{name}: found dtype {dtype!r}, expected one of {', '.join(ELEMENT_BYTES)}")
    flops = row.flops(Direction(direction), vector, details.get("variant", ""))
    return flops, row.moved_bytes(Direction(direction), vector, ELEMENT_BYTES[dtype])
