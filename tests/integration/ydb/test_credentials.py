"""Credentials and TLS, as the SDK offers them, against the test service."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import SetupError, UnavailableError
from penstock.io.ydb import ReadFromYdbChangefeed
from penstock_emulators.ydb import YdbEmulator
from penstock_emulators.ydb.database import Database
from penstock_emulators.ydb.server import Server
from tests.integration.ydb.conftest import Table
from tests.support.epochs import Epochs
from tests.support.waiting import join
from tests.unit.spanner.test_self_managed import certificate

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def guarded() -> Iterator[Table]:
    """A table of a service that asks for a token."""
    with YdbEmulator.start() as service:
        table = Table(service, "orders")
        service.control.add_user("penstock", "geheim")
        service.control.require_token("right")
        yield table


def test_a_token_reaches_every_call(guarded: Table) -> None:
    at = guarded.upsert(1)
    assert len(guarded.read_until(at, token="right")) >= 1
    with pytest.raises(SetupError, match="credentials"):
        guarded.source(token="wrong").check()
    with pytest.raises(SetupError, match="credentials"):
        guarded.source().check()


def test_a_user_logs_in_with_a_password(guarded: Table) -> None:
    at = guarded.upsert(2)
    assert len(guarded.read_until(at, user="penstock", password="geheim")) >= 1
    with pytest.raises(SetupError, match="credentials"):
        guarded.source(user="penstock", password="wrong").check()


def test_without_arguments_the_environment_of_the_sdk_counts(
    guarded: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YDB_ACCESS_TOKEN_CREDENTIALS", "right")
    # Another argument, so that this process makes a new client: clients are kept by their connection.
    guarded.source(start=time.time_ns() - 10**9).check()


def test_a_key_file_that_is_missing_is_named(guarded: Table, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="credentials cannot be read"):
        guarded.source(service_account_file=str(tmp_path / "missing.json")).check()


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, int]]:
    """A service with TLS in this process: its endpoint, its certificates, and the commit time of one change."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = certificate(folder, "authority")
    certificate(folder, "server", authority)
    certificate(folder, "other")
    database = Database("/local", time.time_ns)
    database.create_table("orders", {"id": "Uint64", "note": "Utf8"}, ["id"])
    database.add_changefeed("orders", "feed", virtual_timestamps=True, barrier_seconds=0.1)
    step, _ = database.commit([("upsert", "orders", [1], {"note": "x"})])
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[Server, int]:
        server = Server(database)
        tls = (folder / "server.key").read_bytes(), (folder / "server.pem").read_bytes()
        return server, await server.start(tls=tls)

    server, port = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    yield f"grpcs://localhost:{port}", folder, step * 1_000_000
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    join(thread)


def source(endpoint: str, **options: object) -> ReadFromYdbChangefeed:
    return ReadFromYdbChangefeed(
        endpoint=endpoint,
        database="/local",
        table="orders",
        changefeed="feed",
        unavailable_seconds=0,
        **options,  # type: ignore[arg-type]
    )


def test_tls_with_the_certificate_of_a_private_authority(secure: tuple[str, Path, int]) -> None:
    endpoint, folder, at = secure
    epochs = Epochs(source(endpoint, root_certificates=str(folder / "authority.pem")))
    epochs.run_until(at, 0.1)
    assert len(epochs.committed) == 1


def test_a_server_that_no_known_authority_signed_is_not_talked_to(secure: tuple[str, Path, int]) -> None:
    endpoint, folder, _ = secure
    for options in ({}, {"root_certificates": str(folder / "other.pem")}):
        with pytest.raises(UnavailableError):
            source(endpoint, **options).check()
    with pytest.raises(SetupError, match="cannot be read"):
        source(endpoint, root_certificates=str(folder / "missing.pem")).check()
