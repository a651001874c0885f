"""The requests to YDB, over the SDK's driver: discovery, authentication and connections are the SDK's.

Messages of StreamRead are parsed here and not by the SDK's reader. That reader makes some ten objects for each record,
which costs several times the CPU, and every batch would have to pass through the thread of its asyncio loop.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from typing import Any

import ydb
from penstock.errors import SetupError, UnavailableError
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.process_local import ProcessLocal
from penstock.io.change_streams.status import UnreachableError
from penstock.io.ydb.description import Description, PartitionDescription
from penstock.io.ydb.errors import classify_status
from penstock.io.ydb.record import Table, TableColumn
from penstock.io.ydb.source import ChangeStream, Connection
from penstock.io.ydb.steps import Message
from penstock.io.ydb.stream import DAY, Data, EndOfPartition, Event, Started, Status
from penstock.timestamps import NANOS

# The SDK's stubs and the check of an operation's status are not public. They are what its own clients call (ydb 3.33).
from ydb import _apis, default_pem, issues
from ydb._grpc.common.protos import (
    ydb_discovery_pb2,
    ydb_status_codes_pb2,
    ydb_table_pb2,
    ydb_topic_pb2,
    ydb_value_pb2,
)
from ydb.connection import Connection as SdkConnection

_CONNECT_SECONDS = 10.0
_REQUEST_SECONDS = 20.0
_SUCCESS = ydb_status_codes_pb2.StatusIds.SUCCESS
_Read = ydb_topic_pb2.StreamReadMessage
_TABLE_ONLY = ydb_table_pb2.ChangefeedDescription

_MODES = {1: "KEYS_ONLY", 2: "UPDATES", 3: "NEW_IMAGE", 4: "OLD_IMAGE", 5: "NEW_AND_OLD_IMAGES"}
_FORMATS = {1: "JSON", 2: "DYNAMODB_STREAMS_JSON", 3: "DEBEZIUM_JSON"}
_GZIP = ydb_topic_pb2.CODEC_GZIP

_CLIENTS: ProcessLocal[Client] = ProcessLocal()


def client_for(stream: ChangeStream, connection: Connection) -> Client:
    """Return this process's client for a changefeed."""
    return _CLIENTS.get((stream, connection), lambda: Client(stream, connection))


class Client:
    """Requests about one changefeed. Thread-safe."""

    def __init__(self, stream: ChangeStream, connection: Connection) -> None:
        self._stream, self._connection = stream, connection
        self.backoff = Backoff("YDB", UnavailableError)
        self._made: Any = None
        self._turn = threading.Lock()

    def describe(self) -> tuple[Description | None, tuple[str, ...]]:
        """Return what YDB says about the changefeed (None: the table has none), and the names of the table's.

        Raises:
            UnreachableError: ask again later.
            SetupError: there is no such table, or the credentials may not see it.
        """
        with self._explained():
            described = self._describe_table()
            names = tuple(feed.name for feed in described.changefeeds)
            feed = next(
                (each for each in described.changefeeds if each.name == self._stream.changefeed), None
            )
            if feed is None:
                return None, names
            request = ydb_topic_pb2.DescribeTopicRequest(path=self._stream.topic_path, include_stats=True)
            topic = self._ask(request, _apis.TopicService, "DescribeTopic", ydb_topic_pb2.DescribeTopicResult)
        return _description(self._stream, described, feed, topic), names

    def describe_columns(self) -> tuple[tuple[TableColumn, ...], tuple[str, ...]]:
        """Return the columns of the table and the names of its key; raises what `describe` raises."""
        with self._explained():
            described = self._describe_table()
        return _columns(described), tuple(described.primary_key)

    def commit(self, consumer: str, partition: int, offset: int) -> None:
        """Commit an offset of a consumer; raises what `describe` raises."""
        request = ydb_topic_pb2.CommitOffsetRequest(
            path=self._stream.topic_path, partition_id=partition, consumer=consumer, offset=offset
        )
        with self._explained():
            self._ask(request, _apis.TopicService, "CommitOffset", ydb_topic_pb2.CommitOffsetResult)

    def open(self, partition: int, read_from: int, seconds: float = DAY) -> Call:
        """Start reading a partition, without a consumer; see `stream.Opener`."""
        settings = _Read.InitRequest.TopicReadSettings(
            path=self._stream.topic_path, partition_ids=[partition]
        )
        if read_from:
            settings.read_from.FromNanoseconds(read_from)
        # With `auto_partitioning_support` the server says when a partition ends, and names its children.
        init = _Read.InitRequest(
            topics_read_settings=[settings], reader_name="penstock", auto_partitioning_support=True
        )
        outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        outgoing.put(_Read.FromClient(init_request=init))
        with self._explained():
            # `iter` ends at None, which `cancel` puts: gRPC's thread for requests waits in it.
            answers = self._driver()(
                iter(outgoing.get, None),
                _apis.TopicService.Stub,
                _apis.TopicService.StreamRead,
                # Always set: the SDK's own limit is 10 minutes.
                settings=ydb.BaseRequestSettings().with_timeout(seconds),
            )
        return Call(answers, outgoing, str(self._stream), partition, self._explained, self._token)

    def _describe_table(self) -> Any:
        session = self._ask(
            ydb_table_pb2.CreateSessionRequest(),
            _apis.TableService,
            "CreateSession",
            ydb_table_pb2.CreateSessionResult,
        ).session_id
        try:
            request = ydb_table_pb2.DescribeTableRequest(session_id=session, path=self._stream.table_path)
            return self._ask(request, _apis.TableService, "DescribeTable", ydb_table_pb2.DescribeTableResult)
        finally:
            # The server ends an idle session itself. An error here would hide the answer, or the error of the request.
            with suppress(issues.Error):
                self._ask(
                    ydb_table_pb2.DeleteSessionRequest(session_id=session),
                    _apis.TableService,
                    "DeleteSession",
                    None,
                )

    def _ask(self, request: Any, service: Any, method: str, result_type: Any) -> Any:
        settings = ydb.BaseRequestSettings().with_timeout(_REQUEST_SECONDS)
        response = self._driver()(request, service.Stub, method, settings=settings)
        # The SDK's own check of a status (private, ydb 3): it raises the SDK's class of error for the status.
        issues._process_response(response.operation)
        if result_type is None:
            return None
        result = result_type()
        response.operation.result.Unpack(result)
        return result

    def _token(self) -> str:
        credentials = self._driver()._credentials
        return "" if credentials is None else credentials.get_auth_token()

    def _driver(self) -> Any:
        with self._turn:
            if self._made is None:
                self._made = _connected(self._stream, self._connection)
            return self._made

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the SDK's errors within the block into the errors of a reader."""
        try:
            yield
        except issues.Error as error:
            status = getattr(error.status, "name", None) or type(error).__name__.upper()
            raise classify_status(status, str(error.message), str(self._stream)) from None
        except ValueError as error:
            # gRPC's error for a channel that the SDK closed because another call on it had failed.
            if "closed" not in str(error).lower():
                raise
            raise UnreachableError(f"{self._stream}: {error}") from None


class Call:
    """One StreamRead call for one partition; see `stream.Call`."""

    def __init__(
        self,
        answers: Any,
        outgoing: queue.SimpleQueue[Any],
        stream: str,
        partition: int,
        explained: Callable[[], Any],
        token: Callable[[], str],
    ) -> None:
        self._answers, self._outgoing, self._stream = answers, outgoing, stream
        self._partition = partition
        self._explained, self._token = explained, token
        self._session = 0

    def __iter__(self) -> Iterator[Event]:
        with self._explained():
            for message in self._answers:
                if message.status != _SUCCESS:
                    status = ydb_status_codes_pb2.StatusIds.StatusCode.Name(message.status)
                    raise classify_status(status, _issue_text(message.issues), self._stream)
                event = self._event(message)
                if event is not None:
                    yield event

    def start(self, offset: int) -> None:
        response = _Read.StartPartitionSessionResponse(partition_session_id=self._session, read_offset=offset)
        self._send(start_partition_session_response=response)

    def grant(self, size: int) -> None:
        self._send(read_request=_Read.ReadRequest(bytes_size=size))

    def ask_status(self) -> None:
        request = _Read.PartitionSessionStatusRequest(partition_session_id=self._session)
        self._send(partition_session_status_request=request)

    def refresh_token(self) -> None:
        token = self._token()
        if token:
            self._send(update_token_request=ydb_topic_pb2.UpdateTokenRequest(token=token))

    def cancel(self) -> None:
        self._outgoing.put(None)
        self._answers.cancel()

    def _send(self, **message: Any) -> None:
        self._outgoing.put(_Read.FromClient(**message))

    def _event(self, message: Any) -> Event | None:
        kind = message.WhichOneof("server_message")
        if kind == "read_response":
            response = message.read_response
            return Data(_messages(response, self._session), response.bytes_size)
        if kind == "partition_session_status_response":
            status = message.partition_session_status_response
            return Status(status.partition_offsets.end, _nanoseconds(status.write_time_high_watermark))
        if kind == "start_partition_session_request":
            start = message.start_partition_session_request
            # A server may offer the children of the partition too. Without an answer it sends nothing of them.
            if start.partition_session.partition_id != self._partition:
                return None
            self._session = start.partition_session.partition_session_id
            return Started(start.partition_offsets.end)
        if kind == "end_partition_session":
            end = message.end_partition_session
            return EndOfPartition(tuple(end.child_partition_ids), tuple(end.adjacent_partition_ids))
        if kind == "stop_partition_session_request":
            # The partition moves to another node, for example. A new stream finds it there.
            raise UnreachableError(f"{self._stream}: the server stopped the partition's session")
        return None


def _messages(response: Any, session: int) -> list[Message]:
    """Return the messages of a partition session."""
    found: list[Message] = []
    for data in response.partition_data:
        if data.partition_session_id != session:
            continue
        for batch in data.batches:
            written_at = _nanoseconds(batch.written_at)
            packed = batch.codec == _GZIP
            for each in batch.message_data:
                value = _decompressed(each.data) if packed else each.data
                # Attributes of protobuf messages are slow, so each is read once; this runs for each record.
                created = each.created_at
                created_at = created.seconds * NANOS + created.nanos
                found.append(Message(each.offset, value, _message_key(each), created_at, written_at))
    return found


def _message_key(message: Any) -> bytes:
    """Return the key that YDB puts into the metadata of a message in the Debezium format; empty if there is none."""
    for item in message.metadata_items:
        if item.key == "__key":
            return bytes(item.value)
    return b""


def _decompressed(data: bytes) -> bytes:
    # YDB writes changefeeds without compression. A topic that is filled by a program may have another codec.
    import gzip

    return gzip.decompress(data)


def _nanoseconds(timestamp: Any) -> int:
    return timestamp.seconds * NANOS + timestamp.nanos


def _issue_text(found: Any) -> str:
    """Return the texts of nested issues as one line."""
    texts: list[str] = []
    waiting = list(found)
    while waiting:
        issue = waiting.pop(0)
        if issue.message:
            texts.append(issue.message)
        waiting[:0] = issue.issues
    return "; ".join(texts)


def _description(stream: ChangeStream, described: Any, feed: Any, topic: Any) -> Description:
    mode, format = _MODES.get(feed.mode, ""), _FORMATS.get(feed.format, "")
    key = tuple(described.primary_key)
    return Description(
        Table(stream.table, stream.changefeed, mode, format, _columns(described), key),
        feed.virtual_timestamps,
        feed.resolved_timestamps_interval.ToNanoseconds() / NANOS,
        feed.HasField("initial_scan_progress"),
        feed.schema_changes,
        feed.state == _TABLE_ONLY.STATE_DISABLED,
        topic.retention_period.ToNanoseconds() / NANOS,
        (topic.self.created_at.plan_step, topic.self.created_at.tx_id),
        tuple(map(_partition, topic.partitions)),
        tuple(consumer.name for consumer in topic.consumers),
    )


def _partition(partition: Any) -> PartitionDescription:
    stats = partition.partition_stats
    return PartitionDescription(
        partition.partition_id,
        partition.active,
        tuple(partition.parent_partition_ids),
        tuple(partition.child_partition_ids),
        stats.partition_offsets.start,
        # Without statistics an end of 0 would look like an empty partition.
        stats.partition_offsets.end if partition.HasField("partition_stats") else None,
        stats.last_write_time.ToNanoseconds(),
    )


def _columns(described: Any) -> tuple[TableColumn, ...]:
    return tuple(TableColumn(column.name, *_type(column.type)) for column in described.columns)


def _type(type_: Any) -> tuple[str, bool]:
    """Return YDB's name of a type, and whether it is optional."""
    if type_.HasField("optional_type"):
        return _type(type_.optional_type.item)[0], True
    if type_.HasField("decimal_type"):
        return f"Decimal({type_.decimal_type.precision},{type_.decimal_type.scale})", False
    if type_.HasField("pg_type"):
        return f"pg{type_.pg_type.type_name}", False
    name = ydb_value_pb2.Type.PrimitiveTypeId.Name(type_.type_id)
    return _SPELLED.get(name, name.capitalize()), False


_SPELLED = {"JSON_DOCUMENT": "JsonDocument", "DYNUMBER": "DyNumber"}


def _connected(stream: ChangeStream, connection: Connection) -> Any:
    """Return a driver that knows the endpoints of the database.

    Raises:
        UnreachableError: ask again later.
        SetupError: the credentials cannot be read or were not accepted.
    """
    config = ydb.DriverConfig(
        endpoint=connection.endpoint,
        database=stream.database,
        root_certificates=_root_certificates(connection),
    )
    config.set_database(stream.database)
    try:
        config.credentials = _credentials(config, connection)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise SetupError(
            f"{stream}: the credentials cannot be read: {type(error).__name__}: {error}. Check the file, and install "
            "ydb[yc] for keys of a service account"
        ) from None
    _check_discovery(config)
    driver = ydb.Driver(config)
    # It is not used, and it would warn at the end of the process that it was not closed.
    driver.topic_client.close()
    try:
        driver.wait(timeout=_CONNECT_SECONDS)
    except FutureTimeoutError:  # in Python 3.10 not the built-in TimeoutError
        driver.stop(timeout=1)
        raise UnreachableError(f"{stream}: the endpoints that YDB names cannot be reached") from None
    return driver


def _check_discovery(config: Any) -> None:
    """Ask once for the endpoints; raises the SDK's errors.

    The driver asks in a thread that logs its errors and tries again, so it never says that credentials were refused.
    """
    request = ydb_discovery_pb2.ListEndpointsRequest(database=config.database)
    settings = ydb.BaseRequestSettings().with_timeout(_CONNECT_SECONDS)
    with SdkConnection(config.endpoint, config) as connection:
        response = connection(request, _apis.DiscoveryService.Stub, "ListEndpoints", settings=settings)
    issues._process_response(response.operation)


def _root_certificates(connection: Connection) -> bytes | None:
    """Return the certificates of authorities; None: a connection without TLS.

    Raises:
        SetupError: the file cannot be read.
    """
    if not connection.endpoint.startswith("grpcs://"):
        return None
    if not connection.root_certificates:
        # Pass the SDK's own default explicitly: its login of a user forgets that the endpoint began with grpcs (3.33).
        certificates: bytes = ydb.load_ydb_root_certificate() or default_pem.load_default_pem()
        return certificates
    try:
        with open(connection.root_certificates, "rb") as file:
            return file.read()
    except OSError as error:
        raise SetupError(f"root_certificates cannot be read: {error}") from None


def _credentials(config: Any, connection: Connection) -> Any:
    if connection.token:
        return ydb.AccessTokenCredentials(connection.token)
    if connection.user:
        return ydb.StaticCredentials(config, connection.user, connection.password)
    if connection.service_account_file or connection.metadata_credentials:
        from ydb import iam  # it needs packages that the SDK does not install by itself

        if connection.metadata_credentials:
            return iam.MetadataUrlCredentials()
        return iam.ServiceAccountCredentials.from_file(connection.service_account_file)
    # The SDK falls back to the metadata service of a virtual machine, which waits for seconds where there is none.
    if (
        any(name.startswith("YDB_") and "CREDENTIALS" in name for name in os.environ)
        or "YDB_USER" in os.environ
    ):
        return ydb.credentials_from_env_variables()
    return ydb.AnonymousCredentials()
