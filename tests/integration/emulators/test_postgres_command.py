"""`penstock emulator postgres` as a newcomer starts it: in a shell, with Ctrl-C at the end."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from penstock_emulators.postgres import PostgresServer
from penstock_emulators.server_process import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long(seconds=5)

COMMAND = [sys.executable, "-m", "penstock.cli.main", "emulator", "postgres"]


@contextmanager
def started(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield the process and what it printed up to the psql command."""
    process = subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if line.startswith("psql"):
                break
        yield process, printed
    finally:
        process.terminate()  # SIGKILL would leave its temporary folder behind
        process.wait(30)


def dsn_of(printed: str) -> str:
    (dsn,) = re.findall(r"^dsn: +(.*)$", printed, re.MULTILINE)
    return str(dsn)


def test_the_server_can_be_read_with_what_the_command_prints_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    temporary = set(Path(tempfile.gettempdir()).glob("penstock-postgres-*"))
    with started() as (process, printed):
        (psql,) = re.findall(r"^psql: +(.*)$", printed, re.MULTILINE)
        asked = subprocess.run(
            ["bash", "-c", f"{psql} -X -A -t -c 'show wal_level'"], capture_output=True, text=True, timeout=60
        )
        assert asked.stdout.strip() == "logical", asked.stderr
        with psycopg.connect(dsn_of(printed), autocommit=True) as client:
            (folder,) = client.execute("show data_directory").fetchone() or ("",)
            assert Path(folder) not in temporary
            # The client stays connected: the server does not wait for it.
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
    assert not Path(folder).exists()


def test_the_server_ends_when_the_command_is_killed() -> None:
    with started() as (process, printed), psycopg.connect(dsn_of(printed), autocommit=True) as client:
        (folder,) = client.execute("show data_directory").fetchone() or ("",)
        postmaster = int(Path(folder, "postmaster.pid").read_text().split()[0])
        process.kill()
        wait_until(lambda: not Path("/proc", str(postmaster)).exists(), "the server outlives the command")
        # A clean end, which a folder of --data needs.
        assert not Path(folder, "postmaster.pid").exists()
    shutil.rmtree(folder)


def test_a_given_folder_keeps_its_data_and_its_version(tmp_path: Path) -> None:
    folder = ("--data", str(tmp_path / "shop"))
    for _ in range(2):
        with started(*folder, *(() if (tmp_path / "shop").exists() else ("--version", "17"))) as (
            process,
            printed,
        ):
            assert "PostgreSQL 17" in printed
            with psycopg.connect(dsn_of(printed), autocommit=True) as client:
                client.execute("create table if not exists starts (at timestamptz)")
                client.execute("insert into starts values (now())")
                (starts,) = client.execute("select count(*) from starts").fetchone() or (0,)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    assert starts == 2


def test_a_server_whose_port_was_taken_before_it_listened_starts_on_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken: int = other.getsockname()[1]
        ports = iter((taken, free_port()))
        monkeypatch.setattr("penstock_emulators.postgres.free_port", lambda: next(ports))
        with PostgresServer.start() as server, psycopg.connect(server.dsn()) as client:
            assert server.port != taken
            assert client.execute("select 1").fetchone() == (1,)
