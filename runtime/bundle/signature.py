"""Signatures of bundles: OpenSSH's, so that sites use the keys and the list of allowed signers that they have.

A signature of `NAME.kcast` lies next to it as `NAME.kcast.sig` (ssh-keygen(1), -Y sign, namespace "kernelcast-bundle").
What is signed is checked first, what is verified is read once: the bytes that were checked are those that ssh-keygen
gets, through a pipe, so that no file name of a stranger's reaches it.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from kernelcast.runtime.bundle.file import read_content, verified_bundle
from kernelcast.runtime.dataclass import dataclass
from kernelcast.runtime.errors import DataError, one_line
from kernelcast.runtime.output_file import write_companion
from kernelcast.runtime.small_file import open_regular, read_small_file

NAMESPACE = "kernelcast-bundle"
"""Part of what is signed: a signature made for something else does not count."""
DATABASE_NAMESPACE = "kernelcast-database"

SIGNATURE_BEGINS = b"-----BEGIN SSH SIGNATURE-----"
_TIMEOUT_S = 60
_MAX_SIGNATURE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A signature that holds: who made it, as the list of allowed signers calls them, and with which key.

    `bundle_digest` is the SHA-256 of the bytes that it holds for, of a bundle or another file.
    """

    signer: str
    key: str
    bundle_digest: str


def signature_path(bundle: str | os.PathLike[str]) -> Path:
    """Where the signature of a bundle lies."""
    path = Path(bundle)
    return path.with_name(path.name + ".sig")


def sign_bundle(bundle: str | os.PathLike[str], key: str | os.PathLike[str]) -> Path:
    """Sign a sound bundle with a private SSH key, or a public one whose private half an agent holds.

    An earlier signature is replaced, a link or another file of its name is not. Returns the signature's path.
    ssh-keygen may ask for a passphrase.

    Raises:
        DataError: the bundle is not sound, the key cannot be used, ssh-keygen is missing, or nothing can be written.
    """
    source = Path(bundle)
    content = read_content(source)
    verified_bundle(source, content)
    written = signature_path(source)
    signed = signature_of(content, key, namespace=NAMESPACE, where=f"bundle {source}")
    write_companion(written, signed, f"signature {written}", begins=SIGNATURE_BEGINS)
    return written


def signature_of(content: bytes, key: str | os.PathLike[str], *, namespace: str, where: str) -> bytes:
    """The signature of some bytes, by a key as in `sign_bundle`.

    Raises:
        DataError: the key cannot be used, or ssh-keygen is missing; the message begins with `where`.
    """
    key_path = Path(key).absolute()
    if not key_path.is_file():
        raise DataError(f"{where}: cannot be signed (key {key}: {_no_file(key_path)})")
    done = _ssh_keygen(["sign", "-f", str(key_path), "-n", namespace], content, where, timeout_s=None)
    if done.returncode != 0:
        raise DataError(f"{where}: cannot be signed ({_reason(done)})")
    return done.stdout


def verify_signature(
    bundle: str | os.PathLike[str], allowed_signers: str | os.PathLike[str], *, signer: str = ""
) -> Verified:
    """Verify that a bundle's signature was made over these bytes by an allowed signer.

    `allowed_signers` is a file as ssh-keygen(1) describes under ALLOWED SIGNERS; with `signer` only that one will do.

    Raises:
        DataError: no signature or list, ssh-keygen is missing, or the signature is for other bytes, another namespace,
            or a key that the list does not allow.
    """
    source = Path(bundle)
    content, signature = read_content(source), _read_signature(source, f"bundle {source}")
    return _verify(source, content, signature, allowed_signers, signer, NAMESPACE, f"bundle {source}")


def verify_signed_file(
    path: Path, allowed_signers: Path, *, signer: str = "", namespace: str = DATABASE_NAMESPACE
) -> Verified:
    """As `verify_signature`, of any file that lies still, such as a database without a -wal file.

    Raises:
        DataError: as there, or the file has a -wal file, which no signature covers.
    """
    if (log := path.with_name(path.name + "-wal")).exists() and log.stat().st_size:
        raise DataError(
            f"{path}: its log {log.name} is not signed, expected a database without one (db export)"
        )
    where = str(path)
    with open_regular(path) as file:
        signature = _read_signature(path, where, f"one (ssh-keygen -Y sign -n {namespace})")
        return _verify(path, file, signature, allowed_signers, signer, namespace, where)


def _verify(
    source: Path,
    content: bytes | BinaryIO,
    signature: bytes,
    allowed_signers: str | os.PathLike[str],
    signer: str,
    namespace: str,
    where: str,
) -> Verified:
    allowed = Path(allowed_signers).absolute()
    if not allowed.is_file():
        raise DataError(
            f"{where}: cannot be verified (allowed signers {allowed_signers}: {_no_file(allowed)})"
        )
    with tempfile.TemporaryDirectory(prefix="kernelcast-") as folder:
        copied = Path(folder, "signature")
        copied.write_bytes(signature)
        files = ["-s", str(copied), "-f", str(allowed)]
        candidates = [signer] if signer else _principals(files, where)
        if not candidates:
            raise DataError(
                f"{where}: signature {signature_path(source)} is by no signer in {allowed_signers}, "
                "expected one of the allowed signers"
            )
        for candidate in candidates:
            done = _ssh_keygen(["verify", *files, "-I", candidate, "-n", namespace], content, where)
            if done.returncode == 0:
                _, _, key = done.stdout.decode(errors="replace").strip().rpartition(" with ")
                return Verified(signer=candidate, key=key, bundle_digest=_digest(content))
        others = [one for one in _principals(files, where) if one not in candidates]
    by = f"; the key belongs to {' or '.join(others)}" if others else ""
    raise DataError(
        f"{where}: signature {signature_path(source)} does not hold for {' or '.join(candidates)} "
        f"({_reason(done)}): other bytes, another key, or not allowed{by}"
    )


def _digest(content: bytes | BinaryIO) -> str:
    if isinstance(content, bytes):
        return sha256(content).hexdigest()
    content.seek(0)
    digest = sha256()
    while block := content.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _principals(files: Sequence[str], where: str) -> list[str]:
    """Names that the list of allowed signers gives to the key of the signature."""
    done = _ssh_keygen(["find-principals", *files], b"", where)
    if done.returncode != 0:
        return []
    lines = done.stdout.decode(errors="replace").splitlines()
    return list(dict.fromkeys(name for line in lines for name in line.split(",") if name))


def _read_signature(source: Path, where: str, expected: str = "one (kernelcast bundle sign)") -> bytes:
    path = signature_path(source)
    where = f"{where}: signature {path}"
    signature = read_small_file(path, where=where, most_bytes=_MAX_SIGNATURE_BYTES, expected=expected)
    if not signature.startswith(SIGNATURE_BEGINS):
        raise DataError(f"{where}: is not an SSH signature")
    return signature


def _no_file(path: Path) -> str:
    return "is no regular file" if path.exists() else "no such file"


def _ssh_keygen(
    arguments: Sequence[str], content: bytes | BinaryIO, where: str, *, timeout_s: int | None = _TIMEOUT_S
) -> "subprocess.CompletedProcess[bytes]":
    program = shutil.which("ssh-keygen")
    if program is None:
        raise DataError(f"{where}: ssh-keygen is not installed, expected OpenSSH's (Debian: openssh-client)")
    given: dict[str, Any] = {"input": content}
    if not isinstance(content, bytes):
        content.seek(0)  # large files are not read into memory
        given = {"stdin": content}
    try:
        return subprocess.run(
            [program, "-Y", *arguments], **given, capture_output=True, timeout=timeout_s, check=False
        )
    except (OSError, ValueError) as error:
        raise DataError(f"{where}: ssh-keygen cannot be run ({error})") from error
    except subprocess.TimeoutExpired as error:
        raise DataError(f"{where}: ssh-keygen did not end within {timeout_s} s") from error


def _reason(done: "subprocess.CompletedProcess[bytes]") -> str:
    # Some of its reasons are printed to standard output.
    lines = [
        line.strip()
        for line in (done.stderr or done.stdout).decode(errors="replace").splitlines()
        if line.strip()
    ]
    return one_line(lines[-1]) if lines else f"ssh-keygen ended with {done.returncode}"
