"""torchrun without its warnings and tracebacks: workers report their errors, torchrun reports lost workers."""

import logging
import os
import signal
import sys
import threading

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from kernelcast.collector.launch import LOST_PEERS, ONE_VOICE, PARENT_PIPE

# torchrun waits 30 s after its SIGTERM; timestamps are whole seconds.
_TORCHRUN_GRACE_S = 25

# Statuses of a worker that printed its error, or left that to another one.
_SPOKEN = (1, 2, 130)


def main() -> None:
    """Take torchrun's arguments; exit with 1 where a worker failed or this process was terminated."""
    logging.disable(logging.CRITICAL)
    if os.environ.get(PARENT_PIPE):
        threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        run.main(sys.argv[1:])
    except ChildFailedError as error:
        if words := cause_of(_own_statuses(error)):
            shown = bool(os.environ.get(ONE_VOICE))
            print(
                f"kernelcast: error: {words}; measured points are stored" if shown else words,
                file=sys.stderr,
            )
        sys.exit(1)
    except SignalException:
        sys.exit(1)


def _own_statuses(error: ChildFailedError) -> dict[int, int]:
    """Exit statuses by worker, without workers that torchrun killed because they ignored its SIGTERM."""
    failures = error.failures.values()
    killing_s = min(failure.timestamp for failure in failures) + _TORCHRUN_GRACE_S
    return {
        failure.local_rank: failure.exitcode
        for failure in failures
        if failure.exitcode != -signal.SIGKILL or failure.timestamp < killing_s
    }


def cause_of(statuses: dict[int, int]) -> str:
    """The cause of the workers' end, from their exit statuses; empty where a worker has reported it."""
    for rank, status in sorted(statuses.items()):
        # torchrun ends the other workers with SIGTERM.
        if status < 0 and -status != signal.SIGTERM:
            return f"process {rank} was ended by {signal.Signals(-status).name}"
    lost = LOST_PEERS in statuses.values()
    if any(status in _SPOKEN or (lost and status < 0) for status in statuses.values()):
        return ""
    for rank, status in sorted(statuses.items()):
        if status < 0:
            return f"process {rank} was ended by {signal.Signals(-status).name}"
        if status != LOST_PEERS:
            return f"process {rank} ended with exit status {status}"
    return "the processes lost each other"


def _end_with_parent() -> None:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
