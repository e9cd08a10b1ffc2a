"""Doubtful samples of a database, counted by hand."""

from dataclasses import replace
from pathlib import Path

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, Run, Sample
from kernelcast.store.doubts import IMPOSSIBLE, OUTLIER, DoubtfulSamples, doubtful_samples
from kernelcast.store.runs import Source

A100 = ComputeFingerprint(kind="cuda", device_name="NVIDIA A100-SXM4-80GB")
NDR = FabricFingerprint(backend="nccl", gpus_per_node=1, nics=("400 Gb/s InfiniBand NDR ×1",))


def test_counts_by_source_operator_and_flag(tmp_path: Path, run: Run, software: SoftwareFingerprint) -> None:
    run = replace(
        run, compute_id=A100.digest, fabric_id=NDR.digest, source=Source(kind="import", name="a site")
    )
    product = Sample(
        run_id=run.id,
        operator="gemm",
        direction=Direction.FORWARD,
        dtype="float16",
        vector=(4096,) * 3,
        time_us=600.0,
    )
    # Three products in 1 to 3 µs are impossible; one was stored with another flag.
    products = [replace(product, time_us=float(us)) for us in (600, 610, 620, 1, 2)]
    stored = replace(product, time_us=3.0, flags=((OUTLIER, "as stored"), ("unstable", "30 %")))
    gather = replace(
        product, operator="all_gather", direction=Direction.ONCE, vector=(10**8, 4, 1), time_us=100.0
    )
    with Database.open(tmp_path / "a.db", create=True) as database:
        database.add_run(run, A100, NDR, software)
        database.add_samples([*products, stored, gather])
        found = doubtful_samples(database)
    assert [(one.operator, one.flag, one.count, one.samples) for one in found] == [
        ("gemm", IMPOSSIBLE, 2, 6),
        ("all_gather", IMPOSSIBLE, 1, 1),
        ("gemm", OUTLIER, 1, 6),
    ]
    assert found[2] == DoubtfulSamples(
        source="a site",
        hardware=A100.description,
        operator="gemm",
        direction="forward",
        flag=OUTLIER,
        count=1,
        samples=6,
        example="as stored",
    )
    assert str(found[2]) == (
        f"outlier: 1 of 6 samples of gemm (forward) on {A100.description}, from a site (as stored)"
    )
    assert found[0].to_dict()["example"] == found[0].example
