"""Where measurements come from: runs and their sources."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from kernelcast.runtime.errors import UsageError
from kernelcast.store.canonical import Record, plain_mapping, record_digest, utc_moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Record):
    """Where rows come from. `name` is a program or a file's base name, never a path.

    `file_digest` is the SHA-256 of an imported file; `reference` is where it was published (address or citation).
    """

    table: ClassVar[str] = "source"
    kind: str  # "collector", "import" or "trace"
    name: str
    licence: str = ""
    file_digest: str = ""
    reference: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("collector", "import", "trace"):
            raise UsageError(f"source kind: found {self.kind!r}, expected collector, import or trace")


KERNELCAST_COLLECTOR = Source(kind="collector", name="kernelcast")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One invocation that measured or imported: who, when, with which code, on what.

    `command` and `plan` name what was done (`collect compute`, `quick`) without paths. `conditions` holds what else
    affects a time, such as `processes_per_node`; a collection resumes only a run with equal conditions. `site` and
    `note` are free text and not part of the id, so that a database can be shared without them.
    """

    started_at: str | None = None  # UTC ISO-8601; None where an imported file has no date
    kernelcast_version: str = ""  # empty, like the next one, for another program
    code_digest: str = ""  # of the code that measured
    command: str
    compute_id: str
    software_id: str
    fabric_id: str | None = None  # None where none was used
    plan: str = ""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    source: Source = KERNELCAST_COLLECTOR
    site: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if self.started_at is not None:
            object.__setattr__(self, "started_at", utc_moment(self.started_at, "started_at"))
        object.__setattr__(self, "conditions", plain_mapping(self.conditions, "conditions"))

    @property
    def id(self) -> str:
        """Digest of all fields but `site` and `note`."""
        return record_digest("run", self.columns)

    @property
    def columns(self) -> dict[str, Any]:
        """Its row in table `run`, without the id."""
        names = {field.name for field in fields(self)} - {"source", "site", "note"}
        return {**{name: getattr(self, name) for name in names}, "source_id": self.source.id}
