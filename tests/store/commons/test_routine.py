"""The script of a site's routine: a task per element type and kind of work, and names that stay names."""

import shlex
from pathlib import Path

import pytest

from kernelcast.runtime.errors import UsageError
from kernelcast.store.commons.routine import Routine

TYPES = ("bfloat16", "float32")


@pytest.mark.parametrize(
    ("gpus", "kinds", "device"),
    [
        (0, [["compute"]], "cpu"),
        (1, [["compute"]], "cuda"),
        (2, [["compute"], ["comm", "--procs", "2"]], "cuda"),
        (8, [["compute"], ["comm", "--procs", "8"]], "cuda"),
    ],
)
def test_a_task_for_each_type_and_kind(gpus: int, kinds: list[list[str]], device: str) -> None:
    routine = Routine(
        database=Path("our db"), folder=Path("pub"), dtypes=TYPES, gpus_per_node=gpus, plan="full"
    )
    common = ["--plan", "full", "--device", device, "--db", "our db", "--quiet"]
    assert routine.tasks == [
        ["kernelcast", "collect", *kind, "--dtype", dtype, *common] for kind in kinds for dtype in TYPES
    ]
    lines = routine.script.splitlines()
    assert f"#SBATCH --array=0-{len(routine.tasks) - 1}%1 --output=kernelcast-routine-%a.log" in lines
    assert (f"--gpus-per-node={gpus}" in routine.script) is (gpus > 0)
    commands = [line.strip().partition(") ")[2].removesuffix(" ;;") for line in lines if line.endswith(" ;;")]
    assert list(map(shlex.split, commands)) == routine.tasks
    assert "kernelcast commons pull --into sites.db || true" in lines


def test_names_of_a_site_stay_names() -> None:
    routine = Routine(
        database=Path("a.db"), folder=Path("x y"), site="It's A", key=Path("k;rm"), name="r s.sbatch"
    )
    publish = "kernelcast commons publish a.db 'x y' --site 'It'\"'\"'s A'"
    lines = routine.script.splitlines()
    assert f"#   {publish} --dry-run" in lines
    assert f"{publish} --key 'k;rm'" in lines
    assert routine.cron.endswith("&& sbatch 'r s.sbatch'")
    assert routine.cron.startswith("17 3 * * 0 cd ")
    with pytest.raises(UsageError, match="has characters that are not printable, expected none"):
        Routine(database=Path("a\nb"), folder=Path("x"))
