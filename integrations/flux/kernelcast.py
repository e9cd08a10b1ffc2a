"""A frobnicator plugin of Flux, which sets the predicted duration of jobs without a duration.

The interface is flux.job.frobnicator.FrobnicatorPlugin of flux-core, configured as in flux-config-ingest(5). The batch
script is in attributes.system.files of the jobspec (RFC 37). docs/flux.md describes the installation. Runs on
Python 3.6 and later.
"""

import base64
import os
import re
import shlex
import signal
import subprocess
import sys

from flux.job.frobnicator import FrobnicatorPlugin

COMMAND = ["kernelcast", "walltime"]
TIMEOUT_S = 5.0  # the longest delay of a submission

_MARK = re.compile(r"^#KERNELCAST(\s|$)", re.MULTILINE)
_OFF = re.compile(r"^#KERNELCAST[ \t]+off[ \t]*$", re.MULTILINE)
_LIMIT = re.compile(rb"(?:([0-9]{1,5})-)?([0-9]{2}):([0-9]{2}):([0-9]{2})\n")
_JOB_FILE = "kernelcast.toml"
_SHOWN_LINES, _SHOWN_CHARACTERS = 5, 400


class Frobnicator(FrobnicatorPlugin):
    """Sets the duration of jobs that describe their training and have no duration."""

    def __init__(self, parser):
        self.command = COMMAND
        self.timeout_s = TIMEOUT_S
        super().__init__(parser)

    def configure(self, args, config):
        """Read `[ingest.frobnicator.kernelcast]` of the broker's configuration: `command` and `timeout`."""
        ours = config.get("ingest", {}).get("frobnicator", {}).get("kernelcast", {})
        self.command = list(ours.get("command", COMMAND))
        self.timeout_s = float(ours.get("timeout", TIMEOUT_S))

    def frob(self, jobspec, userid, urgency, flags):
        """Set the duration of the jobspec; after an error, the job is submitted unchanged."""
        try:
            # A duration of zero is not set, as in Flux's plugin "defaults".
            if not jobspec.duration:
                self._fill(jobspec, userid)
        except Exception as error:
            tell([f"submitted without a predicted time limit: {error}"])

    def _fill(self, jobspec, userid):
        system, described = jobspec.attributes.get("system", {}), fields_of(jobspec.attributes)
        script = script_of(system)
        if (
            described is None
            or _OFF.search(script)
            or system.get("environment", {}).get("KERNELCAST") == "off"
        ):
            return
        # Files are opened only for the owner of this process; in a system instance, users are others.
        folder = system.get("cwd") if userid == os.getuid() else None
        has_job_file = bool(script and folder and os.path.isfile(os.path.join(folder, _JOB_FILE)))
        if not (described or has_job_file or _MARK.search(script)):
            return
        words = [word for option in requested(jobspec.jobspec["resources"]) for word in ("--slurm", option)]
        if folder is None or not os.path.isdir(folder):
            words, folder = [*words, "--untrusted"], "/"
        seconds, lines = self._ask([*words, "--", "-"], with_first_line(script, described), folder)
        if seconds:
            jobspec.duration = float(seconds)
        else:
            lines.append("submitted without a predicted time limit")
        tell(lines)

    def _ask(self, words, script, folder):
        """Predicted seconds, or 0 without an answer; and lines for the log."""
        command = [*self.command, "--format", "slurm", *words]
        pipe = subprocess.PIPE
        # A new session, so that its child processes can be stopped with it.
        with subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=folder, start_new_session=True
        ) as process:
            try:
                out, err = process.communicate(script.encode("utf-8", "replace"), timeout=self.timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return 0, [f"no answer within {self.timeout_s:g} s"]
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


def fields_of(attributes):
    """Fields in attributes.user.kernelcast (`--setattr=user.kernelcast.steps=1000`), as words; None for `off`."""
    ours = attributes.get("user", {}).get("kernelcast", {})
    if not isinstance(ours, dict):
        return None if ours in ("off", False) else [text_of(ours)]
    return [name + "=" + text_of(value) for name, value in ours.items()]


def text_of(value):
    """A JSON value as in a #KERNELCAST line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(text_of, value)) if isinstance(value, list) else str(value)


def script_of(system):
    """The batch script in attributes.system, or an empty text."""
    script = system.get("files", {}).get("script", "")
    if isinstance(script, dict):
        data = script.get("data", "")
        script = (
            base64.b64decode(data).decode("utf-8", "replace") if script.get("encoding") == "base64" else data
        )
    return script if isinstance(script, str) else ""


def with_first_line(script, described):
    """The script with the fields in place of its `#!` line, so that messages name the right lines."""
    if not described:
        return script
    first = "#KERNELCAST " + " ".join(map(shlex.quote, described)) + "\n"
    return first + (script.partition("\n")[2] if script.startswith("#!") else script)


def requested(resources):
    """Nodes and GPUs of a jobspec's resource graph (RFC 14), as options of `kernelcast walltime --slurm`."""
    found = {"node": 0, "gpu": 0}
    unread = [(resource, 1) for resource in resources]
    while unread:
        resource, times = unread.pop()
        count = resource["count"]
        if not isinstance(count, int):
            return []  # a range, from which Flux chooses
        if resource["type"] in found:
            found[resource["type"]] += times * count
        unread += [(inner, times * count) for inner in resource.get("with", [])]
    return [f"{name}s={count}" for name, count in sorted(found.items()) if count]


def tell(lines):
    """Write to the broker's log, which records the standard error of its workers."""
    for line in lines[:_SHOWN_LINES]:
        line = re.sub(r"^kernelcast: ", "", line)[:_SHOWN_CHARACTERS]
        shown = "".join(character if character.isprintable() else "?" for character in line)
        print("kernelcast:", shown, file=sys.stderr, flush=True)
