"""A site's routine: a Slurm array that measures what a database lacks, publishes it, and compares sites."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import UsageError

_SCRIPT = """\
#!/bin/bash
# Measures what {database} lacks, publishes it in {folder}, and compares it with other sites. Points that the database
# has for this hardware and software are skipped; a new driver is other software, for which all points are measured.
# Look first at what would be published:
#   {dry_run}
# Once, and the same for other sites: kernelcast commons add {folder} --name ours
# By hand: sbatch {name}. Every Sunday, as a line of crontab -e where jobs are submitted:
#   {cron}
#SBATCH --job-name=kernelcast-routine
#SBATCH --nodes=1 --ntasks=1 --exclusive{gpus}
#SBATCH --time=04:00:00
#SBATCH --array=0-{last}%1 --output=kernelcast-routine-%a.log
# %1: one task at a time, since all write one database. What runs out of time is continued the next time.
set -euo pipefail
export PATH={path}:"$PATH"
case $SLURM_ARRAY_TASK_ID in
{tasks}
esac
{publish}
# Rows of others go into {sites}: in {database} their points would count as measured.
# A source that cannot be reached does not stop the comparison.
kernelcast commons pull --into {sites} || true
[ ! -e {sites} ] || kernelcast commons report {sites} --html {page}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routine:
    """What a site measures and publishes again and again, with printable names; `gpus_per_node` is 0 without GPUs."""

    database: Path
    folder: Path
    plan: str = "quick"
    dtypes: Sequence[str] = ("float32",)
    gpus_per_node: int = 0
    key: Path | None = None
    site: str = ""
    name: str = "routine.sbatch"

    def __post_init__(self) -> None:
        for text in (self.database, self.folder, self.plan, self.key or "", self.site, self.name):
            if not str(text).isprintable():  # a comment would end at a line break
                raise UsageError(f"{str(text)!r:.80} has characters that are not printable, expected none")

    @property
    def tasks(self) -> list[list[str]]:
        """Commands that measure, one per task of the array."""
        device = "cuda" if self.gpus_per_node else "cpu"
        kinds = [["compute"]]
        if self.gpus_per_node > 1:
            kinds.append(["comm", "--procs", str(self.gpus_per_node)])
        common = ["--plan", self.plan, "--device", device, "--db", str(self.database), "--quiet"]
        return [
            ["kernelcast", "collect", *kind, "--dtype", dtype, *common]
            for kind in kinds
            for dtype in self.dtypes
        ]

    @property
    def cron(self) -> str:
        return f"17 3 * * 0 cd {shlex.quote(str(Path.cwd()))} && sbatch {shlex.quote(self.name)}"

    @property
    def script(self) -> str:
        """The batch script; paths are as they were given."""
        publish = ["kernelcast", "commons", "publish", str(self.database), str(self.folder)]
        publish += ["--site", self.site] if self.site else []
        command = shutil.which("kernelcast", path=str(Path(sys.executable).parent)) or sys.executable
        return _SCRIPT.format(
            database=shlex.quote(str(self.database)),
            folder=shlex.quote(str(self.folder)),
            sites=shlex.quote(str(self.database.with_name("sites.db"))),
            page=shlex.quote(str(self.database.with_name("sites.html"))),
            dry_run=shlex.join([*publish, "--dry-run"]),
            publish=shlex.join([*publish, *(["--key", str(self.key)] if self.key else [])]),
            cron=self.cron.replace("%", r"\%"),
            name=shlex.quote(self.name),
            gpus=f" --gpus-per-node={self.gpus_per_node}" if self.gpus_per_node else "",
            last=len(self.tasks) - 1,
            path=shlex.quote(str(Path(command).parent)),
            tasks="\n".join(f"  {i}) {shlex.join(task)} ;;" for i, task in enumerate(self.tasks)),
        )
