"""Bundles with changed members."""

import io
import zipfile


def rezipped(content: bytes, changes: dict[str, bytes | None], method: int = zipfile.ZIP_STORED) -> bytes:
    """The bundle's members in a fresh zip, some replaced, added, or (None) left out."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w", method) as new:
        members: dict[str, bytes | None] = {name: old.read(name) for name in old.namelist()}
        for name, data in (members | changes).items():
            if data is not None:
                new.writestr(name, data)
    return buffer.getvalue()
