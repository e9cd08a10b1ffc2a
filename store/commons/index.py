"""The index of a commons, `kernelcast-commons.json`: which parts and bundles there are, of what, with their digests.

Files are named by their SHA-256: no name of a stranger reaches a file system, and a file that exists need not
be fetched again.
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from kernelcast.runtime.bundle.file import MAX_BUNDLE_BYTES
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import DataError, error_context
from kernelcast.runtime.hardware.devices import device_named
from kernelcast.runtime.json_text import json_text
from kernelcast.runtime.record import (
    HEX,
    MOMENT,
    NAME,
    WITH_DEFAULT,
    Check,
    Record,
    at_least,
    between,
    one_of,
)
from kernelcast.store.database_file import DEFAULT_MAX_SIZE_BYTES

FORMAT = "kernelcast.commons/1"
INDEX_FILE = "kernelcast-commons.json"
MOST_INDEX_BYTES = 1 << 24
NAMESPACE = "kernelcast-commons"
"""Of the index's signature: one made for a bundle or a database does not count."""

_SHA256 = Check(re.compile("[0-9a-f]{64}").fullmatch, "a SHA-256, 64 hex digits")
_NO_FILE = Check(re.compile("(?:[0-9a-f]{64})?").fullmatch, "a SHA-256, 64 hex digits, or empty")
# Names a file of the cache: what else a stranger calls it reaches no file system.
_ID = Check(re.compile("[0-9a-f]{0,64}").fullmatch, "an id, at most 64 hex digits")
_SIZE = between(1, DEFAULT_MAX_SIZE_BYTES)
_TEXT = Check(
    lambda text: len(text) <= 300 and text.isprintable(), "a text of at most 300 characters on one line"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Record):
    """Rows of one run and operator as a compressed database; without an operator its measured steps.

    Without a run: described fabrics, failures and times of steps.
    """

    OPTIONAL: ClassVar[tuple[str, ...]] = WITH_DEFAULT
    digest: Annotated[str, _SHA256]  # of the compressed file
    size_bytes: Annotated[int, _SIZE]
    database_digest: Annotated[str, _SHA256]
    database_bytes: Annotated[int, _SIZE]
    content: Annotated[str, HEX]  # content digest: decides whether the part is written again
    rows: Annotated[int, at_least(1)]
    run: Annotated[str, _ID] = ""
    hardware: Annotated[str, _ID] = ""  # ids, described in the index
    software: Annotated[str, _ID] = ""
    fabric: Annotated[str, _ID] = ""
    operator: Annotated[str, _TEXT] = ""
    dtypes: tuple[str, ...] = ()
    first_measured_at: Annotated[str, _TEXT] = ""
    last_measured_at: Annotated[str, _TEXT] = ""
    parquet: Annotated[str, _NO_FILE] = ""  # digest of parquet/DIGEST.parquet: its view operator_time

    @property
    def path(self) -> str:
        return f"parts/{self.digest}.db.xz"

    @property
    def parquet_path(self) -> str:
        """Where the same rows lie for readers of Parquet; empty if they do not."""
        return f"parquet/{self.parquet}.parquet" if self.parquet else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedBundle(Record):
    """A bundle of regressors."""

    digest: Annotated[str, _SHA256]
    size_bytes: Annotated[int, between(1, MAX_BUNDLE_BYTES)]
    devices: tuple[str, ...]
    dtype: Annotated[str, NAME]
    created_at: Annotated[str, MOMENT]
    regressors: Annotated[int, at_least(1)]

    @property
    def path(self) -> str:
        return f"bundles/{self.digest}.kcast"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description(Record):
    """A described fabric or a software stack, as `--fabric` and `--stack` take it."""

    digest: Annotated[str, _SHA256]
    size_bytes: Annotated[int, between(1, 1 << 20)]
    kind: Annotated[str, one_of(("fabric", "stack"))]
    name: Annotated[str, _TEXT]

    @property
    def path(self) -> str:
        return f"descriptions/{self.digest}.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class About(Record):
    """What a publisher says of a commons; all of it may be empty."""

    site: Annotated[str, _TEXT] = ""
    contact: Annotated[str, _TEXT] = ""
    licence: Annotated[str, _TEXT] = ""


PublishedFile = Part | PublishedBundle | Description


@dataclass(frozen=True, slots=True, kw_only=True)
class Index(Record):
    """Everything in a commons. Texts of hardware, fabrics and software are by id."""

    OPTIONAL: ClassVar[tuple[str, ...]] = WITH_DEFAULT
    published_at: Annotated[str, MOMENT]
    kernelcast_version: Annotated[str, _TEXT]
    about: About
    hardware: Mapping[str, str]
    fabric: Mapping[str, str]
    software: Mapping[str, str]
    parts: tuple[Part, ...]
    bundles: tuple[PublishedBundle, ...]
    descriptions: tuple[Description, ...] = ()

    def __post_init__(self) -> None:
        Record.__post_init__(self)
        for table in (self.hardware, self.fabric, self.software):
            for text in (*table, *table.values()):
                if not _TEXT.accepts(text):
                    raise DataError(field="description", found=text, expected=_TEXT.expected)

    @property
    def files(self) -> tuple[PublishedFile, ...]:
        """Everything but the index."""
        return (*self.parts, *self.bundles, *self.descriptions)

    def text(self) -> bytes:
        """The file's content: equal indexes give equal bytes."""
        return (json_text({"format": FORMAT, **self.to_dict()}, indent=1) + "\n").encode()

    def matching(self, words: tuple[str, ...]) -> list[Part]:
        """Parts that have every word: of hardware, software, fabric, operator, type or id.

        Types may be short, as in bf16, and a device may have any of its names.
        """
        wanted = [(_TYPES.get(word.lower(), word.lower()), device_named(word)) for word in words]
        devices = {key: device_named(text.partition(",")[0]) for key, text in self.hardware.items()}

        def has(part: Part, text: str) -> bool:
            return all(word in text or (one and one is devices.get(part.hardware)) for word, one in wanted)

        return [part for part in self.parts if has(part, self._words(part))]

    def bundles_of(self, device: str) -> list[PublishedBundle]:
        """Bundles of a device, by any of its names or a part of one."""
        wanted = device_named(device)
        return [
            bundle
            for bundle in self.bundles
            for name in bundle.devices
            if device.lower() in name.lower() or (wanted and wanted is device_named(name))
        ]

    def _words(self, part: Part) -> str:
        ids = (part.hardware, part.software, part.fabric)
        tables = (self.hardware, self.software, self.fabric)
        described = (table.get(one, "") for table, one in zip(tables, ids, strict=True))
        return " ".join((*ids, *described, part.operator or "steps", *part.dtypes)).lower()


_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "float8", "fp4": "float4"}


def read_index(content: bytes, where: str) -> Index:
    """The index in a file; a DataError begins with `where`: not an index, newer, or a value is not allowed."""
    try:
        values: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: is not JSON ({str(error)[:80]}), expected the index of a commons"
        ) from error
    found = values.pop("format", None) if isinstance(values, dict) else None
    if found != FORMAT:
        newer = re.fullmatch(r"kernelcast\.commons/([0-9]{1,9})", found) if isinstance(found, str) else None
        hint = "; use a newer kernelcast" if newer and int(newer[1]) > int(FORMAT.rpartition("/")[2]) else ""
        raise DataError(f"{where}: has format {str(found)[:80]!r}, this kernelcast reads {FORMAT!r}{hint}")
    with error_context(where):
        return Index.from_dict(values)
