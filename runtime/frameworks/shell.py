"""Settings as command-line flags, as they stand in a shell script that starts a training run."""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise, takewhile
from math import prod

from kernelcast.runtime.errors import DataError, one_line
from kernelcast.runtime.frameworks.rows import Settings
from kernelcast.runtime.frameworks.slurm import script_variables

PROGRAM = "pretrain_gpt.py"
LAUNCHER = ("--nnodes", "--nproc-per-node")
"""Flags of torchrun, which stand before the program."""
WORLD_SIZE = "WORLD_SIZE"
"""A variable that is kept under its name."""

_COMMENT = re.compile(r"(^|[ \t])#.*$", re.MULTILINE)
_CONTINUED = re.compile(r"\\\r?\n")
_ASSIGNMENT = re.compile(
    r"^[ \t]*(?:export[ \t]+)?(\w+)=([\"']?)([^\s\"'();|$]{0,200})\2(?=\s|;|$)", re.MULTILINE
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^{}$]{0,200}))?\}|(\w+))")
_ARITHMETIC = re.compile(r"\$\(\(([\w\s*]{1,200})\)\)")
_FLAG = re.compile(r"--[A-Za-z]")
_HOLDS_FLAGS = re.compile(r"\w+=\s*(?=--[A-Za-z])(?=.*\s)", re.DOTALL)
_PUNCTUATION = "();|&"
_LAUNCH = re.compile(r"\btorchrun\b.*|\btorch\.distributed\.(?:run|launch)\b.*")
_LAUNCHED = re.compile(r"--(nnodes|nproc[-_]per[-_]node)[ \t=]+[\"']?([^\s\"']+)")
_MOST_STEPS = 16
"""Variables that stand for variables."""


_MODEL_ARGS = re.compile(r"^MODEL_ARGS:", re.MULTILINE)
_YAML_FLAG = re.compile(r"^\s*[\"']?(--[\w-]+)[\"']?:[ \t]*(.*?)[ \t]*$", re.MULTILINE)


def yaml_flags(text: str) -> str:
    """The flags of MODEL_ARGS in Megatron-LM's model_config.yaml as they stand on a command line."""

    def flag(name: str, value: str) -> str:
        value = value.strip("\"'")
        if value.startswith("["):
            return " ".join([name, *re.split(r"[\s,]+", value.strip("[]"))])
        if value.lower() in ("true", "false"):
            return name if value.lower() == "true" else ""
        return f"{name} {shlex.quote(value)}"

    return " ".join(flag(*one) for one in _YAML_FLAG.findall(text))


def parse_shell(text: str, switches: Collection[str] = (), lists: Collection[str] = ()) -> Settings:
    """Flags of a script, a command line or MODEL_ARGS of a model_config.yaml; the last of several wins. `switches` have
    no value, `lists` several. Variables stand for what the script or its `#SBATCH` lines say. DataError where quotes do
    not match.
    """
    if _MODEL_ARGS.search(text):
        text = yaml_flags(text)
    variables = script_variables(text)
    text = _substituted(_CONTINUED.sub(" ", _COMMENT.sub(r"\1", text)), variables)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_PUNCTUATION)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = [part for word in lexer for part in _held(word)]
    except ValueError as error:
        raise DataError(f"not a shell script ({one_line(str(error))})") from error
    known = variables | _assigned(text)
    of_job = {WORLD_SIZE: known[WORLD_SIZE]} if WORLD_SIZE in known else {}
    return of_job | dict(_flags(words, switches, lists))


def launcher_flags(text: str) -> Settings:
    """Nodes and processes per node of the text's torchrun: numbers, or what it says instead, `$NODES` or `1:4`."""
    text = _substituted(_CONTINUED.sub(" ", _COMMENT.sub(r"\1", text)), script_variables(text))
    found = _LAUNCH.search(text)
    return (
        {}
        if found is None
        else {f"--{name.replace('_', '-')}": value for name, value in _LAUNCHED.findall(found[0])}
    )


def _held(word: str) -> list[str]:
    """The flags that a quoted variable holds, `ARGS="--seq-length 4096 --swiglu"`; another word as it is."""
    flags = _HOLDS_FLAGS.match(word)
    return [word] if flags is None else shlex.split(word[flags.end() :])


def _assigned(text: str) -> dict[str, str]:
    return {name: value for name, _, value in _ASSIGNMENT.findall(text)}


def _substituted(text: str, given: Mapping[str, str]) -> str:
    """The text with values in place of variables and products, as far as they are known: inner ones first."""
    for _ in range(_MOST_STEPS):
        values = {**given, **_assigned(text)}

        def value(match: re.Match[str], values: dict[str, str] = values) -> str:
            name, default, plain = match.groups()
            return values.get(name or plain, default or match[0])

        def product(match: re.Match[str], values: dict[str, str] = values) -> str:
            factors = [values.get(one.strip(), one.strip()) for one in match[1].split("*")]
            known = all(one.isdecimal() and len(one) < 10 for one in factors)
            return str(prod(map(int, factors))) if known else match[0]

        before, text = text, _ARITHMETIC.sub(product, _VARIABLE.sub(value, text))
        if text == before:
            break
    return text


def _flags(
    words: list[str], switches: Collection[str], lists: Collection[str]
) -> Iterator[tuple[str, str | bool | tuple[str, ...]]]:
    for place, (word, after) in enumerate(pairwise([*words, ""])):
        if not _FLAG.match(word):
            continue
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")  # torchrun takes its flags with either sign
        if name in lists:
            values = takewhile(
                lambda one: not _FLAG.match(one) and one.strip(_PUNCTUATION), words[place + 1 :]
            )
            yield name, (value,) if equals else tuple(values)
        elif equals:
            yield name, value
        else:
            is_value = after and name not in switches and not _FLAG.match(after) and after.strip(_PUNCTUATION)
            yield name, after if is_value else True


def render_shell(settings: Settings) -> str:
    """A command: torchrun with its flags and the program, then one flag per line."""

    def flag(name: str) -> str:
        value = settings[name]
        values = value if isinstance(value, tuple) else (value,)
        return name if value is True else " ".join([name, *(shlex.quote(str(one)) for one in values)])

    launcher = " ".join(["torchrun", *(flag(name) for name in LAUNCHER if name in settings), PROGRAM])
    return " \\\n  ".join([launcher, *(flag(name) for name in settings if name not in LAUNCHER)])
