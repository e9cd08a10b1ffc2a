"""`kernelcast validate published`: what it refuses before the long work; what it prints is tested with the work.

`kernelcast validate plans`: what it prints is what its JSON says. `validate steps` marks what does not fit.
"""

import json
from pathlib import Path

import pytest

from tests.cli.printed import ended, printed

pytestmark = pytest.mark.usefixtures("wide")


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (
            ["none", "--runs", "perlmutter"],
            1,
            "none: no such folder; expected one with operator/ and nccl/ in it",
        ),
        (["none"], 1, "none: no such folder; expected one with operator/ and nccl/ in it"),
        (["empty.toml"], 1, "empty.toml: not a folder; expected one with operator/ and nccl/ in it"),
        (["."], 2, "no measured steps are known for a site of that name, expected one of perlmutter"),
        (["Perlmutter", "--from", "none.kcast"], 1, "none.kcast: no such file"),
        (["Perlmutter", "--runs", "none.toml"], 1, "runs file none.toml: no such file"),
        (["Perlmutter", "--runs", "empty.toml"], 2, "runs file empty.toml: runs is missing"),
    ],
)
def test_what_is_refused_is_one_line(
    arguments: list[str],
    status: int,
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.toml").touch()
    (tmp_path / "Perlmutter").mkdir()
    assert ended("validate", "published", *arguments) == status
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert complaint in line
    assert captured.out == ""


def test_the_group_lists_its_verbs_without_importing_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("validate", "--help") == 0
    assert "published" in capsys.readouterr().out


def test_runs_are_printed_as_they_are_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, "validate", "plans", "--json"))
    text = printed(capsys, "validate", "plans")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for run in found["runs"]:
        of_goodput = run["quantity"] == "goodput"

        def shown(value: float, of_goodput: bool = of_goodput) -> str:
            return f"{100 * value:.1f} %" if of_goodput else f"{value:,.0f} h"

        error = 100 * run["error"]
        bound = "> " if run["at_least"] else ""
        expected = (
            f"{run['name']} {bound}{shown(run['reported'])} {shown(run['predicted'])} "
            f"{' to '.join(map(shown, run['interval']))} {'yes' if run['within'] else 'NO'} "
            f"{error:+.1f} {'points' if of_goodput else '%'} {run['vague']}"
        )
        assert expected in lines
        if (lost_h := run["lost_per_failure_h"]) is not None:
            bound = "< " if run["at_least"] else ""
            assert f"{run['name']} {bound}{lost_h[0]:.2f} h {lost_h[1]:.2f} h" in lines
    means = {
        quantity: [abs(run["error"]) for run in found["runs"] if run["quantity"] == quantity]
        for quantity in ("goodput", "gpu_hours")
    }
    for quantity, errors in means.items():
        assert found[f"{quantity}_error"] == pytest.approx(sum(errors) / len(errors))
    assert found["within"] == sum(run["within"] for run in found["runs"])
    assert lines[-1] == (
        f"mean error: goodput {100 * found['goodput_error']:.1f} points, GPU-hours "
        f"{100 * found['gpu_hours_error']:.1f} %; {found['within']} of {len(found['runs'])} within the interval"
    )


RUNS = """site = "Example"
hardware = "a device"
source = "made up"
licence = "CC0"
[defaults]
gpus_per_node = 8
pp = 1
mp = 1
dp = 1
micro_batch = 1
micro_batches = 2
"""
MODEL = "[models.{}]\nsequence_length = 64\nattention_heads = 8\nlayers = 4\nvocabulary_size = 1000\nhidden_size = {}\n"


def test_steps_that_do_not_fit_are_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, sizes = tmp_path / "runs.toml", {"small": 1024, "large": 65_536}
    runs = "".join(f'[[runs]]\nmodel = "{name}"\nmeasured_s = 0.009\n' for name in sizes)
    file.write_text(RUNS + "".join(MODEL.format(*one) for one in sizes.items()) + runs)
    text = printed(capsys, "validate", "steps", file, "--hardware", "h100-sxm", "--each")
    small, large = (
        next(line for line in text.splitlines() if line.startswith(f"{name} (")) for name in sizes
    )
    assert (" GiB" in small, "(does not fit)" in small, "GiB (does not fit)" in large) == (True, False, True)
