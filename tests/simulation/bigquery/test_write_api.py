"""The client of the Storage Write API against a gRPC server that answers as Google documents it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.cloud.bigquery_storage_v1 import types
from google.protobuf import any_pb2
from google.rpc import status_pb2

from penstock.io.bigquery import write_api
from penstock.io.bigquery.columns import Field
from penstock.io.bigquery.errors import (
    BigQueryTargetError,
    OffsetExistsError,
    RowsRefusedError,
    StreamEndedError,
)
from penstock.io.bigquery.rows import layout_of
from penstock.io.bigquery.services import DEFAULT_STREAM
from penstock.io.bigquery.target import BigQueryTarget
from penstock.io.bigquery.write_api import BigQueryWriteApi
from penstock.io.staging.delivery import TargetUnavailableError

SERVICE = "/google.cloud.bigquery.storage.v1.BigQueryWrite/"
LAYOUT = layout_of((Field("k", "INT64"), Field("t", "STRING")))
ROW = LAYOUT.encode({"k": 1, "t": "é"})
TABLE = "projects/p/datasets/d/tables/orders"

Code = types.StorageError.StorageErrorCode


def response(code: grpc.StatusCode, storage: Code | None = None, **more: Any) -> types.AppendRowsResponse:
    details = []
    if storage is not None:
        packed = any_pb2.Any()
        packed.Pack(types.StorageError.pb(types.StorageError(code=storage)))
        details.append(packed)
    status = status_pb2.Status(code=code.value[0], message="said", details=details)
    return types.AppendRowsResponse(error=status, **more)


class Server(grpc.GenericRpcHandler):
    """Answers each append by `answer`, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[types.AppendRowsRequest] = []
        self.connections = 0
        self.answer: Callable[[], types.AppendRowsResponse | grpc.StatusCode | None] = lambda: (
            types.AppendRowsResponse(append_result=types.AppendRowsResponse.AppendResult(offset=0))
        )

    def service(self, handler_call_details: Any) -> Any:
        name = handler_call_details.method.removeprefix(SERVICE)
        if name == "AppendRows":
            return grpc.stream_stream_rpc_method_handler(self._append)
        return grpc.unary_unary_rpc_method_handler({"CreateWriteStream": self._create}[name])

    def _create(self, request: bytes, context: Any) -> bytes:
        created = types.CreateWriteStreamRequest.deserialize(request)
        assert created.write_stream.type_ == types.WriteStream.Type.COMMITTED
        return types.WriteStream.serialize(types.WriteStream(name=f"{created.parent}/streams/s1"))

    def _append(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        self.connections += 1
        for request in requests:
            self.requests.append(types.AppendRowsRequest.deserialize(request))
            answer = self.answer()
            if isinstance(answer, grpc.StatusCode):
                context.abort(answer, "said")
            if answer is not None:
                yield types.AppendRowsResponse.serialize(answer)


@pytest.fixture
def server() -> Iterator[Server]:
    handler, running = Server(), grpc.server(ThreadPoolExecutor(4))
    running.add_generic_rpc_handlers((handler,))
    handler.port = running.add_insecure_port("localhost:0")  # type: ignore[attr-defined]
    running.start()
    yield handler
    running.stop(None)


@pytest.fixture
def api(server: Server) -> Iterator[BigQueryWriteApi]:
    address = f"localhost:{server.port}"  # type: ignore[attr-defined]
    opened = BigQueryWriteApi(BigQueryTarget("p", "d", endpoint="http://unused", write_endpoint=address))
    yield opened
    opened.close()


def append(api: BigQueryWriteApi, offset: int | None = 0) -> None:
    stream = DEFAULT_STREAM if offset is None else api.create_stream("orders")
    api.append("orders", stream, LAYOUT, [ROW, ROW], offset)


def test_the_rows_of_a_stream_have_an_offset_and_those_of_the_default_stream_have_none(
    server: Server, api: BigQueryWriteApi
) -> None:
    append(api, 0)
    append(api, 7)
    append(api, None)
    one, two, default = server.requests
    assert (one.write_stream, two.write_stream) == (f"{TABLE}/streams/s1",) * 2
    assert default.write_stream == f"{TABLE}/streams/_default"
    pb = types.AppendRowsRequest.pb
    assert [(pb(each).HasField("offset"), pb(each).offset.value) for each in server.requests] == [
        (True, 0),
        (True, 7),
        (False, 0),
    ]
    assert list(one.proto_rows.rows.serialized_rows) == [ROW, ROW]
    # The schema goes with the first request of each connection only.
    names = [
        [field.name for field in each.proto_rows.writer_schema.proto_descriptor.field]
        for each in server.requests
    ]
    assert names == [["k", "t"], [], ["k", "t"]]
    assert server.connections == 2


S = grpc.StatusCode


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (response(S.ALREADY_EXISTS, Code.OFFSET_ALREADY_EXISTS), OffsetExistsError),
        (response(S.ALREADY_EXISTS), OffsetExistsError),
        (response(S.OUT_OF_RANGE, Code.OFFSET_OUT_OF_RANGE), BigQueryTargetError),
        (response(S.INVALID_ARGUMENT, Code.STREAM_FINALIZED), StreamEndedError),
        (response(S.NOT_FOUND, Code.STREAM_NOT_FOUND), StreamEndedError),
        (S.NOT_FOUND, StreamEndedError),
        (S.UNAVAILABLE, TargetUnavailableError),
        (S.ABORTED, TargetUnavailableError),
        (S.PERMISSION_DENIED, BigQueryTargetError),
        (response(S.INVALID_ARGUMENT, Code.SCHEMA_MISMATCH_EXTRA_FIELDS), TargetUnavailableError),
        (response(S.INTERNAL), TargetUnavailableError),
    ],
    ids=str,
)
def test_each_answer_of_the_write_api_raises_its_error(
    server: Server, api: BigQueryWriteApi, answer: Any, expected: type[Exception]
) -> None:
    server.answer = lambda: answer
    with pytest.raises(expected):
        append(api)


def test_a_default_stream_that_is_not_found_is_an_error_and_not_an_ended_stream(
    server: Server, api: BigQueryWriteApi
) -> None:
    server.answer = lambda: S.NOT_FOUND
    with pytest.raises(BigQueryTargetError, match="create the dataset"):
        append(api, None)


def test_refused_rows_are_named_without_their_values(server: Server, api: BigQueryWriteApi) -> None:
    bad = types.RowError(index=1, code=types.RowError.RowErrorCode.FIELDS_ERROR, message="secret value")
    server.answer = lambda: response(S.INVALID_ARGUMENT, row_errors=[bad])
    with pytest.raises(RowsRefusedError) as raised:
        append(api)
    assert raised.value.reasons == {1: "BigQuery says FIELDS_ERROR"}


def test_a_connection_without_an_answer_is_given_up_and_the_next_append_opens_another(
    server: Server, api: BigQueryWriteApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, server.answer = server.answer, lambda: None
    with monkeypatch.context() as patch:
        patch.setattr(write_api, "_ANSWER_SECONDS", 0.2)
        with pytest.raises(TargetUnavailableError, match="CANCELLED"):
            append(api)
    server.answer = answered
    append(api)
    assert server.connections == 2
