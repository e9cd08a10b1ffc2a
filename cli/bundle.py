"""`kernelcast bundle`: info, verify, diff and sign."""

import math
from collections.abc import Iterator
from pathlib import Path

import click

from kernelcast.cli import option
from kernelcast.cli.tables import print_table, text_table
from kernelcast.cli.terminal import Shown, facts, say
from kernelcast.runtime.bundle.difference import BundleDifference, RegressorChange, compare_bundles
from kernelcast.runtime.bundle.file import Bundle, read_bundle
from kernelcast.runtime.bundle.manifest import UNKNOWN_MOMENT, Manifest
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.errors import DataError, UsageError, one_line
from kernelcast.runtime.json_text import values_of
from kernelcast.runtime.operators import role_name
from kernelcast.runtime.views.formatting import percent

FORMAT = "kernelcast.bundle_info/1"
CHECK_FORMAT = "kernelcast.bundle_check/1"
DIFFERENCE_FORMAT = "kernelcast.bundle_difference/1"

bundle_argument = click.argument("path", metavar="FILE", type=option.FILE)


@click.group()
def bundle() -> None:
    """Inspect, verify, compare and sign bundles.

    \b
    kernelcast bundle info here.kcast
    kernelcast bundle verify here.kcast
    kernelcast bundle diff before.kcast after.kcast
    kernelcast bundle sign here.kcast --key ~/.ssh/id_ed25519
    kernelcast bundle verify theirs.kcast --allowed-signers signers
    """


@bundle.command(short_help="Show the contents of a bundle.")
@bundle_argument
@option.json
def info(path: Path) -> Shown:
    """Show the contents of a bundle: hardware, software, date, statistic and regressors.

    Columns, per regressor: error, mean absolute relative error on held-out rows; extrapolated, the same error outside
    the training range; ±, half-width of the 90 % interval (the largest over sizes and layouts); coverage, share of
    held-out rows inside that interval. ≤ marks an upper bound from few rows, without coverage.

    \b
    kernelcast bundle info here.kcast
    """
    read = read_bundle(path)
    values = read.manifest.to_dict()
    document = {
        "format": FORMAT,
        "bundle": str(read.path),
        "bundle_digest": read.digest,
        "bundle_format": values.pop("format"),
        **values,
    }
    return Shown(document, lambda: _show(read))


def _show(read: Bundle) -> None:
    manifest = read.manifest
    size_bytes = sum(entry.size_bytes for entry in manifest.regressors)
    say(
        f"{one_line(str(read.path))}: kernelcast bundle, {len(manifest.regressors)} regressors, "
        f"{size_bytes / 1e6:,.1f} MB"
    )
    kinds = ("compute", "fabric", "software")
    lines: dict[str, object] = {
        "digest": read.digest,
        **{name: [one.description for one in getattr(manifest, name)] for name in kinds},
        "newest measurement": "unknown" if manifest.created_at == UNKNOWN_MOMENT else manifest.created_at,
        "dtype": manifest.dtype,
        "statistic": manifest.statistic,
        "load": manifest.loads,
        "seed": manifest.seed,
        "dataset digest": manifest.dataset_digest,
        "kernelcast": manifest.kernelcast_version,
        "peak": [*manifest.peaks],
        "calibration": manifest.calibration or [],
    }
    several = {name: value if isinstance(value, list) else [value] for name, value in lines.items()}
    click.echo(
        facts({name: [one_line(str(one)) for one in values] for name, values in several.items()}) + "\n"
    )
    print_table(
        manifest.regressors,
        ("operator", lambda entry: entry.operator),
        ("direction", lambda entry: entry.direction_text),
        ("rows", lambda entry: str(entry.rows)),
        ("algorithm", lambda entry: entry.algorithm),
        ("form", lambda entry: entry.form),
        ("error", lambda entry: percent(entry.validation_error)),
        ("coverage", lambda entry: percent(entry.interval_coverage)),
        ("±", _half_width),
        ("extrapolated", lambda entry: percent(entry.extrapolation_error)),
        ("size", lambda entry: f"{entry.size_bytes / 1000:.0f} kB"),
        ("load", lambda entry: entry.load.value or "-"),
        ("range", _range),
        optional=("load", "size", "form", "algorithm", "coverage"),
    )
    if rows := list(_transferred(manifest)):
        heads = ("operator", "direction", "measured on", "points here")
        click.echo("\nTransferred from other devices\n" + text_table(heads, rows))
    if rows := list(_roles(manifest)):
        click.echo("\nErrors by role\n" + text_table(("role", "operator", "direction", "error"), rows))


def _half_width(entry: RegressorEntry) -> str:
    added = 0.0 if entry.transfer is None else entry.transfer.log_half_width
    widest = math.hypot(max(entry.interval.log_half_widths), added)
    bound = "" if entry.interval.method == "cross_conformal" else "≤ "
    return f"{bound}{percent(math.expm1(min(widest, 100.0)))}"


def _range(entry: RegressorEntry) -> str:
    return ", ".join(
        f"{feature} {low:g}" if low == high else f"{feature} {low:g}–{high:g}"
        for feature, (low, high) in zip(entry.features, entry.training_range, strict=True)
    )


def _transferred(manifest: Manifest) -> Iterator[tuple[str, ...]]:
    """Regressors fitted on another device, and the number of points of this device that corrected them."""
    for entry in manifest.regressors:
        if entry.transfer is not None:
            correction = entry.transfer.correction
            points = "" if correction is None else str(correction.points)
            yield entry.operator, entry.direction_text, entry.transfer.origin.device, points


def _roles(manifest: Manifest) -> Iterator[tuple[str, ...]]:
    """Errors of regressors that answer for several roles, by the names of the paper's Table I."""
    for entry in manifest.regressors:
        if len(entry.role_errors) > 1:
            for role, error in entry.role_errors.items():
                yield role_name(entry.operator, role), entry.operator, entry.direction_text, percent(error)


@bundle.command(short_help="Verify a bundle and, on request, its signature.")
@bundle_argument
@option.file(
    "--allowed-signers", "Verify FILE.sig against this list of signers, in the format of ssh-keygen(1)."
)
@option.text("--signer", "Accept only this signer.", default="")
@option.json
def verify(path: Path, allowed_signers: Path | None, signer: str) -> Shown:
    """Verify a bundle: check every digest and byte, load every model, evaluate it at the corners of its training range.

    Each answer must be a positive, finite time within its interval. With --allowed-signers, the signature FILE.sig must
    be valid too. The first failure is printed as one line, with exit status 1.

    \b
    kernelcast bundle verify theirs.kcast --allowed-signers signers
    """
    # Imported here: the check loads numpy and onnxruntime, which info does without.
    from kernelcast.runtime.answers.bundle_check import check_bundle
    from kernelcast.runtime.bundle.signature import signature_path, verify_signature

    if signer and allowed_signers is None:
        raise UsageError("--signer is given without --allowed-signers, expected both")
    # The signature first: nothing of a stranger's file is loaded before it.
    verified = verify_signature(path, allowed_signers, signer=signer) if allowed_signers else None
    checked = check_bundle(path)
    if verified and verified.bundle_digest != checked.bundle.digest:
        raise DataError(f"bundle {path}: was changed while it was verified")
    document = {
        "format": CHECK_FORMAT,
        "bundle": str(path),
        "bundle_digest": checked.bundle.digest,
        **values_of(checked, "models", "corners"),
        "signer": verified.signer if verified else None,
        "key": verified.key if verified else None,
    }

    def show() -> None:
        name = one_line(str(path))
        say(
            f"{name}: sound: every digest and byte matches the manifest; {checked.models} models load and "
            f"answer at {checked.corners} corners of their training ranges"
        )
        if verified:
            say(f"{name}: signed by {one_line(verified.signer)}, key {one_line(verified.key)}")
        elif signature_path(path).exists():
            say(f"{name}: signature not verified (--allowed-signers names the signers to accept)")
        else:
            say(f"{name}: not signed")

    return Shown(document, show)


@bundle.command(short_help="Sign a bundle with an SSH key.")
@bundle_argument
@option.file(
    "--key", "Private SSH key, or a public key whose private half is held by an SSH agent.", required=True
)
def sign(path: Path, key: Path) -> None:
    """Verify a bundle, sign it with an SSH key, and write the signature to FILE.sig.

    \b
    kernelcast bundle sign here.kcast --key ~/.ssh/id_ed25519
    """
    from kernelcast.runtime.bundle.signature import sign_bundle

    say(f"{one_line(str(sign_bundle(path, key)))}: written")


@bundle.command(short_help="Compare two bundles.")
@click.argument("a", type=option.FILE)
@click.argument("b", type=option.FILE)
@option.flag("--exit-code", "Exit with status 1 if the bundles differ.")
@option.json
def diff(a: Path, b: Path, exit_code: bool) -> Shown:
    """Show the differences between two bundles: hardware, software, dataset, settings and regressors.

    Regressors in both bundles are listed with both errors and the reason for the difference: other rows, or another
    recipe (code, libraries, settings or hardware).

    \b
    kernelcast bundle diff before.kcast after.kcast
    """
    difference = compare_bundles(read_bundle(a), read_bundle(b))
    document = {"format": DIFFERENCE_FORMAT, "a": str(a), "b": str(b), **difference.to_dict()}
    return Shown(
        document,
        lambda: _show_difference(difference, one_line(str(a)), one_line(str(b))),
        status=1 if exit_code and not difference.same_bytes else 0,
    )


def _show_difference(difference: BundleDifference, a: str, b: str) -> None:
    if difference.same_bytes:
        say("same bytes")
        return
    if difference.settings:
        settings = [(s.name, one_line(s.a), one_line(s.b)) for s in difference.settings]
        click.echo(text_table(("differs", f"A ({a})", f"B ({b})"), settings) + "\n")
    if difference.changed:
        print_table(
            difference.changed,
            ("operator", lambda change: change.a.operator),
            ("direction", lambda change: change.a.direction_text),
            ("why", _why),
            ("rows A", lambda change: str(change.a.rows)),
            ("rows B", lambda change: str(change.b.rows)),
            ("error A", lambda change: percent(change.a.validation_error)),
            ("error B", lambda change: percent(change.b.validation_error)),
            ("size A", lambda change: f"{change.a.size_bytes / 1000:.0f} kB"),
            ("size B", lambda change: f"{change.b.size_bytes / 1000:.0f} kB"),
        )
        click.echo()
    for where, entries in (("A", difference.removed), ("B", difference.added)):
        for entry in entries:
            say(
                f"only in {where}: {entry.operator} ({entry.direction_text}), {entry.rows} rows, "
                f"error {percent(entry.validation_error)}"
            )
    say(
        f"regressors: {len(difference.changed)} changed, {len(difference.removed)} only in A, "
        f"{len(difference.added)} only in B, {difference.unchanged} unchanged"
    )


def _why(change: RegressorChange) -> str:
    reasons = (("rows", change.rows_differ), ("recipe", change.recipe_differs))
    return " and ".join(word for word, holds in reasons if holds) or "model"
