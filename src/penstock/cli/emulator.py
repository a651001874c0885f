"""`penstock emulator`: the commands of penstock-emulators, a second distribution, imported when they are needed."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.common import refuse
from penstock.extras import MissingExtraError, extra_packages
from penstock.launch.reporter import ignore_import_warnings
from penstock.launch.signals import restore_defaults


class _Emulators(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return _group().list_commands(context)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        return _group().get_command(context, name)

    def invoke(self, context: click.Context) -> Any:
        ignore_import_warnings()
        restore_defaults()  # each service handles signals itself
        return super().invoke(context)


@click.command("emulator", cls=_Emulators)
def emulator() -> None:
    """Start a local service for development and tests."""


def _group() -> click.Group:
    try:
        with extra_packages("emulators"):
            from penstock_emulators.commands import emulator as commands
    except MissingExtraError as error:
        refuse(error)
    return commands
