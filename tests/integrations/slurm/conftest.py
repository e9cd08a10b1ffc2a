"""A real Slurm of one node on 127.0.0.1, configured by the lines that docs/deploy.md shows, in a temporary folder."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

ROOT = Path(__file__).parent.parent.parent.parent
SCRIPTS = ROOT / "integrations" / "slurm"
NEEDED = ("slurmctld", "slurmd", "sbatch", "srun", "salloc", "scontrol", "munged", "setpriv")

DEFAULT_LIMIT = "01:00:00"
"""The partition's, in docs/deploy.md."""

GPUS = 4
PATIENCE_S = 600
ANSWER_S = 30
"""A slow and busy machine starts a Python in less; commands that hang are waited for as long."""

# What a call of the predictor was; the test's own one, or one that misbehaves, follows.
_RECORD = '#!/bin/sh\nprintf "%s\\n" "$*" >> {calls}\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What a submission printed, and the job's number where there was one."""

    status: int
    out: str
    said: str

    @property
    def client(self) -> list[str]:
        """What cli_filter.lua said."""
        return re.findall(r"^\w+: lua: kernelcast: (.*)$", self.said, re.MULTILINE)

    @property
    def server(self) -> list[str]:
        """What job_submit.lua said."""
        return re.findall(r"^\w+: kernelcast: (.*)$", self.said, re.MULTILINE)

    @property
    def job(self) -> str:
        """The number of the job."""
        found = re.search(r"Submitted batch job (\d+)", self.out)
        assert found is not None, f"no job was submitted: {self}"
        return found[1]


@dataclass(kw_only=True)
class Slurm:
    """A running Slurm. `folder` holds all of it; `etc` is its /etc/slurm, `server_etc` one without cli_filter.

    `nodes` are names of nodes that all are this host, each with a slurmd of its own; empty for the host itself.
    """

    folder: Path
    nodes: tuple[str, ...] = ()
    daemons: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    @property
    def etc(self) -> Path:
        """Its configuration, whose clients ask for time limits."""
        return self.folder / "etc"

    @property
    def server_etc(self) -> Path:
        """The same configuration without cli_filter: only slurmctld asks."""
        return self.folder / "etc-server"

    def run(self, *command: str, cwd: Path | None = None, conf: Path | None = None, **more: str) -> Submitted:
        """Run one of Slurm's commands; `more` are variables of its environment. It never waits for ever."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))
        }
        environment |= {"SLURM_CONF": str((conf or self.etc) / "slurm.conf"), **more}
        done = subprocess.run(
            command,
            cwd=cwd or self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Submitted(
            status=done.returncode,
            out=done.stdout.decode("utf-8", "replace"),
            said=done.stderr.decode("utf-8", "replace"),
        )

    def show(self, job: str) -> dict[str, str]:
        """What `scontrol show job` says, by name."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job)
        assert shown.status == 0, shown
        return dict(re.findall(r"(\w+)=(\S*)", shown.out))

    def limit(self, job: str) -> str:
        """The job's time limit."""
        return self.show(job)["TimeLimit"]

    def ended(self, job: str) -> dict[str, str]:
        """Wait until the job is over; what is shown of it then."""
        return self._until(
            lambda: self.show(job),
            lambda shown: shown["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"),
        )

    def predictor(self, side: str, program: str) -> None:
        """Say what runs as the kernelcast of a side, "client" or "server": a shell program, given its arguments."""
        path = self.folder / "bin" / side
        partial = path.with_suffix(".partial")
        partial.write_text(_RECORD.format(calls=self.folder / f"{side}.calls") + program)
        partial.chmod(0o755)
        partial.replace(path)

    def calls(self, side: str) -> list[str]:
        """The arguments of every call of a side's predictor."""
        path = self.folder / f"{side}.calls"
        return path.read_text(errors="replace").splitlines() if path.exists() else []

    def forget_calls(self) -> None:
        """Reset the count of calls."""
        for side in ("client", "server"):
            (self.folder / f"{side}.calls").unlink(missing_ok=True)

    def listening(self) -> set[str]:
        """Addresses at which its daemons wait for connections, as the kernel lists them (hexadecimal)."""
        own = set()
        for daemon in self.daemons:
            for descriptor in Path(f"/proc/{daemon.pid}/fd").iterdir():
                own |= set(re.findall(r"^socket:\[(\d+)\]$", os.readlink(descriptor)))
        tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
        rows = [line.split() for table in tables for line in table]
        return {row[1].partition(":")[0] for row in rows if row[9] in own and row[3] == "0A"}

    def start(self) -> None:
        """Start munged, slurmctld and slurmd, and wait until the node takes jobs."""
        munge = self.folder / "munge"
        own = [
            f"--{name}={munge / name}" for name in ("key-file", "socket", "pid-file", "log-file", "seed-file")
        ]
        self._daemon("munged", "--foreground", "--force", *own)
        self._until(lambda: (munge / "socket").exists(), bool)
        self._daemon("slurmctld", "-D", "-f", str(self.etc / "slurm.conf"))
        for name in self.nodes or ("",):
            chosen = ("-N", name) if name else ()
            self._daemon("slurmd", "-D", "-f", str(self.etc / "slurm.conf"), *chosen)
        self._until(
            lambda: self.run("sinfo", "--noheader", "--format=%T").out.strip(), lambda state: state == "idle"
        )

    def stop(self) -> None:
        """Cancel what runs and stop the daemons that `start` started, by their process ids."""
        if len(self.daemons) == 2 + max(1, len(self.nodes)) and all(
            daemon.poll() is None for daemon in self.daemons
        ):
            self.run("scancel", "--user=root")
            self._until(lambda: self.run("squeue", "--noheader").out, lambda listed: not listed, must=False)
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(timeout=60)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _daemon(self, *command: str) -> None:
        log = self.folder / "log" / f"{command[0]}-{len(self.daemons)}.out"
        with log.open("wb") as out:
            # They end with this process, however that ends.
            self.daemons.append(
                subprocess.Popen(
                    ["setpriv", "--pdeathsig", "TERM", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                )
            )

    def _until(self, look: Callable[[], T], good: Callable[[T], bool], *, must: bool = True) -> T:
        end = time.monotonic() + PATIENCE_S
        while not good(found := look()):
            dead = [daemon.args for daemon in self.daemons if daemon.poll() is not None]
            if dead or time.monotonic() > end:
                assert not must, f"waited for Slurm, found {found!r}; ended: {dead}\n{self.logs()}"
                break
            time.sleep(0.1)
        return found

    def logs(self) -> str:
        """The ends of all logs."""
        parts = []
        for log in sorted((self.folder / "log").iterdir()):
            lines = log.read_text(errors="replace").splitlines()[-15:]
            parts.append("\n".join([f"== {log.name}", *lines]))
        return "\n".join(parts)


def shown_blocks() -> list[str]:
    """The shell blocks of docs/deploy.md, in order."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    return re.findall(r"^```bash\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _shell(folder: Path, block: str) -> None:
    """Run a block of the page with its folders moved into `folder`."""
    moved = block
    for there, here in (
        ("/etc/slurm/", f"{folder}/etc/"),
        ("/var/lib/slurm/", f"{folder}/state/"),
        ("/var/log/slurm/", f"{folder}/log/"),
        ("/run/", f"{folder}/run/"),
    ):
        moved = moved.replace(there, here)
    done = subprocess.run(["bash", "-euc", moved], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done


def _configure(folder: Path) -> None:
    folder.chmod(0o755)
    for name in ("munge", "etc", "state/slurmctld", "state/slurmd", "log", "run", "bin", "jobs", "gpus"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge" / "key-file"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    blocks = shown_blocks()
    conf = next(block for block in blocks if "> /etc/slurm/slurm.conf" in block)
    install = next(block for block in blocks if "cli_filter.lua" in block and "install" in block)
    server = next(block for block in blocks if "job_submit.lua" in block and "install" in block)
    for block in (conf, install, server):
        _shell(folder, block)
    control, node = _free_ports(2)
    text = (folder / "etc" / "slurm.conf").read_text()
    assert "JobSubmitPlugins=lua" in text
    for index in range(GPUS):
        (folder / "gpus" / f"gpu{index}").touch()
    # The Python that runs the tests may lie where only root can read.
    text = text.replace("SlurmUser=slurm", "SlurmUser=root")
    text = text.replace(" State=UNKNOWN", f" Gres=gpu:{GPUS} State=UNKNOWN")
    text += "\n".join(
        (
            f"SlurmctldPort={control}",
            f"SlurmdPort={node}",
            f"AuthInfo=socket={folder}/munge/socket",
            "GresTypes=gpu",
            "MessageTimeout=100",
            # The suite's jobs do nothing: let them not wait for one another.
            "SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0",
            "",
        )
    )
    (folder / "etc" / "slurm.conf").write_text(text)
    (folder / "etc" / "gres.conf").write_text(f"Name=gpu File={folder}/gpus/gpu[0-{GPUS - 1}]\n")
    for side, script in (("client", "cli_filter.lua"), ("server", "job_submit.lua")):
        path = folder / "etc" / script
        lua = path.read_text().replace("/etc/slurm/", f"{folder}/etc/")
        lua = lua.replace('"kernelcast walltime"', f'"{folder}/bin/{side} walltime"')
        lua = re.sub(r"timeout_s = \d+", f"timeout_s = {ANSWER_S}", lua)
        assert f"{folder}/bin/{side}" in lua
        path.write_text(lua)
    shutil.copytree(folder / "etc", folder / "etc-server")
    (folder / "etc-server" / "slurm.conf").write_text(text.replace("CliFilterPlugins=lua", ""))
    (folder / "etc-server" / "cli_filter.lua").unlink()


def _missing() -> Sequence[str]:
    return [name for name in NEEDED if shutil.which(name) is None]


def _multiply(folder: Path, names: Sequence[str]) -> None:
    """Make several nodes of this host's one, which no resolver knows, and leave the predictor out."""
    path = folder / "etc" / "slurm.conf"
    kept = [
        line
        for line in path.read_text().splitlines()
        if not line.startswith(("NodeName=", "SlurmdPort=", "GresTypes=", "CliFilter", "JobSubmit"))
    ]
    text = "\n".join(kept)
    for name in ("state/slurmd", "log/slurmd.log", "run/slurmd.pid"):
        text = text.replace(f"{folder}/{name}\n", f"{folder}/{name}-%n\n")
    for name, port in zip(names, _free_ports(len(names)), strict=True):
        text += f"\nNodeName={name} NodeHostname={socket.gethostname().split('.')[0]} NodeAddr=127.0.0.1 "
        text += f"Port={port} CPUs={os.cpu_count()} State=UNKNOWN"
        (folder / "state" / f"slurmd-{name}").mkdir()
    path.write_text(text + "\n")
    (folder / "etc" / "gres.conf").unlink()


@contextmanager
def _running(*nodes: str) -> Iterator[Slurm]:
    if os.geteuid() != 0 or _missing():
        pytest.skip(
            f"needs root and {', '.join(_missing()) or 'nothing else'} (make test-slurm installs them)"
        )
    # Slurm's own users must get there: not below a folder that only root may enter.
    folder = Path(
        subprocess.check_output(["mktemp", "-d", "/tmp/kernelcast-slurm-XXXXXX"], text=True).strip()
    )
    slurm = Slurm(folder=folder, nodes=nodes)
    try:
        _configure(folder)
        if nodes:
            _multiply(folder, nodes)
        slurm.start()
        yield slurm
    finally:
        slurm.stop()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def running_slurm() -> Iterator[Slurm]:
    """One Slurm for all tests."""
    with _running() as slurm:
        yield slurm


@pytest.fixture(scope="module")
def two_node_slurm() -> Iterator[Slurm]:
    """A Slurm of two nodes, far1 and far2, both this host."""
    with _running("far1", "far2") as slurm:
        yield slurm


@pytest.fixture
def slurm(running_slurm: Slurm, make_bundle: Callable[..., Path], tmp_path: Path) -> Iterator[Slurm]:
    """A Slurm whose clients ask the real kernelcast with a bundle of the test; the predictor of its server fails."""
    site = tmp_path / "site.toml"
    site.write_text(f'bundle = "{make_bundle()}"\n')
    running_slurm.predictor("client", real(site))
    running_slurm.predictor("server", "exit 3\n")
    running_slurm.forget_calls()
    yield running_slurm
    # Jobs that were not awaited, or that could never start, would delay the next test's.
    running_slurm.run("scancel", "--user=root")


def real(site: Path) -> str:
    """A shell program that runs this kernelcast with a site file."""
    return f'KERNELCAST_SITE={site} exec {sys.executable} -m kernelcast.cli.main "$@"\n'


@pytest.fixture(name="real")
def real_fixture() -> Callable[[Path], str]:
    """The function that makes the shell program of a real kernelcast."""
    return real


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a test submits from."""
    path = tmp_path / "submit"
    path.mkdir()
    return path
