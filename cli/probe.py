"""`kernelcast probe`."""

import click

from kernelcast.cli import option
from kernelcast.cli.terminal import Shown, say
from kernelcast.collector.machine.peaks import measure_peaks
from kernelcast.collector.machine.probe import probe as probe_machine
from kernelcast.collector.machine.probe import resolve_device
from kernelcast.runtime.dataclass import asdict
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.views.formatting import amount

FORMAT = "kernelcast.fingerprints/1"


@click.command()
@option.device
@option.threads
@option.json
def probe(device: str, threads: int) -> Shown:
    """Show this machine's compute, fabric and software fingerprints, and the measured peaks of the device.

    Fingerprints are the keys of all measurements. They contain no host name, user name, serial number or address. The
    peaks are measured in a few seconds and are not part of a fingerprint.

    \b
    kernelcast probe
    kernelcast probe --json
    """
    where = resolve_device(device)
    found, peaks = probe_machine(where, threads=threads), measure_peaks(where, threads=threads)
    parts = values_of(found, "compute", "fabric", "software")
    document = {
        name: {"digest": part.digest, "description": part.description, "fields": part.to_dict()}
        for name, part in parts.items()
    }

    def show() -> None:
        for name, part in parts.items():
            say(f"{name:9} {part.digest}  {part.description}")
            for field, value in part.to_dict().items():
                if value not in ("", 0, [], False):
                    say(f"  {field:21} {', '.join(map(str, value)) if isinstance(value, list) else value}")
        rates = ", ".join(f"{amount(rate, 'FLOP/s')} {dtype}" for dtype, rate in peaks.flops_per_s.items())
        say(f"measured  GEMMs {rates}; copies {amount(peaks.memory_bytes_per_s, 'B/s')}")

    return Shown({"format": FORMAT, **document, "peaks": asdict(peaks)}, show)
