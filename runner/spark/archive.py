"""An archive of Spark's classes (class data sharing), with which Spark's JVM starts in about half the time.

python -m penstock.runner.spark.archive     makes it, and every later start finds it

In a virtual environment it is in the folder `penstock` of that environment: other users of an image find it there, and
it is deleted with the environment. Elsewhere, or if that folder cannot be written, it is in the user's cache folder.

It is 90 MB and takes ten seconds to make, so a pipeline never makes it: run the command when you install, or when you
build an image. An archive is for one Java and one Spark. The JVM ignores an archive that does not fit, but crashes on
one that is cut off (tried with Java 17). So it gets its name when it is complete, and the name contains its length.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from penstock.runner.spark.class_archive import archive_name, find_archive, writable_folder
from penstock.runner.spark.errors import SparkStartError
from penstock.runner.spark.java import find_java
from penstock.runner.spark.own_session import OwnSession
from penstock.runner.spark.warm_up import warm_up

_WAIT_SECONDS = 120.0
"""How long to wait for the end of the JVM, which writes 90 MB first."""


def make_archive() -> Path:
    """Start Spark, run a job, and archive the classes that it has loaded; return the archive.

    Raises:
        SparkStartError: Spark does not start, or this Java makes no archive.
    """
    java = find_java()
    if (found := find_archive(java)) is not None:
        return found
    folder, name = writable_folder(), archive_name(java)
    draft = folder / f"{name}.{os.getpid()}"
    options = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={draft} -Xlog:cds=off"}
    session = OwnSession.launch("local[2,4]", options)
    try:
        session.connect()
        context = session.start_context()
        warm_up(context)
        context.stop()
        assert session.jvm is not None
        session.jvm.end(_WAIT_SECONDS)  # the JVM writes the archive at its end
        if not draft.exists():
            raise SparkStartError(
                f"Java {java.version} at {java.home} made no archive: it lacks the archive of its own classes. "
                "Spark starts without one; another Java, for example Debian's, makes one"
            )
        return draft.rename(folder / f"{name}-{draft.stat().st_size}.jsa")
    finally:
        session.end()
        draft.unlink(missing_ok=True)


def _main() -> int:
    try:
        print(f"Spark's classes are in {make_archive()}")
    except SparkStartError as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(_main())
