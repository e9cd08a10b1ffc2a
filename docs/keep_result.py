"""Run a command of kernelcast and keep what it prints in docs/validation/, from which pages are written.

    python docs/keep_result.py NAME COMMAND…      # COMMAND has --json

With the result are kept the day, the machine, the command and the version of kernelcast.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "validation"


def keep(name: str, arguments: Sequence[str]) -> Path:
    """Run a kernelcast command, and keep what it prints (JSON) with where it comes from."""
    command = [sys.executable, "-m", "kernelcast.cli.main", *arguments]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result = json.loads(printed)
    for run in result.get("runs", []):
        run.pop("operators", None)  # thousands of lines, which the page does not show
    for document in (result, result.get("training", {})):
        if "bundle" in document:
            document["bundle"] = Path(document["bundle"]).name
    for operator in result.get("training", {}).get("operators", []):
        for long in ("outliers", "hyperparameters"):
            operator.pop(long, None)
    # Folders of this machine say nothing to a reader.
    shown = [Path(word).name if "/" in word else word for word in arguments]
    kept = {
        "date": datetime.now(UTC).date().isoformat(),
        "command": " ".join(["kernelcast", *shown]),
        "version": version("kernelcast"),
        "machine": _machine(),
        "result": result,
    }
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def _machine() -> str:
    from kernelcast.collector.machine.probe import probe, resolve_device

    return probe(resolve_device("cpu"), threads=1).compute.description


if __name__ == "__main__":
    match sys.argv[1:]:
        case [kept_name, *words] if words:
            print(keep(kept_name, words).relative_to(ROOT))
        case _:
            sys.exit(__doc__)
