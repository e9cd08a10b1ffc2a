"""A bundle holds the description of its fabric, where its database has exactly one that fits."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kernelcast.runtime import read_bundle
from kernelcast.runtime.bundle.fingerprint import FabricFingerprint
from kernelcast.runtime.bundle.manifest import described_fabrics, fingerprint_of, measured_fabrics
from kernelcast.runtime.estimate.defaults import usual_gpus_per_node
from kernelcast.runtime.hardware.fabric import Fabric, fabric_named
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, Sample
from kernelcast.train.fit import train_bundle

Measure = Callable[..., list[Sample]]
H100 = fabric_named("h100-3200g")
NODE_OF_2 = replace(H100, name="pairs", devices_per_node=2)

pytestmark = pytest.mark.usefixtures("few_candidates")


@pytest.mark.parametrize(
    ("described", "held"),
    [
        ([NODE_OF_2], [NODE_OF_2]),
        ([NODE_OF_2, H100], [NODE_OF_2]),  # the other's nodes are not those that were measured
        ([H100], []),
        ([NODE_OF_2, replace(NODE_OF_2, name="other pairs")], []),  # which one is not known
    ],
)
def test_the_only_description_of_nodes_like_the_measured_ones(
    database: Database,
    measure: Measure,
    fabric: FabricFingerprint,
    tmp_path: Path,
    described: Sequence[Fabric],
    held: Sequence[Fabric],
) -> None:
    measure(database, "point_to_point", Direction.ONCE, 10)
    database.add_fabric(replace(fabric, backend="another"))  # measured, though not here
    for one in described:
        assert database.add_fabric(fingerprint_of(one))
        assert not database.add_fabric(fingerprint_of(one))
    train_bundle(database, tmp_path / "here.kcast")
    read = read_bundle(tmp_path / "here.kcast")
    assert list(described_fabrics(read.manifest.fabric, where="here")) == list(held)
    assert measured_fabrics(read.manifest.fabric) == (fabric,)
    assert usual_gpus_per_node(read) == 2


def test_a_bundle_of_compute_alone_holds_a_description(
    database: Database, measure: Measure, tmp_path: Path
) -> None:
    measure(database, "gelu", Direction.FORWARD, 12, fabric=None)
    database.add_fabric(fingerprint_of(H100))
    train_bundle(database, tmp_path / "here.kcast")
    read = read_bundle(tmp_path / "here.kcast")
    assert described_fabrics(read.manifest.fabric, where="here") == (H100,)
    assert usual_gpus_per_node(read) == 8
