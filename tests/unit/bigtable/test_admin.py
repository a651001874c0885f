"""The checks before a read: facts that the admin API refuses to tell are unknown; an unavailable API is retried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from penstock.io.bigtable.admin import Admin
from penstock.io.bigtable.source import ChangeStream, Connection
from penstock.io.change_streams.status import UnreachableError

STREAM = ChangeStream("p", "i", "t", 0, None)


class Refusing(grpc.GenericRpcHandler):
    """Answers every call with one status."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def service(self, handler_call_details: object) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(lambda request, context: context.abort(self._code, "no"))


@pytest.fixture
def refused_with() -> Iterator[Callable[[grpc.StatusCode], Admin]]:
    """Make the admin client of a service that refuses everything with a status."""
    servers: list[grpc.Server] = []

    def make(code: grpc.StatusCode) -> Admin:
        servers.append(grpc.server(ThreadPoolExecutor(2), handlers=(Refusing(code),)))
        port = servers[-1].add_insecure_port("127.0.0.1:0")
        servers[-1].start()
        return Admin(STREAM, Connection(emulator_host=f"127.0.0.1:{port}"))

    yield make
    for server in servers:
        server.stop(None)


@pytest.mark.parametrize(
    "code", ["NOT_FOUND", "PERMISSION_DENIED", "INVALID_ARGUMENT", "FAILED_PRECONDITION"]
)
def test_facts_that_the_admin_api_refuses_to_tell_are_unknown(
    code: str, refused_with: Callable[..., Admin]
) -> None:
    admin = refused_with(grpc.StatusCode[code])
    assert (admin.routing(), admin.retention()) == ("", 0)
    admin.close()


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED"])
def test_calls_to_an_unavailable_admin_api_are_retried(code: str, refused_with: Callable[..., Admin]) -> None:
    admin = refused_with(grpc.StatusCode[code])
    with pytest.raises(UnreachableError, match=code):
        admin.routing()
    admin.close()
