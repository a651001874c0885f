"""`penstock emulator`: local services with change streams, for development and tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from penstock.cli.common import refuse
from penstock.extras import MissingExtraError, extra_packages
from penstock.launch.reporter import ignore_import_warnings
from penstock.launch.signals import restore_defaults


@click.group()
def emulator() -> None:
    """Start a local service for development and tests."""


_UNKNOWN_OPTIONS = {"ignore_unknown_options": True, "allow_extra_args": True}
"""An emulator's own command reads the options: only that command imports gRPC."""


@emulator.command("spanner", add_help_option=False, context_settings=_UNKNOWN_OPTIONS)
@click.option("--simulated", is_flag=True)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def spanner_emulator(simulated: bool, options: Sequence[str]) -> None:
    """Google's Spanner emulator, or with --simulated a service that needs only Python; `--help` shows the options."""
    ignore_import_warnings()
    with _extra("spanner"):
        if simulated:
            from penstock.emulators.simulated_spanner.cli import main as start
        else:
            from penstock.emulators.spanner_command import main as start

        restore_defaults()  # the server handles signals itself
        start(options)


@emulator.command("ydb", add_help_option=False, context_settings=_UNKNOWN_OPTIONS)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def ydb_emulator(options: Sequence[str]) -> None:
    """A YDB test service with changefeeds; `--help` shows its options."""
    ignore_import_warnings()
    from penstock.emulators.ydb.cli import main as start

    restore_defaults()  # the service handles signals itself
    start(options)


@emulator.command("bigtable", add_help_option=False, context_settings=_UNKNOWN_OPTIONS)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def bigtable_emulator(options: Sequence[str]) -> None:
    """A Bigtable emulator with change streams; `--help` shows its options."""
    ignore_import_warnings()
    with _extra("bigtable"):
        from penstock.emulators.bigtable.cli import main as start

        restore_defaults()  # the emulator handles signals itself
        # Within the block, because it imports the client only when it starts.
        start(options)


@emulator.command("postgres", add_help_option=False, context_settings=_UNKNOWN_OPTIONS)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def postgres_emulator(options: Sequence[str]) -> None:
    """A PostgreSQL server with wal_level = logical; `--help` shows its options."""
    from penstock.emulators.postgres_command import main as start

    restore_defaults()  # the command handles signals itself
    start(options)


@contextmanager
def _extra(name: str) -> Iterator[None]:
    try:
        with extra_packages(name):
            yield
    except MissingExtraError as error:
        refuse(error)
