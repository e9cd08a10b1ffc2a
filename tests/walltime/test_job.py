"""Where a job's description may stand, what goes before what, and what a stranger's script may not do."""

from pathlib import Path
from typing import Any

import pytest

from kernelcast.runtime import DataError, UsageError
from kernelcast.walltime import Job, find_job, script_job

NOBODY: dict[str, str] = {"KERNELCAST_SITE": ""}


def values(job: Job) -> dict[str, Any]:
    return {name: given.value for name, given in job.settings.given.items()}


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A folder with a script, a job file and a site file that all name the margin; its environment."""
    monkeypatch.chdir(tmp_path)
    Path("job.sh").write_text("#!/bin/sh\n#KERNELCAST margin=2 model=m.toml steps=5\n")
    Path("kernelcast.toml").write_text('margin = 3\nprice = 3\ntokens = 1e6\nbundle = "b.kcast"\n')
    Path("site").mkdir()
    Path("site/site.toml").write_text(
        'margin = 4\nprice = 4\npp = 4\nbundle = "s.kcast"\nmodels = "models"\n'
    )
    return {"KERNELCAST_SITE": "site/site.toml"}


def test_each_place_goes_before_the_next(places: dict[str, str], tmp_path: Path) -> None:
    job = find_job(Path("job.sh"), options={"margin": "1", "pp": None}, environment=places)
    assert values(job) == {
        "margin": 1.0,
        "model": str(tmp_path / "m.toml"),
        "steps": 5,
        "price": 3.0,
        "bundle": str(tmp_path / "b.kcast"),
        "pp": 4,
        "models": str(tmp_path / "site/models"),
    }
    origins = {name: given.origin for name, given in job.settings.given.items()}
    assert origins["margin"] == "--margin"
    assert origins["model"] == "job.sh line 2"
    assert origins["price"] == "job file kernelcast.toml"
    assert origins["pp"] == "site file site/site.toml"


def test_steps_and_tokens_are_one_question(places: dict[str, str]) -> None:
    # The script's steps, not the file's tokens; an option's tokens, not the script's steps.
    job = find_job(Path("job.sh"), options={"tokens": "7"}, environment=places)
    assert (job.settings.value("tokens"), job.settings.value("steps")) == (7, None)
    Path("job.sh").write_text("#KERNELCAST micro_batches=2\n")
    assert "tokens" in find_job(Path("job.sh"), environment=places).settings
    job = find_job(Path("job.sh"), options={"global_batch": "8"}, environment=places)
    assert (job.settings.value("global_batch"), job.settings.value("micro_batches")) == (8, None)
    for pair in (("steps", "tokens"), ("tokens", "samples"), ("micro_batches", "global_batch")):
        with pytest.raises(
            UsageError, match=f"^--{pair[0].replace('_', '-')}, .*{pair[0]} and {pair[1]} are both given"
        ):
            find_job(Path("job.sh"), options=dict.fromkeys(pair, "1"), environment=places)
    Path("kernelcast.toml").write_text("steps = 1\ntokens = 1\n")
    with pytest.raises(
        UsageError, match=r"^job file kernelcast.toml: steps and tokens are both given, expected one"
    ):
        find_job(None, environment=NOBODY)


def test_of_samples_that_give_way_epochs_do_too(places: dict[str, str]) -> None:
    Path("job.sh").write_text("#KERNELCAST samples=9 epochs=3 packing_efficiency=0.5\n")
    for options, epochs in (({"steps": "7"}, None), ({"tokens": "7"}, None), ({"samples": "7"}, 3)):
        settings = find_job(Path("job.sh"), options=options, environment=places).settings
        assert {name: settings.value(name) for name in options} == dict.fromkeys(options, 7)
        assert settings.value("epochs") == epochs
        assert ("packing_efficiency" in settings) == (epochs is not None)


def test_targets(places: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = find_job(None, environment=NOBODY)
    assert values(here)["price"] == 3
    assert values(find_job(tmp_path, environment=NOBODY)) == values(here)
    assert values(find_job(Path("kernelcast.toml"), environment=NOBODY)) == values(here)
    Path("other.toml").write_text("price = 9")
    assert values(find_job(Path("other.toml"), environment=NOBODY)) == {"price": 9.0}
    # From elsewhere, paths are still relative to the file.
    monkeypatch.chdir("/")
    assert values(find_job(tmp_path / "job.sh", environment=NOBODY))["bundle"] == str(tmp_path / "b.kcast")
    monkeypatch.chdir(tmp_path / "site")
    assert values(find_job(None, environment=NOBODY)) == {}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("none.sh", "batch script none.sh: no such file"),
        ("none.toml", "job file none.toml: no such file"),
        ("empty", "job file empty/kernelcast.toml: no such file"),
        ("bad.toml", "job file bad.toml: not TOML ("),
        ("latin.toml", "job file latin.toml: not TOML ("),
        ("big.toml", "job file big.toml: larger than 1048576 bytes"),
        ("deep.toml", "job file deep.toml: not TOML ("),
    ],
)
def test_files_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("bad.toml").write_text("steps = \n")
    Path("latin.toml").write_bytes(b'model = "\xe9"')
    Path("big.toml").write_text("#" * (1 << 20) + "\n")
    Path("deep.toml").write_text("steps = " + "[" * 100_000)
    with pytest.raises(DataError) as raised:
        find_job(Path(target), environment=NOBODY)
    assert str(raised.value).startswith(message)
    assert str(raised.value).isprintable()


def test_a_site_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    missing = tmp_path / "site.toml"
    with pytest.raises(DataError, match=f"^site file {missing}: no such file$"):
        find_job(None, environment={"KERNELCAST_SITE": str(missing)})


def test_slips_in_a_job_file_name_file_and_field(tmp_path: Path) -> None:
    path = tmp_path / "kernelcast.toml"
    for text, message in (
        ("step = 1", "field 'step' is unknown"),
        ("steps = 0", "steps is 0, expected a whole number from 1 to 1e12"),
        ("[steps]\na = 1", "steps is {'a': 1}, expected a whole number"),
        ('models = "m"', "field models is set here, expected only in the site file"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError) as raised:
            find_job(path, environment=NOBODY)
        assert str(raised.value).startswith(f"job file {path}: {message}")


def test_a_script_as_text(places: dict[str, str], tmp_path: Path) -> None:
    text = Path("job.sh").read_text()
    inside = script_job(text, name="stdin", folder=tmp_path, environment=places)
    assert values(inside)["price"] == 3
    assert inside.settings.given["steps"].origin == "stdin line 2"
    strange = script_job("#KERNELCAST steps=5 model=tiny", name="script", folder=None, environment=places)
    assert values(strange)["price"] == 4
    assert values(strange)["model"] == "tiny"


@pytest.mark.parametrize(
    ("field", "allowed"),
    [
        ("bundle=/etc/passwd", "none (the site chooses it)"),
        ("bundle=b", "none (the site chooses it)"),
        ("model=m.toml", "a model's name, not a path"),
        ("model=../../m", "a model's name, not a path"),
    ],
)
def test_a_strangers_script_names_no_files(field: str, allowed: str) -> None:
    with pytest.raises(UsageError) as raised:
        script_job(f"#KERNELCAST {field}", name="script", folder=None, environment=NOBODY)
    assert str(raised.value).startswith("script line 1: ")
    assert str(raised.value).endswith(f"expected {allowed}")
