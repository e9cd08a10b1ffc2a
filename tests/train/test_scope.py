"""Which measurements make one bundle, and what is said where there are several to choose from."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kernelcast.runtime import DataError, UsageError
from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, Repetition, Run, Sample, Source
from kernelcast.train.scope import Scope

Measure = Callable[..., list[Sample]]
ONCE = Direction.ONCE


def choose(
    database: Database, *, dtype: str = "", hardware: str = "", software: str = "", fabric: str = ""
) -> Scope:
    return Scope.choose(database, dtype=dtype, hardware=hardware, software=software, fabric=fabric)


def test_the_only_one_of_each_kind_needs_no_choice(
    database: Database,
    measure: Measure,
    compute: ComputeFingerprint,
    fabric: FabricFingerprint,
    software: SoftwareFingerprint,
) -> None:
    samples = measure(database, count=2) + measure(database, "point_to_point", ONCE, 2)
    found = choose(database)
    assert (found.compute, found.fabric, found.software) == ((compute,), (fabric,), (software,))
    assert found.dtype == "float32"
    assert {sample.sample_id for sample in found.samples} == {sample.id for sample in samples}
    given = {"hardware": compute.digest, "software": software.digest[:3], "fabric": fabric.digest[:12]}
    assert choose(database, dtype="float32", **given) == found


def test_operators_with_an_element_type_of_their_own_follow_the_others(
    database: Database, measure: Measure
) -> None:
    [sample] = measure(database, count=1)
    cast = replace(
        sample,
        operator="gemm_float8_block",
        direction=Direction.FORWARD,
        dtype="float8_e4m3fn",
        vector=(64, 32, 16),
    )
    database.add_samples([cast, replace(cast, dtype="float8_e5m2")])
    found = choose(database)
    assert found.dtype == "float32"
    assert {one.sample_id for one in found.samples} == {sample.id, cast.id}


def test_traces_of_real_runs_train_only_where_asked_for(
    database: Database, measure: Measure, compute: ComputeFingerprint, software: SoftwareFingerprint
) -> None:
    [sample] = measure(database, count=1)
    run = Run(
        command="ingest",
        compute_id=compute.digest,
        software_id=software.digest,
        source=Source(kind="trace", name="PyTorch profiler", file_digest="f"),
    )
    database.add_run(run, compute, None, software)
    database.add_samples([replace(sample, run_id=run.id)])
    assert {s.sample_id for s in choose(database).samples} == {sample.id}
    filters = {"dtype": "", "hardware": "", "software": "", "fabric": ""}
    assert len(Scope.choose(database, **filters, traces=True).samples) == 2


def test_nothing_but_traces_says_how_to_ask_for_them(
    database: Database, compute: ComputeFingerprint, software: SoftwareFingerprint
) -> None:
    run = Run(
        command="ingest",
        compute_id=compute.digest,
        software_id=software.digest,
        source=Source(kind="trace", name="PyTorch profiler", file_digest="f"),
    )
    database.add_run(run, compute, None, software)
    database.add_samples(
        [
            Sample.from_repetitions(
                run_id=run.id,
                operator="gelu",
                direction=Direction.FORWARD,
                dtype="float32",
                vector=(1, 2, 3),
                repetitions=[Repetition(index=0, time_us=4.0)],
            )
        ]
    )
    with pytest.raises(DataError, match=r"bench\.db: only samples of real runs' traces \(--traces\) in it"):
        choose(database)


def test_what_has_no_time_is_no_choice(
    database: Database, measure: Measure, compute: ComputeFingerprint, software: SoftwareFingerprint
) -> None:
    """Steps, unsupported and failed operators of another device do not make the choice ambiguous."""
    with pytest.raises(
        DataError, match=r"bench\.db: no sample with a time in it, expected some \(kernelcast collect"
    ):
        choose(database)
    other = replace(compute, device_name="Another CPU")
    run = Run(
        kernelcast_version="0.1.0",
        command="collect compute",
        compute_id=other.digest,
        software_id=software.digest,
    )
    database.add_run(run, other, None, software)
    for status in ("failed", "unsupported"):
        without = Sample.without_time(
            run_id=run.id,
            operator="gelu",
            direction=Direction.FORWARD,
            dtype="float16",
            vector=(1, 2, 3),
            status=status,
            reason="out of memory",
        )
        database.add_samples([without])
    with pytest.raises(DataError, match="no sample with a time"):
        choose(database)
    measure(database, count=2)
    assert choose(database).compute == (compute,)
    with pytest.raises(UsageError, match=rf"no hardware with a sample starts with '{other.digest}'; known: "):
        choose(database, hardware=other.digest)


def test_several_of_a_kind_are_listed_with_the_option_that_chooses(
    database: Database,
    measure: Measure,
    compute: ComputeFingerprint,
    fabric: FabricFingerprint,
    software: SoftwareFingerprint,
) -> None:
    newer = replace(software, torch="2.14.0")
    faster = replace(fabric, links=("NVLink",))
    bigger = replace(compute, cores=64)
    measure(database, count=1)
    measure(database, count=2, software=newer)
    measure(database, count=3, software=newer, dtype="bfloat16")
    measure(database, "point_to_point", ONCE, 4, software=newer)
    measure(database, "point_to_point", ONCE, 5, software=newer, fabric=faster)
    measure(database, count=6, compute=bigger)

    with pytest.raises(UsageError) as caught:
        choose(database)
    assert str(caught.value) == (
        f"{database.path}: more than one hardware, choose one with --hardware-id: "
        f"{compute.digest[:12]} (Example CPU, 2 cores, 1 thread(s) per process, 6 samples); "
        f"{bigger.digest[:12]} (Example CPU, 64 cores, 1 thread(s) per process, 6 samples)"
    )
    # What is chosen already narrows the rest down: the bigger device has one software, dtype and no collective.
    assert len(choose(database, hardware=bigger.digest[:8]).samples) == 6
    here = {"hardware": compute.digest}
    with pytest.raises(
        UsageError, match=r"more than one software, choose one with --software-id: .*2\.14\.0.*2\.13\.0"
    ):
        choose(database, **here)
    assert len(choose(database, **here, software=software.digest).samples) == 1
    here["software"] = newer.digest
    with pytest.raises(UsageError, match=r"several dtypes, choose one with --dtype: bfloat16, float32$"):
        choose(database, **here)
    assert len(choose(database, **here, dtype="bfloat16").samples) == 3
    here["dtype"] = "float32"
    with pytest.raises(
        UsageError, match=r"more than one fabric, choose one with --fabric-id: .*NVLink.*5 samples.*4 samp"
    ):
        choose(database, **here)
    found = choose(database, **here, fabric=faster.digest[:6])
    assert found.fabric == (faster,)
    # Compute operators do not depend on the fabric that their run noted.
    assert sorted((s.operator, s.fabric_id) for s in found.samples) == [
        *[("gelu", fabric.digest)] * 2,
        *[("point_to_point", faster.digest)] * 5,
    ]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "hardware",
            r"no hardware with a sample starts with 'zz'; known: [0-9a-f]{12} \(Example CPU, .*, 2 samples\)$",
        ),
        (
            "software",
            r"no software with a sample starts with 'zz'; known: [0-9a-f]{12} \(torch 2\.13\.0, 2 samples\)$",
        ),
        ("fabric", r"no fabric with a sample starts with 'zz'; known: [0-9a-f]{12} \(gloo, .*, 2 samples\)$"),
        ("dtype", r"dtype 'zz' was not measured, found float32$"),
    ],
)
def test_an_unknown_choice_lists_what_there_is(
    database: Database, measure: Measure, option: str, message: str
) -> None:
    measure(database, count=2)
    measure(database, "point_to_point", ONCE, 2)
    with pytest.raises(UsageError, match=message):
        choose(database, **{option: "zz"})


def test_without_collectives_there_is_no_fabric(
    database: Database, measure: Measure, fabric: FabricFingerprint
) -> None:
    measure(database, count=2)
    assert choose(database).fabric == ()
    with pytest.raises(UsageError, match="no collective has a known fabric, expected no --fabric-id"):
        choose(database, fabric=fabric.digest)


def test_collectives_of_an_unknown_fabric_train_only_where_none_is_known(
    database: Database, measure: Measure
) -> None:
    measure(database, "point_to_point", ONCE, 3, fabric=None)
    found = choose(database)
    assert (len(found.samples), found.fabric) == (3, ())
    measure(database, "point_to_point", ONCE, 2)
    assert len(choose(database).samples) == 2


def test_collectives_from_elsewhere_are_taken_when_their_fabric_is_named(
    database: Database,
    measure: Measure,
    compute: ComputeFingerprint,
    fabric: FabricFingerprint,
    software: SoftwareFingerprint,
) -> None:
    measure(database, count=3)
    measure(database, "point_to_point", ONCE, 2)
    elsewhere, nccl = replace(fabric, backend="nccl", gpus_per_node=8), replace(software, nccl="2.27")
    measure(
        database,
        "all_reduce",
        ONCE,
        4,
        compute=replace(compute, device_name="NVIDIA H100"),
        fabric=elsewhere,
        software=nccl,
    )
    # With the same software, on another device.
    beside = replace(fabric, backend="nccl", gpus_per_node=4)
    measure(
        database, "all_gather", ONCE, 3, compute=replace(compute, device_name="NVIDIA H200"), fabric=beside
    )
    assert choose(database).fabric == (fabric,)
    assert sorted(s.operator for s in choose(database).samples) == ["gelu"] * 3 + ["point_to_point"] * 2
    found = choose(database, fabric=elsewhere.digest)
    assert (found.compute, found.fabric) == ((compute,), (elsewhere,))
    assert found.software == (software, nccl)
    assert sorted(s.operator for s in found.samples) == ["all_reduce"] * 4 + ["gelu"] * 3


def test_one_fabric_under_several_sets_of_software_is_refused(
    database: Database, measure: Measure, fabric: FabricFingerprint, software: SoftwareFingerprint
) -> None:
    measure(database, count=3)
    for version in ("2.26", "2.27"):
        measure(database, "point_to_point", ONCE, 2, software=replace(software, nccl=version))
    with pytest.raises(
        UsageError, match=r"sets of software \([0-9a-f]{12}; [0-9a-f]{12}\), expected one; export"
    ):
        choose(database, fabric=fabric.digest)
