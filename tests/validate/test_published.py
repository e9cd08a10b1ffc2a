"""A site's published steps made again, on a small made-up site; tests/train/test_published.py has the authors' own."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import DataError, Estimator, UsageError, read_bundle
from kernelcast.store import Database
from kernelcast.store.importers import Description, read_estimate_train_time, store_parsed
from kernelcast.train.fit import Trained
from kernelcast.validate import published
from kernelcast.validate.published import SITES, published_runs, validate_published
from kernelcast.validate.runs import RunsFile


@pytest.mark.slow
def test_a_site_is_imported_trained_on_and_its_steps_predicted(
    make_site: Callable[[], Path], tmp_path: Path
) -> None:
    site = make_site()
    runs = RunsFile.read(tmp_path / "runs.toml")
    # What the database holds already is of other hardware or software, and takes no part.
    with Database.open(tmp_path / "kept.db", create=True) as database:
        for other in (
            Description(hardware={"device_name": "another device"}),
            Description(software={"torch": "1.9.0"}),
        ):
            store_parsed(database, read_estimate_train_time([site], described=other))
    told: list[tuple[str, int, int]] = []
    found = validate_published(
        site,
        runs,
        database_path=tmp_path / "kept.db",
        output=tmp_path / "kept.kcast",
        on_import=lambda done, total, what: told.append(("import", done, total)),
        on_train=lambda done, total, what: told.append(("train", done, total)),
        on_imply=lambda done, total, what: told.append(("imply", done, total)),
    )
    assert [run.run.label for run in found.runs] == ["small (2-1-2)", "second"]
    for work in ("import", "train", "imply"):
        done = [(d, t) for name, d, t in told if name == work]
        assert done[-1][0] == done[-1][1] > 5
    with Database.open(tmp_path / "kept.db", read_only=True) as database:
        assert database.row_counts()["sample"] > 300
    bundle = read_bundle(tmp_path / "kept.kcast")
    assert found.trained.digest == bundle.digest
    assert found.taken_over == 0
    first, second = found.runs
    components = {one.name: one for one in first.components()}
    # The regressors that are fitted again and ours follow the same times: what is implied is near ours / (1 + error).
    for name, error in (("Encoder_Fwd", 0.25), ("PP_P2P", -0.5)):
        one = components[name]
        assert one.implied
        assert one.measured_s == pytest.approx(one.predicted_s / (1 + error), rel=0.2)
    assert components["DP_Allreduce"].measured_s is None
    assert [one.name for one in second.components() if one.measured_s] == ["PP_P2P"]
    assert found.mean_abs_published_error is None  # the second has none
    document = json.loads(json.dumps(found.to_dict()))
    assert document["format"] == "kernelcast.published_validation/2"
    assert document["mean_abs_error"] == pytest.approx(sum(abs(run["error"]) for run in document["runs"]) / 2)
    # What was kept serves again, and changes nothing.
    again = validate_published(site, runs, earlier=bundle)
    assert again.taken_over == len(bundle.entries)
    assert again.trained.digest == bundle.digest
    assert again.to_dict()["runs"] == found.to_dict()["runs"]
    # Without the settings of the authors' regressors, nothing is implied; ours do not need them.
    for path in site.glob("*/NVIDIAEXAMPLE-40GB.csv"):
        path.unlink()
    alone = validate_published(site, runs, earlier=bundle).runs[0]
    assert alone.error == first.error
    assert all(one.measured_s is None for one in alone.components())


def test_what_is_trained_on_and_predicted(
    make_site: Callable[[], Path],
    make_bundle: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All but the training, whose bundle answers 10 µs forward, 20 µs backward."""
    asked: dict[str, Any] = {}

    def train(database: Database, output: Path, **options: Any) -> Trained:
        asked.update(options, output=output, samples=database.row_counts()["sample"])
        bundle = read_bundle(make_bundle(dtype="float16"))
        entries = tuple(replace(one, role_errors={"": 0.25}) for one in bundle.manifest.regressors)
        manifest = replace(bundle.manifest, regressors=entries)
        return Trained(path=bundle.path, manifest=manifest, skipped=(), digest=bundle.digest)

    monkeypatch.setattr(published, "train_bundle", train)
    site, told = make_site(), list[tuple[str, int, int]]()
    runs = RunsFile.read(tmp_path / "runs.toml")
    found = validate_published(
        site, runs, seed=7, jobs=3, on_import=lambda done, total, what: told.append(("import", done, total)),
        on_imply=lambda done, total, what: told.append(("imply", done, total)),
    )  # fmt: skip
    assert {name: asked[name] for name in ("statistic", "dtype", "seed", "earlier", "jobs")} == {
        "statistic": "middle_five", "dtype": "", "seed": 7, "earlier": None, "jobs": 3,
    }  # fmt: skip
    assert (asked["output"].name, asked["output"].exists(), asked["samples"] > 300) == (
        "published.kcast",
        False,
        True,
    )
    assert {name for name, _, _ in told} == {"import", "imply"}
    first, second = found.runs
    estimator = Estimator.load(found.trained.path)
    for one in found.runs:
        step_s = estimator.predict(**one.run.asked, timeline="closed-form").step_time_s
        assert one.error == pytest.approx(step_s / one.run.measured_s - 1)
    implied = {one.name for one in first.components() if one.implied}
    assert implied == {"Encoder_Fwd", "PP_P2P", "Stage_Fwd_Max", "Stage_Bwd_Max"}
    assert not any(one.implied for one in second.components())
    errors = [one.error for one in found.runs], [one.simulated_error for one in found.runs]
    means = [sum(map(abs, one)) / 2 for one in errors]
    assert (found.mean_abs_error, found.mean_abs_simulated_error) == pytest.approx(tuple(means))
    alone = replace(found, runs=(first,))
    assert (found.mean_abs_published_error, alone.mean_abs_published_error) == (None, 0.5)
    document = json.loads(json.dumps(found.to_dict()))
    assert document["regressors"] == document["taken_over"] == len(found.trained.manifest.regressors)
    assert (document["site"], document["mean_validation_error"]) == ("Example", 0.25)
    assert document["provenance"]["bundle_digest"] == found.trained.digest
    empty = replace(found, runs=())
    assert (empty.mean_abs_error, empty.mean_abs_simulated_error) == (0.0, 0.0)


def test_the_steps_that_ship_are_those_of_the_paper() -> None:
    assert SITES == ("perlmutter", "vista")
    file = published_runs(Path("Perlmutter"), "")
    assert file.digest == published_runs(Path(), "perlmutter").digest
    assert file.digest == published_runs(Path(), "Perlmutter").digest
    assert [
        (run.label, run.measured_s, run.published_error, run.parallelism.world_size) for run in file.runs
    ] == [
        ("gpt-20b (4-4-8)", 17.35, -0.0882, 128),
        ("gpt-20b (4-8-4)", 42.53, 0.0394, 128),
        ("gpt-20b (8-4-4)", 9.23, -0.0587, 128),
        ("llama-13b (4-8-2)", 48.37, -0.0495, 64),
        ("llemma-7b (4-2-2)", 9.57, 0.0130, 16),
    ]
    for run in file.runs:
        layout = run.parallelism
        assert (layout.recompute, layout.schedule, layout.zero) == ("full", "1f1b", 1)
        assert run.cluster is not None
        assert run.cluster.gpus_per_node == 4
        assert run.published_components is not None
        assert len(run.published_components) == 9


def test_the_second_site_ran_the_same_on_one_device_a_node() -> None:
    first, second = (published_runs(Path(), name).runs for name in SITES)
    for one, other in zip(first, second, strict=True):
        assert one.label == other.label
        assert one.parallelism == other.parallelism
        assert other.cluster is not None
        assert other.cluster.gpus_per_node == 1
    assert [run.measured_s for run in second] == [7.13, 7.48, 6.39, 6.76, 5.04]
    assert [run.published_error for run in second] == [-0.0915, -0.1516, -0.0841, -0.0902, -0.0518]


def test_a_site_whose_steps_are_not_known_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"no measured steps are known for .* expected one of perlmutter, vista, or --runs"
    ):
        published_runs(tmp_path, "")
    with pytest.raises(DataError, match="no such file, expected measured steps"):
        published_runs(tmp_path, str(tmp_path / "none.toml"))
    with pytest.raises(DataError, match="holds no operator/"):
        validate_published(tmp_path, published_runs(tmp_path, "perlmutter"))
    (tmp_path / "file").touch()
    for name, found in (("file", "not a folder"), ("nothing", "no such folder")):
        with pytest.raises(DataError, match=f"{name}: {found}; expected one with operator/ and nccl/ in it"):
            published_runs(tmp_path / name, "")
