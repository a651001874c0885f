"""`penstock package`: writes a bundle for spark-submit. The environment is packed by venv-pack."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from penstock.cli.bundle import (
    ARCHIVE,
    ENTRY,
    ENTRY_PROGRAM,
    JOB_FILE,
    LEFT_OUT,
    Submission,
    as_shell,
    executor_python,
    spark_submit,
)
from penstock.cli.common import refuse
from penstock.cli.redaction import is_secret_setting
from penstock.cli.resolve import resolve
from penstock.errors import UsageError
from penstock.extras import extra_packages
from penstock.secrets import is_local_reference, is_reference


def pack_environment(environment: Path, target: Path, python_prefix: str | None) -> None:
    """Pack a virtual environment into the archive `target`.

    Raises:
        UsageError: it is no virtual environment, or parts of it are outside; the message says what to do.
    """
    if (environment / "conda-meta").is_dir():
        raise UsageError(
            f"{environment} is a conda environment: pack it with `conda pack -o {ARCHIVE}` and pass --archive {ARCHIVE}"
        )
    if not (environment / "pyvenv.cfg").is_file():
        raise UsageError(
            f"{environment} is not a virtual environment: name one with --environment, or pass --python with the path "
            "of a Python that every machine of the cluster has"
        )
    if names := sorted(editable_packages(environment)):
        # venv-pack would leave them out without a word, because pip installs them as a finder and not as a path.
        raise UsageError(
            f"{environment} has {', '.join(names)} installed in editable mode, which cannot be packed. Make another "
            "environment: python -m venv environment && environment/bin/pip install FOLDER, then pass --environment "
            "environment"
        )
    with extra_packages("cli"):
        from venv_pack import VenvPackException, pack
    try:
        pack(
            str(environment),
            output=str(target),
            force=True,
            # The contents are mostly compressed libraries and read once by each executor.
            compress_level=1,
            python_prefix=python_prefix,
            filters=[("exclude", f"*/site-packages/{name}/*") for name in LEFT_OUT],
        )
    except VenvPackException as error:
        raise UsageError(f"{environment} cannot be packed: {error}") from None


def editable_packages(environment: Path) -> Iterator[str]:
    """Yield the names of packages that pip has installed in editable mode."""
    for file in environment.glob("lib/python*/site-packages/*.dist-info/direct_url.json"):
        if json.loads(file.read_text()).get("dir_info", {}).get("editable"):
            yield file.parent.name.partition("-")[0]


def base_python(environment: Path) -> str:
    """Return the folder of the Python that an environment was made with; it must exist on every executor."""
    lines = (environment / "pyvenv.cfg").read_text().splitlines()
    values = dict(line.partition("=")[::2] for line in lines)
    return next((value.strip() for name, value in values.items() if name.strip() == "home"), "")


def spark_settings(pairs: Sequence[str]) -> dict[str, str]:
    """Return the settings of ``name=value`` pairs.

    Raises:
        UsageError: a secret setting has its value in clear. The command is printed and stored, so it must not.
    """
    settings = dict(each.partition("=")[::2] for each in pairs)
    for name, value in settings.items():
        if is_reference(value) and not is_local_reference(value):
            raise UsageError(
                f"--conf {name} names a secret of a secret manager, and the shell that reads it has no manager: pass "
                f"--conf '{name}=${{env:NAME}}' or --conf '{name}=${{file:/path}}'"
            )
        if is_secret_setting(name) and not is_reference(value):
            raise UsageError(
                f"--conf {name} contains a secret, and the bundle and the printed command would show it. Pass a "
                f"reference, which the shell reads when the command starts: --conf '{name}=${{env:NAME}}' or "
                f"--conf '{name}=${{file:/path}}'"
            )
    return settings


def write_program(source: Path, folder: Path) -> tuple[Path, tuple[Path, ...]]:
    """Write the entry program for a job file, or copy a Python program; return the paths of it and of other files."""
    folder.mkdir(parents=True, exist_ok=True)
    if source.suffix == ".py":
        shutil.copyfile(source, target := folder / source.name)
        return target, ()
    (folder / ENTRY).write_text(ENTRY_PROGRAM)
    shutil.copyfile(source, folder / JOB_FILE)
    os.chmod(folder / JOB_FILE, 0o600)  # it names databases and buckets
    return folder / ENTRY, (folder / JOB_FILE,)


def current_environment() -> Path:
    """Return the environment that this command runs in."""
    return Path(sys.prefix)


@click.command()
@click.argument(
    "source", metavar="JOB.YAML|PROGRAM.PY", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--into", "folder", default="bundle", show_default=True, type=click.Path(file_okay=False, path_type=Path)
)
@click.option("--master", default="yarn", show_default=True, help="Spark master of the printed command.")
@click.option("--deploy-mode", type=click.Choice(["client", "cluster"]), default="client", show_default=True)
@click.option(
    "--conf",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A Spark setting; may be repeated. Secrets are references: KEY=${env:NAME} or KEY=${file:/path}.",
)
@click.option(
    "--environment",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Virtual environment to pack. Default: the one of this command.",
)
@click.option("--archive", default="", help="An archive of an environment, packed before: a path or a URL.")
@click.option("--python", default="", help="A Python that every machine has; no environment is packed.")
@click.option("--python-prefix", help="Where the executors have the base Python, for example /usr.")
def package(
    source: Path,
    arguments: Sequence[str],
    folder: Path,
    master: str,
    deploy_mode: str,
    settings: Sequence[str],
    environment: Path | None,
    archive: str,
    python: str,
    python_prefix: str | None,
) -> None:
    """Write a bundle for spark-submit.

    Prints the command that starts it. The bundle has the entry program, the job file and a packed environment without
    Spark. ARGUMENTS after `--` are passed to the program.
    """
    chosen = (environment or current_environment()).resolve()
    try:
        chosen_settings = spark_settings(settings)
        if source.suffix != ".py":
            resolve(str(source), (), {}, os.environ)
        program, files = write_program(source, folder.resolve())
        if not archive and not python:
            archive = str(program.parent / ARCHIVE)
            click.echo(f"packing {chosen}", err=True)
            pack_environment(chosen, Path(archive), python_prefix)
            click.echo(
                f"every executor needs the base Python in {python_prefix or base_python(chosen)}", err=True
            )
    except UsageError as error:
        refuse(error)
    submission = Submission(
        program=str(program),
        master=master,
        deploy_mode=deploy_mode,
        driver_python=python or sys.executable,
        executor_python=python or executor_python(archive),
        archive=archive,
        files=tuple(map(str, files)),
        settings=chosen_settings,
        arguments=arguments,
    )
    command = as_shell(spark_submit(submission))
    (program.parent / "submit.sh").write_text(f"#!/bin/sh\nexec {command}\n")
    click.echo(command)
