"""What differs between two bundles: their settings, and their regressors."""

from collections.abc import Mapping, Sequence
from typing import Any

from kernelcast.runtime.bundle.file import Bundle
from kernelcast.runtime.bundle.manifest import Manifest
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.dataclass import dataclass, fields
from kernelcast.runtime.json_text import plain_values, values_of
from kernelcast.runtime.operators import Direction

_LevelKey = tuple[str, Direction, int]
"""Operator, direction and processes per node."""

# Compared regressor by regressor; the descriptions stand for fingerprints.
_PLAIN = ("kernelcast_version", "created_at", "dtype", "statistic", "dataset_digest", "seed")
_FINGERPRINTS = ("compute", "fabric", "software")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDifference:
    """A field of the manifest that differs; hardware, fabric and software in words, with the id where words agree."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressorChange:
    """A regressor that both bundles have with different files or entries.

    `rows_differ`: fitted on other workloads or times. `recipe_differs`: by other code, libraries or settings, or for
    other hardware. `fields` are the names of the entry's fields that differ.
    """

    a: RegressorEntry
    b: RegressorEntry
    rows_differ: bool
    recipe_differs: bool
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleDifference:
    """Everything that differs; regressors sorted by operator and direction."""

    same_bytes: bool
    settings: tuple[SettingDifference, ...]
    removed: tuple[RegressorEntry, ...]
    added: tuple[RegressorEntry, ...]
    changed: tuple[RegressorChange, ...]
    unchanged: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values; with `format`, `a` and `b` the form `kernelcast.bundle_difference/1` (docs/json.md)."""
        return {
            "same_bytes": self.same_bytes,
            "settings": [values_of(one, "name", "a", "b") for one in self.settings],
            "removed": [_summary(entry) for entry in self.removed],
            "added": [_summary(entry) for entry in self.added],
            "changed": [
                {
                    **plain_values(change, "a.operator", "a.direction", "a.processes_per_node"),
                    **plain_values(change, "rows_differ", "recipe_differs", "fields"),
                    "a": _summary(change.a),
                    "b": _summary(change.b),
                }
                for change in self.changed
            ],
            "unchanged": self.unchanged,
        }


def compare_bundles(a: Bundle, b: Bundle) -> BundleDifference:
    """What only `b` has, and what only `a` has."""
    of_a, of_b = _by_level(a), _by_level(b)
    both = sorted(of_a.keys() & of_b.keys())
    changed = tuple(_change(of_a[key], of_b[key]) for key in both if of_a[key] != of_b[key])
    return BundleDifference(
        same_bytes=a.digest == b.digest,
        settings=tuple(_settings(a.manifest, b.manifest)),
        removed=_only(of_a, of_b),
        added=_only(of_b, of_a),
        changed=changed,
        unchanged=len(both) - len(changed),
    )


def _by_level(bundle: Bundle) -> dict[_LevelKey, RegressorEntry]:
    return {(*entry.key, entry.processes_per_node): entry for entry in bundle.manifest.regressors}


def _only(
    these: Mapping[_LevelKey, RegressorEntry], those: Mapping[_LevelKey, RegressorEntry]
) -> tuple[RegressorEntry, ...]:
    return tuple(these[key] for key in sorted(these.keys() - those.keys()))


def _change(a: RegressorEntry, b: RegressorEntry) -> RegressorChange:
    return RegressorChange(
        a=a,
        b=b,
        rows_differ=a.table_digest != b.table_digest,
        recipe_differs=a.recipe_digest != b.recipe_digest,
        fields=tuple(f.name for f in fields(RegressorEntry) if getattr(a, f.name) != getattr(b, f.name)),
    )


def _settings(a: Manifest, b: Manifest) -> Sequence[SettingDifference]:
    found = [
        SettingDifference(name=name, a=str(getattr(a, name)), b=str(getattr(b, name)))
        for name in _PLAIN
        if getattr(a, name) != getattr(b, name)
    ]
    if a.calibration != b.calibration:
        in_words = [_calibration(manifest) for manifest in (a, b)]
        # Equal words may leave out what differs.
        detail = " (differs in detail)" if in_words[0] == in_words[1] else ""
        found.append(SettingDifference(name="calibration", a=in_words[0] + detail, b=in_words[1] + detail))
    if a.peaks != b.peaks:
        found.append(SettingDifference(name="peaks", a=_peaks(a), b=_peaks(b)))
    for name in _FINGERPRINTS:
        of_a, of_b = ({f.digest: f.description for f in getattr(manifest, name)} for manifest in (a, b))
        if of_a.keys() != of_b.keys():
            found.append(SettingDifference(name=name, a=_words(of_a, of_b), b=_words(of_b, of_a)))
    return found


def _calibration(manifest: Manifest) -> str:
    return "none" if manifest.calibration is None else str(manifest.calibration)


def _peaks(manifest: Manifest) -> str:
    return "; ".join(map(str, manifest.peaks)) or "none"


def _words(described: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Descriptions, with the start of an id if the other bundle has another entry of the same description."""
    rows = [
        f"{text} ({digest[:12]})" if digest not in other and text in other.values() else text
        for digest, text in sorted(described.items())
    ]
    return "; ".join(rows) or "none"


def _summary(entry: RegressorEntry) -> dict[str, Any]:
    return {
        **plain_values(
            entry, "operator", "direction", "processes_per_node", "load", "rows", "algorithm", "form"
        ),
        **plain_values(entry, error="validation_error", coverage="interval_coverage"),
        **plain_values(entry, "size_bytes", "sha256"),
    }
