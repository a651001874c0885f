"""Removes Spark's archives from a Python worker's search path, so that it imports the installed PySpark. Pure.

Spark puts the archive `python/lib/pyspark.zip` at the front of its workers' PYTHONPATH (`PythonUtils.sparkPythonPath`,
read in Spark 4.3). The archive has no compiled modules, so every daemon and every worker compiles PySpark again, which
takes seconds before the first task. The same PySpark is installed as a package, and Python keeps its compiled modules.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

_ARCHIVES = os.path.join(os.sep, "python", "lib")


def without_archives(path: Sequence[str], is_file: Callable[[str], bool] = os.path.isfile) -> list[str]:
    """Return `path`, a `sys.path`, without Spark's archives of modules that can be imported from folders.

    A Spark distribution has the folder `python/` next to `python/lib/`; it replaces the archive. In the
    package that pip installs, Spark's home is the package `pyspark` itself; the archive is left out if `path` leads to
    that package. Any other archive stays, and so does the order of the other entries.
    """
    kept: list[str] = []
    for index, entry in enumerate(path):
        for replacement in _instead_of(entry, path[index + 1 :], is_file):
            if replacement not in kept:
                kept.append(replacement)
    return kept


def _instead_of(entry: str, later: Sequence[str], is_file: Callable[[str], bool]) -> list[str]:
    folder, name = os.path.split(entry)
    package = "pyspark" if name == "pyspark.zip" else "py4j" if name.startswith("py4j-") else ""
    if not package or not folder.endswith(_ARCHIVES):
        return [entry]
    home = folder.removesuffix(_ARCHIVES)

    def has_package(entry: str) -> bool:
        return is_file(os.path.join(entry, package, "__init__.py"))

    unpacked = os.path.join(home, "python")
    if has_package(unpacked):
        return [unpacked]
    # The first one is what Python imports. Another PySpark would not fit the JVM.
    first = next(filter(has_package, later), None)
    return [] if first == os.path.dirname(home) else [entry]
