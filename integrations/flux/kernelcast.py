"""Flux asks kernelcast for the duration of jobs that were given none: a frobnicator plugin.

The interface is flux.job.frobnicator.FrobnicatorPlugin of flux-core, configured as flux-config-ingest(5) says; a
batch script travels in the jobspec's attributes.system.files (RFC 37). docs/flux.md says how to install it. Works with
Python 3.6 and later, whatever Flux brings.
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
TIMEOUT_S = 5.0  # a job is held up for no longer than this

_MARK = re.compile(r"^#KERNELCAST(\s|$)", re.MULTILINE)
_OFF = re.compile(r"^#KERNELCAST[ \t]+off[ \t]*$", re.MULTILINE)
_LIMIT = re.compile(rb"(?:([0-9]{1,5})-)?([0-9]{2}):([0-9]{2}):([0-9]{2})\n")
_JOB_FILE = "kernelcast.toml"
_SHOWN_LINES, _SHOWN_CHARACTERS = 5, 400


class Frobnicator(FrobnicatorPlugin):
    """Sets the duration of jobs that describe their training and were given none."""

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
        """Set the duration of the jobspec; whatever goes wrong, the job is submitted as it is."""
        try:
            # As Flux's own plugin "defaults" has it: a duration of zero was not set.
            if not jobspec.duration:
                self._fill(jobspec, userid)
        except Exception as error:
            tell([f"submitted without a predicted time limit: {error}"])

    def _fill(self, jobspec, userid):
        system, described = jobspec.attributes.get("system", {}), said(jobspec.attributes)
        script = script_of(system)
        if (
            described is None
            or _OFF.search(script)
            or system.get("environment", {}).get("KERNELCAST") == "off"
        ):
            return
        # Files are opened for the owner of this process only: in a system instance, that is not the user.
        folder = system.get("cwd") if userid == os.getuid() else None
        beside = bool(script and folder and os.path.isfile(os.path.join(folder, _JOB_FILE)))
        if not (described or beside or _MARK.search(script)):
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
        """Seconds, 0 for no answer; and what to say."""
        command = [*self.command, "--format", "slurm", *words]
        pipe = subprocess.PIPE
        # A session of its own, so that whatever it started can be stopped with it.
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
    """Seconds of `HH:MM:SS` or `D-HH:MM:SS`; 0 when the answer is another one."""
    found = _LIMIT.fullmatch(answer)
    if not found:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def said(attributes):
    """Fields in attributes.user.kernelcast (`--setattr=user.kernelcast.steps=1000`), as words; None after `off`."""
    ours = attributes.get("user", {}).get("kernelcast", {})
    if not isinstance(ours, dict):
        return None if ours in ("off", False) else [text_of(ours)]
    return [name + "=" + text_of(value) for name, value in ours.items()]


def text_of(value):
    """A JSON value as it stands in a #KERNELCAST line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(text_of, value)) if isinstance(value, list) else str(value)


def script_of(system):
    """The text of the batch script in attributes.system, or an empty one."""
    script = system.get("files", {}).get("script", "")
    if isinstance(script, dict):
        data = script.get("data", "")
        script = (
            base64.b64decode(data).decode("utf-8", "replace") if script.get("encoding") == "base64" else data
        )
    return script if isinstance(script, str) else ""


def with_first_line(script, described):
    """The script with fields in its first line, instead of `#!`: messages name the lines of the script."""
    if not described:
        return script
    first = "#KERNELCAST " + " ".join(map(shlex.quote, described)) + "\n"
    return first + (script.partition("\n")[2] if script.startswith("#!") else script)


def requested(resources):
    """Nodes and GPUs of a jobspec's resource graph (RFC 14), in the words of `kernelcast walltime --slurm`."""
    found = {"node": 0, "gpu": 0}
    unread = [(resource, 1) for resource in resources]
    while unread:
        resource, times = unread.pop()
        count = resource["count"]
        if not isinstance(count, int):
            return []  # a range: Flux decides
        if resource["type"] in found:
            found[resource["type"]] += times * count
        unread += [(inner, times * count) for inner in resource.get("with", [])]
    return [f"{name}s={count}" for name, count in sorted(found.items()) if count]


def tell(lines):
    """Write to the broker's log, which takes what its workers write to their standard error."""
    for line in lines[:_SHOWN_LINES]:
        line = re.sub(r"^kernelcast: ", "", line)[:_SHOWN_CHARACTERS]
        shown = "".join(character if character.isprintable() else "?" for character in line)
        print("kernelcast:", shown, file=sys.stderr, flush=True)
