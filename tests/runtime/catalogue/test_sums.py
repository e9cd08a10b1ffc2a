"""Bundles that ship are read in parts: their digests are listed, and each is verified here."""

from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelcast.datasets import build
from kernelcast.runtime import DataError, Estimate, Estimator, Parallelism
from kernelcast.runtime.answers.sources import source_of
from kernelcast.runtime.bundle.file import Bundle, Key, UnreadFiles, open_shipped, read_bundle
from kernelcast.runtime.catalogue import _shipped, load_bundle
from kernelcast.runtime.dataclass import replace
from kernelcast.runtime.request.models import find_model
from kernelcast.runtime.shipped import BUNDLES, SUMS

PATHS = sorted(BUNDLES.glob("*.kcast"))


def test_all_are_listed() -> None:
    assert SUMS.read_text(encoding="utf-8") == build.bundle_digests()


def opened(path: Path, sound: Bundle) -> Bundle:
    return open_shipped(
        path, digest=sound.digest, manifest_digest=sha256(sound.manifest.to_json()).hexdigest()
    )


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_each_is_what_kernelcast_writes(path: Path) -> None:
    bundle = read_bundle(path)
    assert bundle == opened(path, bundle)
    assert isinstance(opened(path, bundle).files, UnreadFiles)
    assert isinstance(_shipped(path).files, UnreadFiles)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(data=st.data())
def test_damage_is_an_error_of_what_it_hit_or_changes_nothing(data: st.DataObject, tmp_path: Path) -> None:
    sound = read_bundle(PATHS[0])
    content = bytearray(PATHS[0].read_bytes())
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    path = tmp_path / "damaged.kcast"
    path.write_bytes(content)

    def content_or_problem() -> dict[str, bytes | str]:
        try:
            found = opened(path, sound)
        except DataError as error:
            return {"": str(error)}
        return {name: _read(found, name) for name in found.files}

    for name, found in content_or_problem().items():
        assert found == sound.files.get(name) or str(found).startswith(f"bundle {path}: {name}")


def _read(bundle: Bundle, name: str) -> bytes | str:
    try:
        return bundle.files[name]
    except DataError as error:
        return str(error)


def test_a_damaged_regressor_is_noticed_when_it_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "damaged.kcast"
    sound = read_bundle(PATHS[0])
    hit, *others = sorted(sound.files)
    content = PATHS[0].read_bytes()
    position = content.index(sound.files[hit])
    path.write_bytes(content[:position] + b"\0" + content[position + 1 :])
    found = opened(path, sound)
    assert all(found.files[name] == sound.files[name] for name in others)
    with pytest.raises(DataError, match=hit):
        found.files[hit]
    path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        found.files[others[0]]


def test_a_bundle_in_the_place_of_another_is_read_whole_and_has_its_own_digest(tmp_path: Path) -> None:
    one, other = map(read_bundle, PATHS[:2])
    assert opened(other.path, one) == other


def test_a_prediction_reads_each_regressor_that_it_asks_once_and_no_other() -> None:
    bundle, read = load_bundle("hardware:h100-sxm"), list[str]()

    def counted(name: str) -> bytes:
        read.append(name)
        return bundle.files[name]

    files = UnreadFiles({name: partial(counted, name) for name in bundle.files})
    estimator = Estimator(replace(bundle, files=files))
    layout = Parallelism(pp=4, tp=8, dp=64, micro_batch=1, micro_batches=16)
    estimate = estimator.predict(model=find_model("llama-3-70b").model, parallelism=layout)
    asked = {bundle.entries[answered_by].file for answered_by in sources(estimate, bundle)}
    assert sorted(read) == sorted(asked)
    assert len(read) <= len(bundle.files) / 2


def sources(estimate: Estimate, bundle: Bundle) -> set[Key]:
    """The regressors of a bundle that answered."""
    found = (source_of(key, bundle.entries) for key, *_ in estimate.answers)
    return {one.answered_by for one in found if one is not None}
