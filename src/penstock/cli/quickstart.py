"""`penstock quickstart`: a pipeline that is killed and loses nothing.

Database, bank and checker are in penstock-emulators, a second distribution, imported when they are needed.
"""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from penstock.cli.common import refuse
from penstock.extras import MissingExtraError, require_extra
from penstock.launch.reporter import ignore_import_warnings
from penstock.launch.run import ExitCode
from penstock.launch.signals import stop_signals

_INTRODUCTION = """\
Penstock reads the changes of a database on Spark, is killed in the middle, and loses nothing.
About a minute, no cloud. Ctrl-C ends it and everything that it has started.
"""


@click.command("quickstart")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Empty folder for output, checkpoint and log. Default: a new temporary folder.",
)
def quickstart(folder: Path | None) -> None:
    """Watch a pipeline that is killed lose nothing.

    Starts a simulated database, a writer and a pipeline on Spark, kills the pipeline with SIGKILL, resumes it, and
    compares output and database. It needs no cloud and about a minute. Exit code 0: nothing is lost, doubled or out
    of order; 1: something is.
    """
    ignore_import_warnings()
    try:
        for module in ("pyspark", "google.cloud.spanner", "penstock_emulators"):
            require_extra("quickstart", module)
    except MissingExtraError as error:
        refuse(error)
    place = _empty(folder)
    click.echo(_INTRODUCTION)
    # Here, because these imports take seconds.
    from penstock_emulators.demo.quickstart import Folder, Quickstart
    from penstock_emulators.demo.waiting import PipelineEndedError
    from penstock_emulators.server_process import EmulatorStartError

    left = Folder(place)
    # Before, when nothing is started, a signal ends this process at once.
    for number in stop_signals():
        signal.signal(number, _interrupt)
    try:
        code = Quickstart(left, _own_command()).run()
    except EmulatorStartError as error:
        click.echo(f"Error: {error}", err=True)
        code = ExitCode.PREFLIGHT
    except RuntimeError as error:
        click.echo(f"Error: {error}. The end of {left.log}:\n{left.end_of_log()}", err=True)
        # A pipeline without an end must not be done.
        code = (error.status if isinstance(error, PipelineEndedError) else 0) or 1
    except KeyboardInterrupt:
        click.echo(f"\nEnded, with everything that it had started. Files and log: {place}", err=True)
        code = ExitCode.INTERRUPTED
    sys.exit(code)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    # A second signal must not break off the clean-up, which takes less than a second.
    for each in stop_signals():
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def _empty(folder: Path | None) -> Path:
    """Return an empty folder, which is created if it is missing."""
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="penstock-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            refuse(f"{folder} is not empty: give --folder another name")
    except OSError as error:
        refuse(f"{folder} cannot be used: {error.strerror}")
    return folder.resolve()


def _own_command() -> str:
    """Return how a reader starts this `penstock`: by its name if the shell finds it, else by its path."""
    own = Path(sys.executable).with_name("penstock")
    found = shutil.which("penstock")
    return "penstock" if found and Path(found).resolve() == own.resolve() else shlex.quote(str(own))
