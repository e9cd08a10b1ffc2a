"""bsub's side of the esub interface: a file of options in, a file of changes out, as esub(8) documents it."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ESUB = Path(__file__).parents[3] / "integrations" / "lsf" / "esub.kernelcast"
PATIENCE_S = 600


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """What the esub did: options that it changed, and what it said to the user."""

    status: int
    changes: str
    out: str
    said: str

    @property
    def limit_s(self) -> int | None:
        """The job's run limit, in seconds."""
        found = re.fullmatch(r"LSB_SUB_RLIMIT_RUN=(\d+)\n", self.changes)
        assert found or not self.changes
        return int(found[1]) if found else None


def quoted(value: str) -> str:
    """A text as LSF writes it: in double quotes, each of its own with a backslash."""
    return '"' + value.replace('"', '\\"') + '"'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where bsub is called."""
    path = tmp_path / "submit"
    path.mkdir()
    return path


@pytest.fixture
def bsub(tmp_path: Path, folder: Path) -> Callable[..., Submitted]:
    """Submits a command: writes the options, runs the esub, reads the changes."""

    def run(
        line: str | None,
        *,
        command: Path,
        options: Mapping[str, str] | None = None,
        timeout: float = 300,
        **environment: str,
    ) -> Submitted:
        esub = tmp_path / "serverdir" / "esub.kernelcast"
        esub.parent.mkdir(exist_ok=True)
        source = ESUB.read_text()
        assert source.startswith("#!/usr/bin/env python3\n")
        for there, here in (
            ('COMMAND = ["kernelcast", "walltime"]', f'COMMAND = ["{command}", "walltime"]'),
            ("TIMEOUT_S = 10.0", f"TIMEOUT_S = {timeout}"),
            ("#!/usr/bin/env python3", f"#!{sys.executable}"),
        ):
            assert source.count(there) == 1
            source = source.replace(there, here)
        esub.write_text(source)
        esub.chmod(0o755)
        parameters, modified = tmp_path / "lsbsubparm", tmp_path / "lsbsubdelta"
        written = {"LSB_SUB_QUEUE": quoted("normal"), **(options or {})}
        if line is not None:
            written["LSB_SUB_COMMAND_LINE"] = f'"{line}"'
        written["LSB_SUB_NUM_PROCESSORS"] = "4"
        parameters.write_bytes(
            "".join(f"{name}={value}\n" for name, value in written.items()).encode(errors="surrogateescape")
        )
        modified.unlink(missing_ok=True)
        done = subprocess.run(
            [esub],
            cwd=folder,
            env=os.environ
            | {
                "LSB_SUB_PARM_FILE": str(parameters),
                "LSB_SUB_MODIFY_FILE": str(modified),
                "LSB_SUB_ABORT_VALUE": "97",
                "LSF_INVOKE_CMD": "bsub",
            }
            | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Submitted(
            status=done.returncode,
            changes=modified.read_text() if modified.exists() else "",
            out=done.stdout.decode(),
            said=done.stderr.decode(),
        )

    return run
