"""`kernelcast search --dask`: the same answer over a cluster, and how it fails."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributed import LocalCluster

from kernelcast.runtime import DataError, UsageError
from tests.cli.searching import arguments, document, run, small_model

pytestmark = pytest.mark.usefixtures("wide")

Make = Callable[..., Path]


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """A model of 6 layers."""
    return small_model(tmp_path)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two worker processes on this machine."""
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=":0",  # off, but the scheduler has its other pages somewhere
        scheduler_kwargs={"dashboard": False},
        silence_logs=50,
    ) as found:
        yield found


def test_a_cluster_answers_the_same_in_the_same_order(
    cluster: LocalCluster, bundle: Path, model_file: Path
) -> None:
    for more in (["--top", "50"], ["--timeline", "closed-form", "--gpu-memory", "72MB"]):
        here = document(bundle, model_file, *more)
        there = document(bundle, model_file, *more, "--dask", cluster.scheduler_address)
        for values in (here, there):
            # Every part has its own best so far, and so spares other simulations.
            assert values["evaluated"] == values["simulated"] + values["pruned"] or not values["simulated"]
            for name in ("seconds", "simulated", "pruned"):
                del values[name]
        assert here == there


def test_workers_need_no_file(cluster: LocalCluster, bundle: Path, model_file: Path) -> None:
    # They work in folders of their own: a path relative to this one means nothing there.
    result = subprocess.run(
        [sys.executable, "-m", "kernelcast.cli.main", "search",
         *arguments(Path(bundle.name), Path(model_file.name), "--dask", cluster.scheduler_address)],
        cwd=bundle.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("step ")


def test_an_address_where_nobody_answers(
    bundle: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelcast.cli.search_dask.CONNECT_S", 0.5)
    result = run(bundle, model_file, "--dask", "tcp://127.0.0.1:9")
    assert isinstance(result.exception, DataError)
    assert str(result.exception).startswith("dask scheduler tcp://127.0.0.1:9: does not answer within 0 s (")


def test_dask_is_not_installed(bundle: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kernelcast.cli.search_dask", raising=False)
    monkeypatch.setitem(sys.modules, "distributed", None)
    result = run(bundle, model_file, "--dask", "tcp://127.0.0.1:9")
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == (
        "--dask needs the package distributed, which is not installed; expected: pip install 'kernelcast[dask]'"
    )
