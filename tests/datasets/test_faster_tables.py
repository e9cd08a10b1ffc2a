"""datasets/tables.py: of several kernels on one chip the fastest counts, product by product."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernelcast.datasets import tables
from kernelcast.datasets.tables import Tables


def test_faster_products_of_other_tables_take_the_place_of_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ROOT", tmp_path)

    def table(name: str, latencies_ms: dict[int, float], dtype: str = "nvfp4") -> str:
        path = tmp_path / "aiconfigurator" / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        rows = [
            {
                "framework": name, "version": "1.0", "device": "NVIDIA B200", "op_name": "gemm",
                "kernel_source": "torch_flow", "gemm_dtype": dtype, "m": m, "n": 4096, "k": 4096, "latency": latency,
            }
            for m, latency in latencies_ms.items()
        ]  # fmt: skip
        pq.write_table(pa.Table.from_pylist(rows), path)
        return f"aiconfigurator/{name}.parquet"

    read = Tables(
        paths=(table("own", {1024: 1.0, 2048: 2.0, 4096: 4.0}),),
        dtype="float4_e2m1fn_x2",
        faster=(
            table("one", {1024: 0.75, 2048: 3.0, 8192: 1.0}),
            table("two", {1024: 0.5, 2048: 2.5}),
            table("eight", {1024: 0.25}, dtype="fp8"),
        ),
    ).read()
    times_us = {one.vector[0]: one.time_us for batch in read.runs for one in batch.samples}
    assert times_us == {1024: 500.0, 2048: 2000.0, 4096: 4000.0}
