"""A queuejob hook of OpenPBS, which sets the predicted walltime of jobs without a walltime.

The interface is pbs_module(7B) and pbs_hook_attributes(7B) of OpenPBS. docs/openpbs.md describes the installation. PBS
rejects a job when its hook raises an exception or exceeds its alarm (by default 30 s): this hook does neither. It runs
as root on the server, in the Python of PBS: it opens no files of users, and runs the command as a separate process.
"""

import os
import re
import signal
import subprocess

import pbs

COMMAND = ["/usr/local/bin/kernelcast", "walltime"]
TIMEOUT_S = 5.0  # less than the hook's alarm

VARIABLE = "KERNELCAST"
_LIMIT = re.compile(rb"(?:([0-9]{1,5})-)?([0-9]{2}):([0-9]{2}):([0-9]{2})\n")
_SHOWN_LINES, _SHOWN_CHARACTERS = 5, 400


def fill(job):
    """Set the walltime of a job with the variable KERNELCAST; returns lines for the server's log."""
    given = [name for name in ("walltime", "min_walltime") if job.Resource_List[name] is not None]
    variables = job.Variable_List or {}
    described = str(variables[VARIABLE]).strip() if VARIABLE in variables else ""
    # For qsub, values with commas are quoted again: qsub -v "KERNELCAST='layer_counts=3,1 …'"
    if described[:1] in ("'", '"') and described[-1:] == described[:1]:
        described = described[1:-1].strip()
    if given or not described or described == "off":
        return []
    words = ["--slurm", f"gpus={gpus(job)}"] if gpus(job) else []
    seconds, lines = ask([*words, "--untrusted", "--", "-"], "#KERNELCAST " + described)
    if seconds:
        job.Resource_List["walltime"] = pbs.duration(seconds)
        return lines
    return [*lines, "queued without a predicted walltime"]


def gpus(job):
    """GPUs of `-l select=2:ngpus=4+1:ncpus=8` or `-l ngpus=4`; 0 if not stated."""
    select = job.Resource_List["select"]
    if select is None:
        return int(job.Resource_List["ngpus"] or 0)
    found = 0
    for chunk in str(select).split("+"):
        per_chunk = re.search(r":ngpus=([0-9]{1,6})(?=:|$)", ":" + chunk)
        times = re.match(r"([0-9]{1,6})(?=:|$)", chunk)
        found += (int(times.group(1)) if times else 1) * (int(per_chunk.group(1)) if per_chunk else 0)
    return found


def ask(words, script):
    """Predicted seconds, or 0 without an answer; and lines for the log."""
    command = [*COMMAND, "--format", "slurm", *words]
    pipe = subprocess.PIPE
    # A new session, so that its child processes can be stopped with it.
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/", start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(script.encode("utf-8", "replace"), timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return 0, [f"no answer within {TIMEOUT_S:g} s"]
    lines = err.decode("utf-8", "replace").splitlines()
    seconds = 0 if process.returncode else seconds_of(out)
    return seconds, lines if seconds or lines else ["no answer"]


def seconds_of(answer):
    """Seconds of `HH:MM:SS` or `D-HH:MM:SS`; 0 for any other answer."""
    found = _LIMIT.fullmatch(answer)
    if not found:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def tell(lines):
    """Write to the server's log."""
    for line in lines[:_SHOWN_LINES]:
        line = re.sub(r"^kernelcast: ", "", line)[:_SHOWN_CHARACTERS]
        shown = "".join(character if character.isprintable() else "?" for character in line)
        pbs.logmsg(pbs.LOG_WARNING, "kernelcast: " + shown)


try:
    tell(fill(pbs.event().job))
except Exception as error:
    tell([f"queued without a predicted walltime: {error}"])
