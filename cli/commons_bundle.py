"""`predict --from commons`: a bundle of a device that others have measured."""

from pathlib import Path

from kernelcast.cli.terminal import say
from kernelcast.runtime.errors import needs_extra


def commons_bundle(device: str) -> tuple[Path, list[str]]:
    """A published bundle of a device, or one trained here on the rows of every source; and from where, in words.

    Trained bundles are kept in the cache until the sources have other rows.

    Raises:
        UsageError, DataError: no source has the device, or its rows cannot be pulled or trained on.
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
