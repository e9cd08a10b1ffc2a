"""Whether an answer's measurements were made with the software that a user has."""

from collections.abc import Sequence

from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.estimate.provenance import Provenance


def other_software(stated: str, provenance: Provenance) -> tuple[str, ...]:
    """Items of `stated` (`torch 2.9, FlashAttention 3`) that no answering measurement names, ignoring case.

    Raises:
        UsageError: nothing is stated.
    """
    wanted = [one.strip() for one in stated.split(",") if one.strip()]
    if not wanted:
        raise UsageError(
            f"--software is {stated!r:.80}, expected names such as 'torch 2.9, FlashAttention 3'"
        )
    known = " ".join((*provenance.data, *provenance.software)).lower()
    return tuple(one for one in wanted if one.lower() not in known)


def software_warning(others: Sequence[str], provenance: Provenance) -> str:
    """One line about software that the measurements do not name; empty without any."""
    if not others:
        return ""
    measured = "; ".join(provenance.data or provenance.software)
    return f"software: no measurement names {', '.join(others)}; they are of {measured}"
