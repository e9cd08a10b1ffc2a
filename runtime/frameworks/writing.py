"""Writing a layout: every row of a framework's table writes its settings."""

from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.frameworks.facts import Job
from kernelcast.runtime.frameworks.rows import Settings
from kernelcast.runtime.frameworks.table import FRAMEWORKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Arguments of a framework as text, and what they cannot or not exactly express, in words."""

    title: str
    text: str
    lost: tuple[str, ...]

    @property
    def warning(self) -> str:
        """One line, "" where nothing is lost."""
        return f"not in the arguments of {self.title}: {'; '.join(self.lost)}" if self.lost else ""


def write_layout(name: str, job: Job) -> Written:
    """The arguments of the framework `name` (one of `FRAMEWORKS`) for a job.

    Raises:
        UsageError: the model cannot be cut in this way.
    """
    framework, facts = FRAMEWORKS[name], job.facts()
    parts = [row.write(facts) for row in framework.rows]
    settings: Settings = {key: value for part in parts for key, value in part.settings.items()}
    lost = tuple(text for part in parts for text in part.lost)
    return Written(title=framework.title, text=framework.render(settings), lost=lost)
