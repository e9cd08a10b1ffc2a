"""`kernelcast bundle`: info, verify and sign; diff is in a file of its own."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from kernelcast.cli.bundle_diff import diff
from kernelcast.cli.options import FILE, json_option
from kernelcast.cli.tables import table_of, text_table
from kernelcast.cli.terminal import facts, print_json, say
from kernelcast.runtime.bundle.file import Bundle, read_bundle
from kernelcast.runtime.bundle.manifest import UNKNOWN_MOMENT, Manifest
from kernelcast.runtime.bundle.regressor_entry import RegressorEntry
from kernelcast.runtime.errors import DataError, UsageError, one_line
from kernelcast.runtime.operators import role_name

FORMAT = "kernelcast.bundle_info/1"
CHECK_FORMAT = "kernelcast.bundle_check/1"

bundle_argument = click.argument("path", metavar="FILE", type=FILE)


@click.group()
def bundle() -> None:
    """Look into, verify, compare and sign bundles.

    \b
    kernelcast bundle info here.kcast
    kernelcast bundle verify here.kcast
    kernelcast bundle diff before.kcast after.kcast
    kernelcast bundle sign here.kcast --key ~/.ssh/id_ed25519
    kernelcast bundle verify theirs.kcast --allowed-signers signers
    """


@bundle.command(short_help="Show what a bundle contains.")
@bundle_argument
@json_option
def info(path: Path, as_json: bool) -> None:
    """Show what a bundle contains: hardware, software, date, statistic, and its regressors.

    The error is the mean absolute relative one on held-out rows, "extrapolated" the same beyond the fitted
    workloads. Coverage is the share of held-out rows inside their 90 % interval; ± is its half width (the widest, where
    it depends on size or layout; "≤": a bound from few rows, without a coverage).

    \b
    kernelcast bundle info here.kcast
    """
    read = read_bundle(path)
    if as_json:
        print_json(_document(read))
        return
    manifest = read.manifest
    size_bytes = sum(entry.size_bytes for entry in manifest.regressors)
    say(
        f"{one_line(str(path))}: kernelcast bundle, {len(manifest.regressors)} regressors, {size_bytes / 1e6:,.1f} MB"
    )
    lines = [
        ("digest", read.digest),
        *(
            (name, f.description)
            for name in ("compute", "fabric", "software")
            for f in getattr(manifest, name)
        ),
        ("newest measurement", "unknown" if manifest.created_at == UNKNOWN_MOMENT else manifest.created_at),
        ("dtype", manifest.dtype),
        ("statistic", manifest.statistic),
        ("load", manifest.loads),
        ("seed", str(manifest.seed)),
        ("dataset digest", manifest.dataset_digest),
        ("kernelcast", manifest.kernelcast_version),
    ]
    lines.extend(("peak", str(peak)) for peak in manifest.peaks)
    if manifest.calibration is not None:
        lines.append(("calibration", str(manifest.calibration)))
    click.echo(facts((name, one_line(value)) for name, value in lines))
    click.echo("\n" + _regressors(manifest))
    if rows := list(_of_other_devices(manifest)):
        click.echo(
            "\nOf other devices\n" + text_table(("operator", "direction", "measured on", "points here"), rows)
        )
    if rows := list(_roles(manifest)):
        click.echo("\nErrors by role\n" + text_table(("role", "operator", "direction", "error"), rows))


def _regressors(manifest: Manifest) -> str:
    return table_of(
        manifest.regressors,
        ("operator", lambda entry: entry.operator),
        ("direction", lambda entry: entry.direction_text),
        ("rows", lambda entry: str(entry.rows)),
        ("algorithm", lambda entry: entry.algorithm),
        ("form", lambda entry: entry.form),
        ("error", lambda entry: _percent(entry.validation_error)),
        ("coverage", lambda entry: _percent(entry.interval_coverage)),
        ("±", _half_width),
        ("extrapolated", lambda entry: _percent(entry.extrapolation_error)),
        ("size", lambda entry: f"{entry.size_bytes / 1000:.0f} kB"),
        ("load", lambda entry: entry.load.value or "-"),
        ("range", _range),
        optional=("load", "size", "form", "algorithm", "coverage"),
    )


def _half_width(entry: RegressorEntry) -> str:
    added = 0.0 if entry.transfer is None else entry.transfer.log_half_width
    widest = math.hypot(max(entry.interval.log_half_widths), added)
    bound = "" if entry.interval.method == "cross_conformal" else "≤ "
    return f"{bound}{_percent(math.expm1(min(widest, 100.0)))}"


def _range(entry: RegressorEntry) -> str:
    return ", ".join(
        f"{feature} {low:g}" if low == high else f"{feature} {low:g}–{high:g}"
        for feature, (low, high) in zip(entry.features, entry.training_range, strict=True)
    )


def _of_other_devices(manifest: Manifest) -> Iterator[tuple[str, ...]]:
    """Regressors that were fitted on another device, and how many points of this one corrected them."""
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
                yield role_name(entry.operator, role), entry.operator, entry.direction_text, _percent(error)


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction:.1%}"


def _document(read: Bundle) -> dict[str, Any]:
    values = read.manifest.to_dict()
    bundle_format = values.pop("format")
    return {
        "format": FORMAT,
        "bundle": str(read.path),
        "bundle_digest": read.digest,
        "bundle_format": bundle_format,
        **values,
    }


@bundle.command(short_help="Verify a bundle, and its signature where asked.")
@bundle_argument
@click.option(
    "--allowed-signers",
    type=FILE,
    help="Verify FILE.sig against this list of signers, as ssh-keygen(1) describes it.",
)
@click.option("--signer", default="", help="Only this one of the allowed signers will do.")
@json_option
def verify(path: Path, allowed_signers: Path | None, signer: str, as_json: bool) -> None:
    """Verify a bundle: every digest and byte, every model loads, and answers at the corners of its training range.

    An answer must be a positive, finite time within its interval. With --allowed-signers the signature FILE.sig must
    hold too. The first thing that does not hold is one line and exit status 1.

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
    if as_json:
        document = {
            "format": CHECK_FORMAT,
            "bundle": str(path),
            "bundle_digest": checked.bundle.digest,
            "models": checked.models,
            "corners": checked.corners,
            "signer": verified.signer if verified else None,
            "key": verified.key if verified else None,
        }
        print_json(document)
        return
    name = one_line(str(path))
    say(
        f"{name}: sound: every digest and byte fits its manifest, {checked.models} models load and "
        f"answer at {checked.corners} corners of their training ranges"
    )
    if verified:
        say(f"{name}: signed by {one_line(verified.signer)}, key {one_line(verified.key)}")
    elif signature_path(path).exists():
        say(f"{name}: signature not verified (--allowed-signers says whose to accept)")
    else:
        say(f"{name}: not signed")


@bundle.command(short_help="Sign a bundle with an SSH key.")
@bundle_argument
@click.option(
    "--key",
    required=True,
    type=FILE,
    help="A private SSH key, or a public one whose private half an agent holds.",
)
def sign(path: Path, key: Path) -> None:
    """Sign a sound bundle with an SSH key; the signature is written to FILE.sig.

    \b
    kernelcast bundle sign here.kcast --key ~/.ssh/id_ed25519
    """
    from kernelcast.runtime.bundle.signature import sign_bundle

    say(f"{one_line(str(sign_bundle(path, key)))}: written")


bundle.add_command(diff)
