"""`predict --from commons`: bundles of devices, fabrics and stacks that others have published or measured."""

from pathlib import Path
from typing import Any

from kernelcast.cli.terminal import say
from kernelcast.runtime.catalogue import all_hardware
from kernelcast.runtime.errors import UsageError, needs_extra


def from_commons(
    hardware: str | None, bundle: str | None, fields: dict[str, Any]
) -> tuple[str | None, str | None, list[str]]:
    """What a question names and the sources have: bundle and hardware to answer by, and from where, in words.

    A fabric or stack in `fields` that is a name of a published one becomes its file. UsageError or DataError where the
    sources have nothing that is named, or it cannot be fetched.
    """
    with needs_extra("--from commons", "store"):
        from kernelcast.store.commons.offers import published_description
    lines = []
    for kind in ("fabric", "stack"):
        name = fields.get(kind)
        if name and (found := published_description(kind, name)) is not None:
            fields[kind] = str(found[0])
            lines.append(found[1])
    if hardware is not None and bundle is None and not (lines and hardware in all_hardware()):
        path, origins = commons_bundle(hardware)
        return str(path), None, [*origins, *lines]
    if not lines:
        raise UsageError("--from commons is given without --hardware NAME alone, expected both")
    return bundle, hardware, lines


def commons_bundle(device: str) -> tuple[Path, list[str]]:
    """A published bundle of a device, or one trained here on the rows of every source; and from where, in words.

    Trained bundles are kept in the cache until the sources have other rows. UsageError or DataError where no source has
    the device, or its rows cannot be pulled or trained on.
    """
    with needs_extra("--from commons", "store"):
        from kernelcast.store.commons.offers import measurements, published_bundle
    if (published := published_bundle(device)) is not None:
        path, origin = published
        return path, [origin]
    found = measurements(device)
    path = found.database.with_name(f"{found.digest}.kcast")
    if not path.exists():
        with needs_extra("--from commons", "train"):
            from kernelcast.train.fit import open_measurements, train_bundle
        say(f"training, once for these rows: {'; '.join(map(str, found.offers))}", err=True)
        with open_measurements(found.database) as database:
            train_bundle(database, path, jobs=0, **found.wanted)  # type: ignore[arg-type]
    return path, [str(one) for one in found.offers]
