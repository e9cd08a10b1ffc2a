"""Agreement of made-up sites, and the page: `agreements.txt`, which WRITE_AGREEMENTS=1 pytest THIS_FILE writes.

Factors of sites, scatter and gaps are drawn at random; signers stand for sites.
"""

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from kernelcast.runtime.bundle.fingerprint import ComputeFingerprint, FabricFingerprint, SoftwareFingerprint
from kernelcast.runtime.bundle.signature import Verified
from kernelcast.runtime.hardware.devices import Load
from kernelcast.runtime.operators import Direction
from kernelcast.store import Database, Run, Sample
from kernelcast.store.commons.agreement import agreement
from kernelcast.store.commons.index import About, Index, Part
from kernelcast.store.commons.offers import Offer
from kernelcast.store.commons.report import _MOST_ROWS, report_page
from kernelcast.store.commons.sources import Source
from kernelcast.store.copying import merge_databases
from kernelcast.store.merges import file_digest

TEXT = Path(__file__).with_name("agreements.txt")
COMPUTE = ComputeFingerprint(kind="cpu", device_name="Example CPU", cores=2, threads=1)
FABRIC = FabricFingerprint(backend="gloo", gpus_per_node=2, links=("shared memory",))
SOFTWARE = SoftwareFingerprint(torch="2.13.0")
KEYS = [("gelu", direction, (4, 128)) for direction in (Direction.FORWARD, Direction.BACKWARD)]
KEYS += [("gemm", Direction.FORWARD, (64, 128)), ("all_reduce", Direction.ONCE, (1, 2))]
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def site(path: Path, number: int, generator: np.random.Generator) -> Path:
    """Each operator at some of twelve sizes, some twice, some under load, all times a factor that scatters."""
    run = Run(
        started_at=f"2026-01-0{number + 1}T08:00:00Z", kernelcast_version="0.1.0", command="collect",
        compute_id=COMPUTE.digest, fabric_id=FABRIC.digest, software_id=SOFTWARE.digest,
    )  # fmt: skip
    with Database.open(path, create=True) as database:
        database.add_run(run, COMPUTE, FABRIC, SOFTWARE)
        samples = []
        for operator, direction, (first, second) in KEYS:
            factor, spread = np.exp(generator.normal(0, 0.15)), generator.choice([0.01, 0.1])
            for size in range(1, 13):
                for _ in range(generator.integers(0, 3)):
                    time_us = 10.0 * size * factor * np.exp(spread * generator.standard_normal())
                    vector = (
                        (64 * size, first, second)
                        if direction is Direction.ONCE
                        else (first, second, 64 * size)
                    )
                    load = Load.SUSTAINED if size > 10 else Load.BURST if size > 5 else Load.NOT_STATED
                    samples.append(
                        Sample(
                            run_id=run.id, operator=operator, direction=direction, dtype="float32", vector=vector,
                            time_us=float(time_us), measured_at=run.started_at, load=load, statistic="middle five",
                        )
                    )  # fmt: skip
        database.add_samples(samples)
    return path


def test_whole_agreements(tmp_path: Path) -> None:
    lines, found = [], []
    for count in (2, 3, 4, 6):
        generator = np.random.default_rng(count)
        paths = [site(tmp_path / f"{count}-{number}.db", number, generator) for number in range(count)]
        verified = {
            path: Verified(signer=f"site {number}", key="", bundle_digest=file_digest(path))
            for number, path in enumerate(paths[1:], start=1)
        }
        merge_databases(paths[1:], paths[0], verified=verified)
        found = agreement(paths[0])
        lines.append(f"{count} sites")
        lines += [
            f"  {one}, {one.software}, spread {one.spread:.5g}, outlier {one.is_outlier}" for one in found
        ]
        lines += [f"  ratios {' '.join(f'{one.ratio:.5g}' for one in found)}"]
    part = Part(
        digest="a" * 64, size_bytes=10, database_digest="b" * 64, database_bytes=100, content="ab", rows=1200,
        hardware="c0", software="50", operator="gelu", dtypes=("float32",), last_measured_at="2026-02-27T12:00:00Z",
    )  # fmt: skip
    parts = [
        part,
        *(
            Part.from_dict({**part.to_dict(), "digest": digest * 64, **changes})
            for digest, changes in (
                ("1", {"last_measured_at": "2026-02-28T11:59:00", "rows": 3}),
                ("2", {"operator": "", "last_measured_at": "2027-01-01T00:00:00Z", "rows": 1}),
                ("3", {"operator": "rope", "last_measured_at": "", "hardware": "c1"}),
            )
        ),
    ]
    index = Index(
        published_at="2026-02-28T00:00:00Z", kernelcast_version="1", about=About(site="A", contact="us", licence="CC0"),
        hardware={"c0": "Example CPU", "c1": "NVIDIA H100 80GB HBM3, 80 GB"}, fabric={}, software={"50": "torch 2"},
        parts=tuple(parts), bundles=(),
    )  # fmt: skip
    sources = [Source(name=name, address=f"file:///{name}") for name in ("a", "b")]
    offers = [Offer(source=one, index=index, parts=tuple(parts[:3])) for one in sources]
    offers.append(Offer(source=sources[1], index=index, parts=tuple(parts[3:])))
    listed = [(sources[0], index), (sources[1], None)]
    pages = [report_page(listed, offers, found, "all.db", NOW), report_page([], [], [], "", NOW)]
    pages.append(report_page(listed[:1], offers[:1], [], "all.db", NOW))
    for page in pages:
        text = re.sub(r"<(style|script)\b.*?</\1>|sha256-[\w+/=]*", "", page, flags=re.DOTALL)
        lines += ["*** page ***", *text.replace("><", ">\n<").splitlines()]
    lines += [f"{one}; {one.hardware}; {one.software}" for one in offers]
    for more, said in ((0, False), (1, True)):
        page = report_page(listed, offers, found[:1] * (_MOST_ROWS + more), "all.db", NOW)
        assert (" The 1 closest are left out." in page) == said
    for words in (
        (),
        ("gelu",),
        ("steps",),
        ("h100-sxm",),
        ("h100",),
        ("fp32", "example"),
        ("bf16",),
        ("c1", "rope"),
    ):
        lines.append(f"{words}: {[one.digest[0] for one in index.matching(words)]}")
    lines.append(json.dumps(index.to_dict()))
    printed = re.sub(r"\d+\.\d{5,}", lambda number: f"{float(number[0]):.5g}", "\n".join(lines)) + "\n"
    if "WRITE_AGREEMENTS" in os.environ:
        TEXT.write_text(printed, encoding="utf-8")
    assert printed == TEXT.read_text(encoding="utf-8")
