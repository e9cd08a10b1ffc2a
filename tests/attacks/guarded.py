"""One attack in a child process with limits of time and memory, and the counts of all."""

import resource
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "runtime" / "shipped" / "bundles" / "h200-sxm.kcast"
_MEMORY_BYTES = 3 << 30
_LONGEST_S = 60


@dataclass(kw_only=True)
class Counts:
    """What was tried of one kind, and what got through, each as a line."""

    tried: int = 0
    refused: int = 0
    through: list[str] = field(default_factory=list)


def guarded(what: str, attack: Callable[[], object], counts: Counts) -> None:
    """Run one attack in a child process; a crash, a hang, too much memory and a traceback got through."""
    counts.tried += 1
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(attack, sender))
    child.start()
    child.join(_LONGEST_S)
    if child.is_alive():
        child.kill()
        child.join()
        counts.through.append(f"{what}: takes longer than {_LONGEST_S} s")
        return
    answer = receiver.recv() if receiver.poll() else f"ended with status {child.exitcode}"
    if answer == "refused":
        counts.refused += 1
    elif answer:
        counts.through.append(f"{what}: {answer}")


def _child(attack: Callable[[], object], sender: object) -> None:
    from kernelcast.runtime.errors import KernelcastError

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        attack()
        answer = ""
    except KernelcastError as error:
        answer = "refused" if str(error).isprintable() else f"more than a line: {str(error)!r:.200}"
    except BaseException:
        answer = traceback.format_exc()[-400:].replace("\n", " | ")
    sender.send(answer)  # type: ignore[attr-defined]
