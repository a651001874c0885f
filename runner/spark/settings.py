"""The Spark settings that a session gets if the user does not set them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

DEFAULT_MASTER = "local[*,4]"
"""All cores. A task is tried four times: `local[*]` would fail the job with the first worker that dies."""

SETTINGS = {
    # An epoch costs half as much as over TCP, see docs/spark-submit.md.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "penstock.runner.daemon",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    # A worker that crashes in native code says where. Without this it cannot be told from one that was killed.
    "spark.python.worker.faulthandler.enabled": "true",
    # Speculation would run a second attempt of a slow task. It would read the source again, and the epoch would be
    # aborted.
    "spark.speculation": "false",
    "spark.cleaner.periodicGC.interval": "1min",
}
"""Settings of every session, also under spark-submit."""

SECRET = "spark.authenticate.secret"
LOOPBACK = "127.0.0.1"


def is_local(master: str) -> bool:
    """Whether driver, executors and workers all run on this machine."""
    return master.startswith("local")


def network_settings(settings: Mapping[str, str], new_secret: str) -> dict[str, str]:
    """Return settings that protect the driver's ports from other users, unless `settings` already contain them.

    `settings` are Spark's settings before the context starts, including spark-defaults.conf. `new_secret` is a random
    secret for sessions that need one.

    Without these settings the driver's RPC and its block manager listen on the machine's network address, and
    any client that connects can read blocks. On a local master they listen on loopback. Other users of the machine
    reach loopback too, so every session that can have a secret has one: Spark 4.3 makes the secret itself for local
    masters, YARN and Kubernetes (`SecurityManager.initializeAuth`), but wants one for `local-cluster`. The daemons
    of a standalone cluster must know the secret, so there only the user can pass it.
    """
    chosen: dict[str, str] = {}
    master = settings.get("spark.master", "")
    if is_local(master):
        chosen |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
        if "spark.driver.host" in settings:
            del chosen["spark.driver.bindAddress"]  # its default is the driver's host
    if "spark.authenticate" not in settings and _can_authenticate(master, settings):
        chosen["spark.authenticate"] = "true"
    if master.startswith("local-cluster") and chosen.get("spark.authenticate"):
        chosen[SECRET] = new_secret
    return {name: value for name, value in chosen.items() if name not in settings}


def _can_authenticate(master: str, settings: Mapping[str, str]) -> bool:
    if is_local(master) or master.startswith("k8s"):
        return True
    if master == "yarn":
        # The shuffle service in YARN's node managers accepts secrets only if the cluster was set up for them.
        return settings.get("spark.shuffle.service.enabled", "false") != "true"
    return any(name.startswith(SECRET) for name in settings)


def unprotected(settings: Mapping[str, str]) -> bool:
    """Whether the session's ports are open because there is no secret and the user has not chosen that."""
    return "spark.authenticate" not in settings


def local_folders(
    environment: Mapping[str, str], settings: Mapping[str, str], default: str
) -> tuple[str, ...]:
    """Return the folders for Spark's blocks as Spark itself finds them: the variable counts before the setting."""
    named = environment.get("SPARK_LOCAL_DIRS") or settings.get("spark.local.dir") or default
    return tuple(folder for folder in re.split(r"\s*,\s*", named.strip()) if folder)


def memory_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables of the driver's JVM and of its Python workers. A variable that the user has set stays.

    By default glibc keeps freed memory in up to eight heaps for each core, and Spark has hundreds of threads.
    """
    return {"MALLOC_ARENA_MAX": environment.get("MALLOC_ARENA_MAX", "2")}


def java_options(
    log4j: str, temporary: str, archive: str | None = None, *, of_user: str = "", heap: str | None = None
) -> str:
    """Return options for the driver's JVM, in front of `of_user`. `heap` is `spark.driver.memory`, if it is set.

    `log4j` is the URI of the log configuration, `temporary` the folder for sockets and unpacked libraries, `archive` an
    archive of Spark's classes (see `archive.py`). If the archive does not fit, the JVM starts without it, silently.

    - TieredStopAtLevel=1: the first compiler is enough, since the JVM only passes bytes on. Measured on two cores: an
      epoch with two exchanges costs 8 to 18 % less, a batch of 400,000 records the same.
    - ExitOnOutOfMemoryError: a JVM without heap would stop answering, or answer in part, and the pipeline could not
      report the reason.
    - UseSerialGC, Xms and NewSize: by default the JVM takes a heap of 1/64 of the machine's memory, and uses all of it
      before it collects. An idle pipeline had 80 to 180 MB more. An idle JVM uses all of the space for new objects
      too. With 16 MB a backlog of 200,000 changes to Kafka needs 53 collections, no full one, and 0.2 s of CPU time for
      them. Left out if the user chooses a heap, which may be too large for one thread, or a collector, because the JVM
      accepts only one.
    - ArchiveRelocationMode=0: by default the JVM (17.0.15 and 25) moves the archive to a random address, a defence
      against attacks, and so changes each page. At its own address 50 MB stay pages of the file, which the JVMs of a
      machine share.
    """
    chosen = heap is not None or re.search(r"-XX:[+-]Use\w+GC\b|-Xms", of_user)
    memory = "" if chosen else " -XX:+UseSerialGC -Xms96m -XX:NewSize=16m"
    shared = ""
    if archive:
        shared = (
            f" '-XX:SharedArchiveFile={archive}' -XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"
            " -Xlog:cds=off -Xlog:cds+dynamic=off"
        )
    return (
        f"-Dlog4j2.configurationFile={log4j} '-Djava.io.tmpdir={temporary}' -XX:TieredStopAtLevel=1 "
        f"-XX:+ExitOnOutOfMemoryError{memory}{shared} {of_user}".rstrip()
    )
