"""Write runs files of validate/ from others' published tables of measured steps: done once, and tested since.

    python -m tests.datasets.convert_steps llm-foundry llm-foundry-a100.csv   # validate/llm-foundry-a100-{40,80}gb.toml
    python -m tests.datasets.convert_steps simumax b200_steps_part.json       # validate/simumax-b200*.toml
    python -m tests.datasets.convert_steps today today.csv                    # validate/megatron-bridge-*, torchtitan-*
    python -m tests.datasets.convert_steps mlperf truth.csv                   # validate/mlperf-*.toml

The same table gives the same bytes; every file names its source, its licence and the SHA-256 of the table.
"""

import sys
from pathlib import Path

from tests.datasets.convert_published import llm_foundry, simumax
from tests.datasets.convert_recent import mlperf, today

VALIDATE = Path(__file__).resolve().parent.parent.parent / "validate"
CONVERT = {"llm-foundry": llm_foundry, "simumax": simumax, "today": today, "mlperf": mlperf}


def main(arguments: list[str]) -> None:
    """See the module's docstring."""
    match arguments:
        case [source, table] if source in CONVERT:
            for name, text in CONVERT[source](Path(table).read_bytes()).items():
                path = VALIDATE / f"{name}.toml"
                path.write_text(text, encoding="utf-8")
                print(path.relative_to(VALIDATE.parent))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
