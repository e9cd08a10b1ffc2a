"""torchrun without its own warnings and tracebacks: its workers say what went wrong, it says which signal ended one."""

import logging
import signal
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main() -> None:
    """Take torchrun's arguments; exit with 1 where a worker failed or this process was told to end."""
    logging.disable(logging.CRITICAL)
    try:
        run.main(sys.argv[1:])
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        if first.exitcode < 0:
            name = signal.Signals(-first.exitcode).name
            print(f"process {first.local_rank} was ended by {name}", file=sys.stderr)
        sys.exit(1)
    except SignalException:
        sys.exit(1)


if __name__ == "__main__":
    main()
