"""Repositories whose files importers know: what is said about their source unless options say otherwise."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kernelcast.runtime.errors import UsageError
from kernelcast.store.importers.description import Description

_COMMIT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """Where files were published, and under which licence (SPDX)."""

    address: str
    licence: str

    def described(self, commit: str = "") -> Description:
        """Its source, `address@commit` where a commit is known.

        Raises:
            UsageError: `commit` is not 7 to 40 hexadecimal digits.
        """
        if commit and not _COMMIT.fullmatch(commit):
            raise UsageError(f"commit: found {commit!r:.60}, expected 7 to 40 hexadecimal digits")
        reference = f"{self.address}@{commit}" if commit else self.address
        return Description(source={"licence": self.licence, "reference": reference})


REPOSITORIES: Mapping[str, Repository] = {
    "aiconfigurator": Repository(address="https://github.com/ai-dynamo/aiconfigurator", licence="Apache-2.0"),
    "simumax": Repository(address="https://github.com/MooreThreads/SimuMax", licence="Apache-2.0"),
    "liger": Repository(address="https://github.com/linkedin/Liger-Kernel", licence="BSD-2-Clause"),
}
"""By the importer's name."""
