"""Finds the jobs that an argument names: a job file, a checkpoint, or a folder that has such. Reads only."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from penstock.cli.common import is_job_file
from penstock.cli.inputs import MAX_JOB_CHARACTERS, is_meant_as_job
from penstock.cli.runner_options import RUNNER_PACKAGE
from penstock.errors import UsageError
from penstock.object_stores.location import display_name, is_url, locate


def is_folder(place: str) -> bool:
    """Return whether an argument names a folder of this machine."""
    return not is_url(place) and Path(place).is_dir()


def jobs_below(place: str) -> tuple[list[str], list[str]]:
    """Return the job files and the checkpoints that an argument names: itself, or those directly in a folder.

    Raises:
        PenstockError, OSError: there are none, or the folder cannot be listed.
    """
    if is_job_file(place) and not is_folder(place):
        return [place], []
    checkpoints = import_module(RUNNER_PACKAGE).RemoteJob.below(place)
    files = []
    # Beside a checkpoint's own files are no job files.
    if is_folder(place) and str(locate(place)) not in checkpoints:
        files = sorted(str(path) for path in Path(place).iterdir() if _is_job(path))
    if not files and not checkpoints:
        raise UsageError(
            f"there is no checkpoint and no job file in {display_name(place)}: give a checkpoint folder, a job file, "
            "or a folder that has them"
        )
    return files, checkpoints


def job_files_below(place: str) -> list[str]:
    """Return the job files that an argument names: itself, or those directly in a folder.

    Raises:
        PenstockError, OSError: there are none, or the folder cannot be listed.
    """
    files, checkpoints = jobs_below(place)
    if not files:
        only = display_name(checkpoints[0])
        raise UsageError(
            f"there is no job file in {display_name(place)}, only checkpoints such as {only}: give job files, or a "
            f"folder that has them. `penstock status` shows checkpoints"
        )
    return files


def _is_job(path: Path) -> bool:
    if not is_job_file(str(path)) or not path.is_file():
        return False
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return is_meant_as_job(file.read(MAX_JOB_CHARACTERS + 1))
    except OSError:
        # It may be a job. The one who reads it says why it cannot be read.
        return True
