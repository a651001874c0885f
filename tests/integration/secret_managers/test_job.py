"""A job with a secret of a secret manager: the server gets it, and no file and no output of the job has it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from penstock_emulators.oracle.kill import python
from penstock_emulators.postgres import PostgresServer
from tests.support import secret_managers as servers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=40)]

# The servers of the tests ask for no password, so the name of the session shows what the job has read.
SECRET = "hunter2-of-the-job"


def test_the_server_gets_the_secret_and_nothing_else_has_it(tmp_path: Path) -> None:
    with servers.vault(tmp_path) as vault, PostgresServer.start() as server:
        path = vault.put("shop", json.dumps({"password": SECRET}))
        with psycopg.connect(server.dsn(), autocommit=True) as shop:
            shop.execute("create table orders (id int primary key)")
            shop.execute("create publication shop for table orders")
            shop.execute("select pg_create_logical_replication_slot('penstock', 'pgoutput')")
            shop.execute("insert into orders values (1)")
            job = _job(tmp_path / "job", f"{server.dsn()} application_name=${{vault:{path}#password}}")
            output = _run(job, vault.environment, tmp_path, shop)
    assert "${vault:" in job.read_text()
    assert SECRET not in output
    files = [file for file in (tmp_path / "job").rglob("*") if file.is_file()]
    assert any(b"orders" in file.read_bytes() for file in files if file.suffix == ".jsonl")
    assert [file for file in files if SECRET.encode() in file.read_bytes()] == []


def _job(folder: Path, dsn: str) -> Path:
    parameters = {"dsn": dsn, "publication": "shop", "slot": "penstock", "output": str(folder / "output")}
    runner = {"checkpoint_dir": str(folder / "checkpoint"), "master": "local[2]"}
    folder.mkdir()
    file = folder / "job.yaml"
    content = {"template": "postgres-to-files", "parameters": parameters, "runner": runner}
    file.write_text(json.dumps(content))  # JSON is YAML
    return file


def _wait(process: subprocess.Popen[bytes], met: Callable[[], object], log: Path) -> None:
    wait_until(lambda: met() or process.poll() is not None, log.read_text)
    assert process.poll() is None, log.read_text()


def _run(job: Path, environment: dict[str, str], folder: Path, shop: psycopg.Connection) -> str:
    """Run the job until its first line is published; return its output, and the outputs of commands about it."""
    log, variables = folder / "job.log", {**os.environ, **environment}
    command = python("penstock.cli.main", "run", str(job), "--progress", "json")
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=variables, stdout=out, stderr=subprocess.STDOUT)
    try:
        sessions = "select count(*) from pg_stat_activity where application_name = %s"
        _wait(process, lambda: shop.execute(sessions, (SECRET,)).fetchone() != (0,), log)
        _wait(process, lambda: list((job.parent / "output").rglob("*.jsonl")), log)
    finally:
        process.terminate()
        process.wait(60)
    texts = [log.read_text()]
    for name in ("plan", "status"):
        words = python("penstock.cli.main", name, str(job), "--json")
        texts.append(subprocess.run(words, env=variables, capture_output=True, text=True, check=True).stdout)
    return "\n".join(texts)
