"""Temporary files of a task on a local disk, for data that does not fit into memory."""

from __future__ import annotations

import os
import tempfile


def scratch_folder() -> str | None:
    """Return the folder for temporary files; None: the default of `tempfile`.

    PySpark gives its workers the scratch folders of the executor in this variable (`PythonRunner`, Spark 4.0). They are
    on large disks; /tmp may be memory.
    """
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None


def new_scratch_file(suffix: str) -> str:
    """Create an empty file that only this user can read, and return its path. The caller deletes it."""
    descriptor, path = tempfile.mkstemp(prefix="penstock-", suffix=suffix, dir=scratch_folder())
    os.close(descriptor)
    return path
