"""`kernelcast commons`: publish, add, list, search, remove and pull; others are in commons_*.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from kernelcast.cli import option
from kernelcast.cli.commons_sites import distrust, report, routine
from kernelcast.cli.tables import print_table
from kernelcast.cli.terminal import command_line, print_next, say
from kernelcast.runtime.errors import KernelcastError, UsageError, needs_extra, one_line, shown_size
from kernelcast.store.commons.index import PublishedFile
from kernelcast.store.commons.offers import Offer, PublishedName, offers, published_files
from kernelcast.store.commons.publish import Published, publish
from kernelcast.store.commons.pull import Pulled, pull, refresh
from kernelcast.store.commons.sources import (
    Source,
    chosen_sources,
    default_allowed_signers,
    read_sources,
    write_sources,
)

_sources_option = option.several("--source", "names", "Only this source; repeatable.", metavar="NAME")


@click.group()
def commons() -> None:
    """Share measurements as folders of static files, and pull from other sites.

    \b
    kernelcast commons publish bench.db public/commons --key ~/.ssh/id_ed25519
    kernelcast commons add https://site-a.example/commons --signer site-a
    kernelcast commons pull h200 bf16 --into bench.db
    kernelcast commons report bench.db
    """


@commons.command("publish", short_help="Publish a database as a folder of static files.")
@option.database_argument
@click.argument("folder", metavar="FOLDER", type=option.PATH)
@option.file("--key", "Sign the index with this SSH key.")
@option.text("--site", "Public name of the site.  [default: as last published, or none]")
@option.text("--contact", "Address for questions.  [default: as last published, or none]")
@option.text("--licence", "Licence of the rows, SPDX.  [default: as last published, or none]")
@option.file("--bundle", "bundles", "Publish this bundle too; repeatable.", multiple=True)
@option.several("--fabric", "fabrics", "Publish this described fabric too; repeatable.", metavar="NAME|FILE")
@option.several("--stack", "stacks", "Publish this software stack too; repeatable.", metavar="NAME|FILE")
@option.flag("--notes", "with_notes", "Publish site names and notes of runs.")
@option.flag(
    "--parquet",
    "with_parquet",
    "Publish samples as Parquet files too, for DuckDB, Spark or Dask.  [default: as last published, or not]",
)
@option.flag("--dry-run", "is_dry_run", "Show what would be published, and write nothing.")
@option.max_size
def publish_(database_path: Path, folder: Path, **options: Any) -> None:
    """Publish a database as a folder of static files, for any web server, object store or shared file system.

    Publishing again writes only what changed. Described fabrics and statistics of failures in the database are
    published with its measurements. Merged rows, traces, and (without --notes) site names and notes are left out.

    \b
    kernelcast commons publish bench.db public/commons --site "Site A" --key ~/.ssh/id_ed25519
    kernelcast commons publish bench.db public/commons --dry-run
    """
    given = {name: options.pop(name) for name in ("site", "contact", "licence")}
    about = {name: text for name, text in given.items() if text is not None}
    with needs_extra("commons publish --parquet", "parquet"):
        published = publish(database_path, folder, about=about, **options)
    _show_published(published, folder, is_dry_run=options["is_dry_run"])


def _show_published(published: Published, folder: Path, *, is_dry_run: bool) -> None:
    index, would = published.index, "would be " if is_dry_run else ""
    say(f"{folder}: {_files(index.files)}; {would}written: {_files(published.written)}")
    if rows := ", ".join(f"{count:,} {table}" for table, count in published.rows.items()):
        say(f"{would}published: {rows}")
    if published.merged_samples:
        say(f"{published.merged_samples:,} merged samples are left out")
    if is_dry_run:
        for name in ("hardware", "fabric", "software"):
            for text in getattr(index, name).values():
                click.echo(one_line(f"{name}: {text}"))
    for name, texts in published.texts.items():
        click.echo(one_line(f"{name}: {'; '.join(texts)}"))


def _files(files: Sequence[PublishedFile]) -> str:
    size_bytes = sum(one.size_bytes for one in files)
    return f"{len(files):,} files" + (f", {shown_size(size_bytes)}" if files else "")


@commons.command(short_help="Add a source.")
@click.argument("address", metavar="URL|FOLDER")
@option.text("--name", "Name of the source.  [default: from the address]", default="", metavar="NAME")
@option.text("--signer", "Accept only an index signed by this signer.", default="")
@option.file(
    "--allowed-signers",
    "List of signers, in the format of ssh-keygen(1).  [default with --signer:"
    " ~/.config/kernelcast/allowed_signers]",
)
@option.flag("--other-hosts", "Follow redirects to other hosts.")
def add(address: str, name: str, signer: str, allowed_signers: Path | None, other_hosts: bool) -> None:
    """Add a source, and fetch its index. With --signer or --allowed-signers, the index must be signed.

    \b
    kernelcast commons add https://site-a.example/commons --signer site-a
    kernelcast commons add /shared/commons --name cluster
    """
    address = address if "://" in address else Path(address).absolute().as_uri()
    if allowed_signers is None and signer:
        allowed_signers = default_allowed_signers()
    source = Source(
        name=name or _name_of(address),
        address=address,
        signer=signer,
        allowed_signers="" if allowed_signers is None else str(allowed_signers.absolute()),
        other_hosts=other_hosts,
    )
    known = read_sources()
    if any(one.name == source.name for one in known):
        raise UsageError(f"source {source.name} exists already, expected another --name")
    index, _ = refresh(source)
    write_sources([*known, source])
    rows, parts = sum(one.rows for one in index.parts), len(index.parts)
    say(f"{source.name}: {rows:,} rows, {parts:,} parts, {source.trust}")
    pulling = command_line("commons", "pull", "--source", source.name, "--into", "bench.db")
    print_next((pulling, "merge its rows"))


def _name_of(address: str) -> str:
    parts = urlsplit(address)
    words = [word for word in parts.path.lower().split("/") if word and word != "commons"]
    name = parts.hostname or (words[-1] if words else "")
    return "".join(one if one.isascii() and (one.isalnum() or one in "._-") else "-" for one in name).strip(
        "._-"
    )[:64]


@commons.command("list", short_help="List the sources.")
def list_() -> None:
    """List the sources, with their trust and the date of their last fetched index.

    \b
    kernelcast commons list
    """
    found = [(source, source.index()) for source in read_sources()]
    print_table(
        found,
        ("source", lambda one: one[0].name),
        ("site", lambda one: one[1].about.site if one[1] else ""),
        ("address", lambda one: one[0].address),
        ("trust", lambda one: one[0].trust),
        ("published", lambda one: one[1].published_at[:10] if one[1] else "never fetched"),
        ("rows", lambda one: f"{sum(part.rows for part in one[1].parts):,}" if one[1] else ""),
    )


@commons.command(short_help="Search what the sources offer.")
@click.argument("words", metavar="[WORD]...", nargs=-1)
@_sources_option
def search(words: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Search the last fetched indexes for rows that have every WORD in hardware, software, operator or type,
    and for bundles, fabrics and stacks with every WORD in their name.

    \b
    kernelcast commons search h200 bf16
    """
    print_offers(offers(words, names))
    if files := published_files(words, names):
        click.echo()
        print_published(files)


def print_offers(found: list[Offer]) -> None:
    """A row for every device and set of software of a source."""
    print_table(
        found,
        ("source", lambda one: one.source.name),
        ("hardware", lambda one: one.hardware),
        ("software", lambda one: one.software),
        ("operators", lambda one: f"{len({part.operator for part in one.parts if part.operator}):,}"),
        ("types", lambda one: ", ".join(sorted({dtype for part in one.parts for dtype in part.dtypes}))),
        ("rows", lambda one: f"{one.rows:,}"),
        ("measured", lambda one: one.dates),
        ("size", lambda one: shown_size(sum(part.size_bytes for part in one.parts))),
        optional=("size", "operators", "software"),
    )


def print_published(found: list[PublishedName]) -> None:
    """A row for every bundle, fabric and stack."""
    print_table(
        found,
        ("source", lambda one: one.source),
        ("kind", lambda one: one.kind),
        ("name", lambda one: one.name),
        ("of", lambda one: one.dated),
    )


@commons.command(short_help="Forget a source.")
@click.argument("name")
def remove(name: str) -> None:
    """Forget a source. Its rows stay in databases (db revert undoes merges).

    \b
    kernelcast commons remove site-a
    """
    [source] = chosen_sources((name,))
    write_sources([one for one in read_sources() if one.name != name])
    source.forget()
    say(f"{name}: removed")


@commons.command("pull", short_help="Merge measurements of sources into a database.")
@click.argument("words", metavar="[WORD]...", nargs=-1)
@option.file("--into", "Database to merge into; created if missing.", required=True)
@_sources_option
@option.max_size
def pull_(words: tuple[str, ...], into: Path, names: tuple[str, ...], max_size_bytes: int) -> None:
    """Merge published rows that a database lacks: all rows, or parts whose hardware, software, operator or dtype
    match every WORD.

    Only missing parts are fetched, and an interrupted pull continues. All parts of a source are merged, or none.

    \b
    kernelcast commons pull --into bench.db
    kernelcast commons pull h200 gemm bf16 --into bench.db --source site-a
    """
    errors = list[KernelcastError]()
    for source in chosen_sources(names):  # one that fails does not keep the others
        try:
            _show_pulled(pull(source, into, words, max_size_bytes=max_size_bytes))
        except KernelcastError as error:
            errors.append(error)
    for other in errors[1:]:
        click.echo(f"kernelcast: error: {one_line(str(other))}", err=True)
    if errors:
        raise errors[0]


def _show_pulled(one: Pulled) -> None:
    rows = ", ".join(f"{count:,} {table}" for table, count in one.rows.items())
    transferred = f"{one.requests:,} requests, {shown_size(one.received_bytes)}"
    who = f"signed by {one.signer}" if one.signer else "not signed"
    say(f"{one.source.name} ({who}): {rows + ' added' if rows else 'nothing new'}; {transferred}")


commons.add_command(report)
commons.add_command(distrust)
commons.add_command(routine)
