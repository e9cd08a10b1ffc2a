"""Digests of what decides a regressor: the same table and recipe give the same file, so it need not be fitted again."""

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

from kernelcast.runtime.bundle.fingerprint import DIGEST_HEX_DIGITS, content_digest
from kernelcast.train.dataset import Table
from kernelcast.train.scope import Scope

_LIBRARIES = ("numpy", "scipy", "scikit-learn", "xgboost", "onnx", "onnxmltools", "skl2onnx", "kernelcast")
# Beside the whole of train/: what is fitted on, and what goes into the file.
_RUNTIME_CODE = ("bundle/fingerprint.py", "bundle/interval.py", "operator_row.py", "operators.py")


def table_digest(table: Table) -> str:
    """Digest of a table's workloads and times, as it was measured: equal rows, equal digest."""
    return content_digest([table.workloads.tolist(), table.times_us.tolist()])


def recipe_digest(
    scope: Scope, statistic: str, seed: int, relatives: Sequence[Table] = (), base: Table | None = None
) -> str:
    """Digest of what decides a regressor beside its table: settings, what the file says, code and libraries.

    `relatives` are the tables of other operators that it may be fitted on too, `base` that of fewer processes per node.
    """
    return content_digest(
        {
            "dtype": scope.dtype,
            "statistic": statistic,
            "seed": seed,
            "base": table_digest(base) if base is not None else "",
            "relatives": {f"{t.operator} {t.direction}": table_digest(t) for t in relatives},
            "hardware": [f.digest for f in (*scope.compute, *scope.fabric, *scope.software)],
            "code": _code_digest(),
            "libraries": {name: version(name) for name in _LIBRARIES},
        }
    )


@cache
def _code_digest() -> str:
    train = Path(__file__).parent
    runtime = train.parent / "runtime"
    digest = hashlib.sha256()
    for path in (*sorted(train.glob("*.py")), *(runtime / name for name in _RUNTIME_CODE)):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:DIGEST_HEX_DIGITS]
