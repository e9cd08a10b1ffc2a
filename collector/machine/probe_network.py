"""The node's network adapters as rates and kinds, without addresses or names that identify it."""

from collections import Counter
from pathlib import Path

_INFINIBAND = Path("/sys/class/infiniband")
_NETWORK = Path("/sys/class/net")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # Virtual adapters refuse to be read.
        return ""


def network_links() -> tuple[str, ...]:
    """Adapters as `RATE KIND ×count`: InfiniBand and RoCE ports, or physical Ethernet ports where there are none."""
    counts: Counter[str] = Counter()
    for port in sorted(_INFINIBAND.glob("*/ports/*")):
        counts[f"{_read(port / 'rate')} {_read(port / 'link_layer')}".strip()] += 1
    if not counts:
        for adapter in sorted(_NETWORK.glob("*")):
            speed = _read(adapter / "speed")
            if (adapter / "device").exists() and speed.isdigit():
                counts[f"{speed} Mb/s Ethernet"] += 1
    return tuple(f"{link} ×{count}" for link, count in sorted(counts.items()))
