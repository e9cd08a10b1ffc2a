"""What sources offer, by the indexes that were fetched last: rows of a device and its software, and bundles."""

from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError, error_context
from kernelcast.store.commons.index import Description, Index, Part, PublishedBundle
from kernelcast.store.commons.pull import merged_digests, pull
from kernelcast.store.commons.sources import Source, chosen_sources, made
from kernelcast.store.commons.transfer import Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Rows of one device and one set of software in one source."""

    source: Source
    index: Index
    parts: tuple[Part, ...]

    @property
    def hardware(self) -> str:
        return self.index.hardware.get(self.parts[0].hardware, "no device")

    @property
    def software(self) -> str:
        return self.index.software.get(self.parts[0].software, "")

    @property
    def rows(self) -> int:
        """Samples and steps."""
        return sum(part.rows for part in self.parts)

    @property
    def dates(self) -> str:
        """Days of the first and the last measurement."""
        days = [
            day[:10] for part in self.parts for day in (part.first_measured_at, part.last_measured_at) if day
        ]
        return f"{min(days)} to {max(days)}" if days else "undated"

    def __str__(self) -> str:
        site = _site(self.source, self.index)
        return f"{site}: {self.rows:,} rows, measured {self.dates}, {self.source.trust}"


def offers(words: Sequence[str] = (), names: tuple[str, ...] = ()) -> list[Offer]:
    """Rows that match every word, by source, device and software, most first; errors as `chosen_sources`."""
    found = list[Offer]()
    for source, index in _indexes(names):
        groups: dict[tuple[str, str], list[Part]] = {}
        for part in index.matching(tuple(words)):
            groups.setdefault((part.hardware, part.software), []).append(part)
        found += [Offer(source=source, index=index, parts=tuple(parts)) for parts in groups.values()]
    return sorted(found, key=lambda offer: -offer.rows)


def published_bundle(device: str) -> tuple[Path, str] | None:
    """The newest bundle of a device that a source publishes, fetched unless it was before, and whose; as `offers`."""
    found = [(bundle, source, index) for source, index in _indexes() for bundle in index.bundles_of(device)]
    if not found:
        return None
    bundle, source, index = max(found, key=lambda one: one[0].created_at)
    return _fetched(
        source, bundle
    ), f"{_site(source, index)}: bundle of {bundle.created_at[:10]}, {source.trust}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedName:
    """A bundle, fabric or stack of a source."""

    source: str
    kind: str
    name: str
    dated: str

    def has(self, words: Sequence[str]) -> bool:
        """Whether its kind, name or source has every word."""
        text = f"{self.kind} {self.name} {self.source}".lower()
        return all(word.lower() in text for word in words)


def published_files(words: Sequence[str] = (), names: tuple[str, ...] = ()) -> list[PublishedName]:
    """Bundles, fabrics and stacks with every word, by source; errors as `offers`."""
    found = list[PublishedName]()
    for source, index in _indexes(names):
        of, day = _site(source, index), index.published_at[:10]
        for bundle in index.bundles:
            name = f"{', '.join(bundle.devices)} {bundle.dtype}"
            found.append(PublishedName(source=of, kind="bundle", name=name, dated=bundle.created_at[:10]))
        found += [
            PublishedName(source=of, kind=one.kind, name=one.name, dated=day) for one in index.descriptions
        ]
    return [one for one in found if one.has(words)]


def published_description(kind: str, name: str) -> tuple[Path, str] | None:
    """The first fabric or stack of that name in a source, fetched unless it was before, and whose; as `offers`."""
    for source, index in _indexes():
        for one in index.descriptions:
            if (one.kind, one.name) == (kind, name):
                day = index.published_at[:10]
                return _fetched(
                    source, one
                ), f"{_site(source, index)}: {kind} {name} of {day}, {source.trust}"
    return None


def _indexes(names: tuple[str, ...] = ()) -> Iterator[tuple[Source, Index]]:
    """The named sources, or all, whose index was fetched."""
    for source in chosen_sources(names):
        if index := source.index():
            yield source, index


def _fetched(source: Source, one: PublishedBundle | Description) -> Path:
    path = source.cache / Path(one.path).name
    with made(source.cache), error_context(f"source {source.name}"):
        Transfer(source=source).download(one.path, path, size_bytes=one.size_bytes, digest=one.digest)
    return path


def _site(source: Source, index: Index) -> str:
    return f"{index.about.site} ({source.name})" if index.about.site else source.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Rows of one device from all sources in one database, and what to train on."""

    database: Path
    digest: str  # of the parts
    offers: tuple[Offer, ...]
    wanted: dict[str, str]


def measurements(device: str) -> Measurements:
    """The rows of a device and the software with the most of them, from every source, in a database of the cache.

    UsageError where no source has the device; errors as `pull`.
    """
    found = offers((device,))
    if not found or not found[0].parts[0].hardware:
        raise UsageError(f"no source has rows or a bundle of {device!r:.80} (kernelcast commons search)")
    best = found[0].parts[0]
    same = [
        one
        for one in found
        if (one.parts[0].hardware, one.parts[0].software) == (best.hardware, best.software)
    ]
    folder = same[0].source.cache.parent
    database = folder / f"{best.hardware}.db"
    with made(folder):
        parts = [part for one in same for part in one.parts]
        digest = sha256("".join(sorted(part.database_digest for part in parts)).encode()).hexdigest()
        if not (folder / f"{digest}.kcast").exists():
            if not merged_digests(database) <= {part.database_digest for part in parts}:
                for suffix in (
                    "",
                    "-wal",
                    "-shm",
                ):  # rows that a source withdrew, or of a removed source
                    database.with_name(database.name + suffix).unlink(missing_ok=True)
            for one in same:
                pull(one.source, database, (best.hardware, best.software))
    dtypes = Counter({dtype: 0 for part in parts for dtype in part.dtypes})
    fabrics = Counter[str]()
    for part in parts:
        fabrics[part.fabric] += part.rows if part.fabric else 0
        dtypes.update(dict.fromkeys(part.dtypes, part.rows))
    wanted = {
        "hardware": best.hardware,
        "software": best.software,
        "dtype": _most(dtypes),
        "fabric": _most(fabrics),
    }
    return Measurements(database=database, digest=digest, offers=tuple(same), wanted=wanted)


def _most(counts: Counter[str]) -> str:
    return max(counts, key=lambda name: (counts[name], name))
