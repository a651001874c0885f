"""Self-managed endpoints: TLS with a private authority, mutual TLS, and files that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.cloud.spanner_v1.types import result_set, spanner

from penstock.errors import SetupError
from penstock.io.change_streams.status import UnreachableError
from penstock.io.spanner.client import Client
from penstock.io.spanner.query import CURRENT_TIME, Query
from penstock.io.spanner.source import ChangeStream, Connection
from tests.support.certificates import certificate

STREAM = ChangeStream("p", "i", "d", "Changes", 0, None)


def answer_session(request: bytes, context: Any) -> bytes:
    return bytes(spanner.Session.pb()(name="session").SerializeToString())


def answer_query(request: bytes, context: Any) -> Iterator[bytes]:
    answer = result_set.PartialResultSet.pb()()
    answer.metadata.row_type.fields.add()
    answer.values.add().string_value = "2026-01-01T00:00:00Z"
    yield answer.SerializeToString()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority and the certificates that it signed."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = certificate(folder, "authority")
    certificate(folder, "server", authority)
    certificate(folder, "client", authority)
    certificate(folder, "stranger")
    return folder


@pytest.fixture(scope="module")
def endpoint(files: Path) -> Iterator[str]:
    """A service that asks clients for a certificate of the authority."""
    handlers = {
        "CreateSession": grpc.unary_unary_rpc_method_handler(answer_session),
        "ExecuteStreamingSql": grpc.unary_stream_rpc_method_handler(answer_query),
    }
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("google.spanner.v1.Spanner", handlers)]
    )
    credentials = grpc.ssl_server_credentials(
        [((files / "server.key").read_bytes(), (files / "server.pem").read_bytes())],
        (files / "authority.pem").read_bytes(),
        require_client_auth=True,
    )
    port = server.add_secure_port("localhost:0", credentials)
    server.start()
    yield f"localhost:{port}"
    server.stop(0).wait(60)


def client(endpoint: str, files: Path, name: str) -> Client:
    connection = Connection(
        api_endpoint=endpoint,
        root_certificates=str(files / "authority.pem"),
        client_certificate=str(files / f"{name}.pem"),
        client_key=str(files / f"{name}.key"),
    )
    return Client(STREAM, connection)


def test_a_client_with_a_certificate_of_the_authority_is_answered(endpoint: str, files: Path) -> None:
    assert client(endpoint, files, "client").rows(Query(CURRENT_TIME)) == [["2026-01-01T00:00:00Z"]]


def test_a_client_with_another_certificate_is_not_answered(endpoint: str, files: Path) -> None:
    with pytest.raises(UnreachableError, match="UNAVAILABLE"):
        client(endpoint, files, "stranger").rows(Query(CURRENT_TIME), patience=5)


def test_a_file_that_cannot_be_read_is_a_clear_error(endpoint: str, files: Path) -> None:
    with pytest.raises(
        SetupError, match=r"client_key .*missing.key' cannot be read: No such file.*every worker"
    ):
        Client(
            STREAM,
            Connection(
                api_endpoint=endpoint,
                client_certificate=str(files / "client.pem"),
                client_key=str(files / "missing.key"),
            ),
        )
