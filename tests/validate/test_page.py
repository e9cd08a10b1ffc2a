"""docs/validation.md: what the kept results say, and its example of a runs file."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelcast.docs import generate_validation
from kernelcast.runtime import Estimator
from kernelcast.validate.comparison import compare_runs
from kernelcast.validate.runs import RUN_FIELDS, RunsFile

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")


def test_the_page_is_what_the_results_say() -> None:
    assert generate_validation.page() == PAGE, (
        "docs/validation.md is not current: python docs/generate_validation.py"
    )


def test_every_result_says_where_it_comes_from() -> None:
    paths = list((ROOT / "docs" / "validation").glob("*.json"))
    assert paths
    for path in paths:
        kept = json.loads(path.read_text(encoding="utf-8"))
        assert set(kept) == {"date", "command", "version", "machine", "result"}
        assert all(str(kept[name]) in PAGE for name in ("date", "command", "version", "machine"))
        assert kept["result"]["format"] in generate_validation.PLACES
        assert path.stat().st_size < 350_000


def test_a_place_without_a_result_says_so(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("before\n<!-- published -->\nafter\n")
    assert generate_validation.page(tmp_path) == "before\nNo result is kept in docs/validation/ yet.\nafter\n"


def test_the_example_of_a_runs_file_is_read_and_predicted(
    tmp_path: Path, make_bundle: Callable[..., Path]
) -> None:
    example = PAGE.split("```toml\n")[1].split("```")[0]
    path = tmp_path / "example.toml"
    path.write_text(example, encoding="utf-8")
    file = RunsFile.read(path)
    assert [run.label for run in file.runs] == ["my-gpt (2-2-2)", "the night run"]
    first, second = compare_runs(Estimator.load(make_bundle()), file.runs)
    assert first.run.measured_s == 0.713
    assert [one.name for one in second.components() if one.measured_s] == ["MP_Allreduce", "PP_P2P"]


@pytest.mark.parametrize("name", RUN_FIELDS)
def test_every_field_is_explained(name: str) -> None:
    table = PAGE.split("| field | what |")[1]
    assert f"`{name}`" in table
