"""The gRPC services: the calls of discovery, scheme, table and topic that readers of changefeeds use.

Sources: the protocol files of YDB as the SDK has them (`ydb._grpc`); the SDK's own calls.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc
from ydb._grpc.common import (
    ydb_auth_v1_pb2_grpc,
    ydb_discovery_v1_pb2_grpc,
    ydb_scheme_v1_pb2_grpc,
    ydb_table_v1_pb2_grpc,
    ydb_topic_v1_pb2_grpc,
)
from ydb._grpc.common.protos import (
    ydb_auth_pb2,
    ydb_discovery_pb2,
    ydb_scheme_pb2,
    ydb_status_codes_pb2,
    ydb_table_pb2,
    ydb_topic_pb2,
    ydb_value_pb2,
)

from penstock_emulators.ydb.database import Database, Feed, StoredTable
from penstock_emulators.ydb.faults import Faults, StatusError
from penstock_emulators.ydb.read_session import ReadSession
from penstock_emulators.ydb.topic import Partition, Topic, TopicError

_StatusIds = ydb_status_codes_pb2.StatusIds
_FORMATS = {"JSON": 1, "DYNAMODB_STREAMS_JSON": 2, "DEBEZIUM_JSON": 3}
_MODES = {"KEYS_ONLY": 1, "UPDATES": 2, "NEW_IMAGE": 3, "OLD_IMAGE": 4, "NEW_AND_OLD_IMAGES": 5}


class Service:
    """The state that all services share.

    `token`: a token that is accepted, in addition to tokens of users who logged in; None: none is asked for. `users`:
    passwords by name. `secure`: clients need TLS.
    """

    def __init__(self, database: Database) -> None:
        self.database, self.faults = database, Faults()
        self.port = 0
        self.token: str | None = None
        self.users: dict[str, str] = {}
        self.logged_in: set[str] = set()
        self.secure = False
        self.calls: dict[str, int] = {}
        """How often each method was called."""
        self.sessions: set[ReadSession] = set()
        self.owners: dict[tuple[str, str, int], ReadSession] = {}
        self._wake: set[asyncio.Event] = set()
        database.changed = self.wake

    def wake(self) -> None:
        """Let every read session look for new messages."""
        for event in self._wake:
            event.set()

    async def enter(self, method: str, context: Any) -> None:
        """Count a call, check its token, and raise the fault that was asked for.

        Raises:
            StatusError: the call ends with it.
        """
        self.calls[method] = self.calls.get(method, 0) + 1
        metadata = dict(context.invocation_metadata())
        # The token of the service, and tokens of users who have logged in.
        accepted = {self.token, *self.logged_in}
        if self.token is not None and metadata.get("x-ydb-auth-ticket") not in accepted:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is invalid")
        # A fault of a stream is met within the stream, after some messages.
        fault = None if method == "StreamRead" else self.faults.take(method)
        if fault is not None:
            await asyncio.sleep(fault.delay_seconds)
            await self.fail(fault.status, context)

    async def fail(self, status: str, context: Any) -> None:
        """End a call with a status; an empty one changes nothing.

        Raises:
            StatusError: it is a status of YDB.
        """
        # Some errors come from gRPC and not from YDB: the client handles them elsewhere.
        if status.startswith("grpc:"):
            await context.abort(grpc.StatusCode[status.removeprefix("grpc:")], "the test asked for it")
        if status:
            raise StatusError(status)

    def topic(self, path: str) -> Topic:
        """Return a topic by its absolute path, or by that below the database.

        Raises:
            StatusError: there is none.
        """
        # Clients may leave out the path of the database.
        absolute = path if path.startswith("/") else f"{self.database.path}/{path}"
        if absolute not in self.database.topics:
            raise StatusError(
                "SCHEME_ERROR", f"path '{path}' does not exist or you do not have access rights"
            )
        return self.database.topics[absolute]

    def table(self, path: str) -> StoredTable:
        """Return a table by its path.

        Raises:
            StatusError: there is none.
        """
        name = path.removeprefix(f"{self.database.path}/")
        if name not in self.database.tables:
            raise StatusError(
                "SCHEME_ERROR", f"path '{path}' does not exist or you do not have access rights"
            )
        return self.database.tables[name]

    def waker(self) -> asyncio.Event:
        """Return an event that is set when topics change; give it back with `forget`."""
        event = asyncio.Event()
        self._wake.add(event)
        return event

    def forget(self, event: asyncio.Event) -> None:
        """Take an event of `waker` back."""
        self._wake.discard(event)


def _fill(response: Any, result: Any) -> Any:
    """Put a result into the operation of a response."""
    response.operation.ready, response.operation.status = True, _StatusIds.SUCCESS
    response.operation.result.Pack(result)
    return response


def _refuse(response: Any, error: StatusError) -> Any:
    response.operation.ready, response.operation.status = True, _StatusIds.StatusCode.Value(error.status)
    response.operation.issues.add(message=str(error))
    return response


class Discovery(ydb_discovery_v1_pb2_grpc.DiscoveryServiceServicer):
    """One endpoint: this process."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def ListEndpoints(self, request: Any, context: Any) -> Any:
        response = ydb_discovery_pb2.ListEndpointsResponse()
        try:
            await self._service.enter("ListEndpoints", context)
            # The client names the database in discovery first, so a wrong name shows here.
            if request.database != self._service.database.path:
                raise StatusError("NOT_FOUND", f"database {request.database} does not exist")
        except StatusError as error:
            return _refuse(response, error)
        endpoint = ydb_discovery_pb2.EndpointInfo(
            address="localhost", port=self._service.port, ssl=self._service.secure, node_id=1
        )
        return _fill(response, ydb_discovery_pb2.ListEndpointsResult(endpoints=[endpoint]))

    async def WhoAmI(self, request: Any, context: Any) -> Any:
        return _fill(ydb_discovery_pb2.WhoAmIResponse(), ydb_discovery_pb2.WhoAmIResult(user="root@builtin"))


class Auth(ydb_auth_v1_pb2_grpc.AuthServiceServicer):
    """Lets users log in with their passwords."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def Login(self, request: Any, context: Any) -> Any:
        response, service = ydb_auth_pb2.LoginResponse(), self._service
        if request.user not in service.users or service.users[request.user] != request.password:
            return _refuse(response, StatusError("UNAUTHORIZED", "Invalid password"))
        token = f"token of {request.user}"
        service.logged_in.add(token)
        return _fill(response, ydb_auth_pb2.LoginResult(token=token))


class Scheme(ydb_scheme_v1_pb2_grpc.SchemeServiceServicer):
    """Describes tables and topics."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def DescribePath(self, request: Any, context: Any) -> Any:
        response = ydb_scheme_pb2.DescribePathResponse()
        try:
            await self._service.enter("DescribePath", context)
            entry = ydb_scheme_pb2.Entry(name=request.path.rpartition("/")[2])
            if request.path in self._service.database.topics:
                entry.type = ydb_scheme_pb2.Entry.TOPIC
            else:
                self._service.table(request.path)
                entry.type = ydb_scheme_pb2.Entry.TABLE
        except StatusError as error:
            return _refuse(response, error)
        return _fill(response, ydb_scheme_pb2.DescribePathResult(self=entry))

    async def ListDirectory(self, request: Any, context: Any) -> Any:
        response = ydb_scheme_pb2.ListDirectoryResponse()
        try:
            await self._service.enter("ListDirectory", context)
        except StatusError as error:
            return _refuse(response, error)
        result = ydb_scheme_pb2.ListDirectoryResult()
        for name in self._service.database.tables:
            result.children.add(name=name, type=ydb_scheme_pb2.Entry.TABLE)
        return _fill(response, result)


class Tables(ydb_table_v1_pb2_grpc.TableServiceServicer):
    """Describes tables with their changefeeds."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def CreateSession(self, request: Any, context: Any) -> Any:
        response = ydb_table_pb2.CreateSessionResponse()
        try:
            await self._service.enter("CreateSession", context)
        except StatusError as error:
            return _refuse(response, error)
        session = f"ydb://session/3?node_id=1&id={uuid.uuid4().hex}"
        return _fill(response, ydb_table_pb2.CreateSessionResult(session_id=session))

    async def DeleteSession(self, request: Any, context: Any) -> Any:
        response = ydb_table_pb2.DeleteSessionResponse()
        response.operation.ready, response.operation.status = True, _StatusIds.SUCCESS
        return response

    async def KeepAlive(self, request: Any, context: Any) -> Any:
        result = ydb_table_pb2.KeepAliveResult(
            session_status=ydb_table_pb2.KeepAliveResult.SESSION_STATUS_READY
        )
        return _fill(ydb_table_pb2.KeepAliveResponse(), result)

    async def DescribeTable(self, request: Any, context: Any) -> Any:
        response = ydb_table_pb2.DescribeTableResponse()
        try:
            await self._service.enter("DescribeTable", context)
            stored = self._service.table(request.path)
        except StatusError as error:
            return _refuse(response, error)
        table = stored.table
        result = ydb_table_pb2.DescribeTableResult(primary_key=table.key)
        result.self.name, result.self.type = table.path.rpartition("/")[2], ydb_scheme_pb2.Entry.TABLE
        for name, type_ in table.columns.items():
            # All columns but those of the key may be NULL, and the SDK expects the optional type for them too.
            _fill_type(result.columns.add(name=name).type.optional_type.item, type_)
        for feed in stored.feeds.values():
            _fill_changefeed(result.changefeeds.add(), feed)
        return _fill(response, result)


def _fill_type(made: Any, name: str) -> None:
    if name.startswith("Decimal("):
        precision, scale = name.removeprefix("Decimal(").rstrip(")").split(",")
        made.decimal_type.precision, made.decimal_type.scale = int(precision), int(scale)
        return
    spelled = {"JsonDocument": "JSON_DOCUMENT", "DyNumber": "DYNUMBER"}.get(name, name.upper())
    made.type_id = ydb_value_pb2.Type.PrimitiveTypeId.Value(spelled)


def _fill_changefeed(made: Any, feed: Feed) -> None:
    options = feed.options
    made.name, made.mode, made.format = options.name, _MODES[options.mode], _FORMATS[options.format]
    made.virtual_timestamps, made.schema_changes = options.virtual_timestamps, options.schema_changes
    made.aws_region = options.aws_region
    if options.barrier_seconds:
        made.resolved_timestamps_interval.FromNanoseconds(round(options.barrier_seconds * 1e9))
    # Progress in rows; the service counts parts of the table.
    if feed.scanned:
        made.initial_scan_progress.parts_total = feed.rows_to_scan
        made.initial_scan_progress.parts_completed = feed.rows_to_scan - len(feed.to_scan)
    states = ydb_table_pb2.ChangefeedDescription
    if not feed.enabled:
        made.state = states.STATE_DISABLED
    else:
        made.state = states.STATE_INITIAL_SCAN if feed.to_scan else states.STATE_ENABLED


class Topics(ydb_topic_v1_pb2_grpc.TopicServiceServicer):
    """Describes and reads topics."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def DescribeTopic(self, request: Any, context: Any) -> Any:
        response = ydb_topic_pb2.DescribeTopicResponse()
        try:
            await self._service.enter("DescribeTopic", context)
            topic = self._service.topic(request.path)
        except StatusError as error:
            return _refuse(response, error)
        result = ydb_topic_pb2.DescribeTopicResult()
        result.self.name = topic.path.rpartition("/")[2]
        result.self.type = ydb_scheme_pb2.Entry.TOPIC
        result.self.created_at.plan_step, result.self.created_at.tx_id = topic.created_at
        result.retention_period.FromNanoseconds(round(topic.retention_seconds * 1e9))
        for name in topic.consumers:
            result.consumers.add(name=name)
        for partition in topic.partitions.values():
            _fill_partition(result.partitions.add(), partition, with_stats=request.include_stats)
        return _fill(response, result)

    async def DescribeConsumer(self, request: Any, context: Any) -> Any:
        response = ydb_topic_pb2.DescribeConsumerResponse()
        try:
            await self._service.enter("DescribeConsumer", context)
            topic = self._service.topic(request.path)
            if request.consumer not in topic.consumers:
                raise StatusError("SCHEME_ERROR", f"no consumer '{request.consumer}' in topic")
        except StatusError as error:
            return _refuse(response, error)
        result = ydb_topic_pb2.DescribeConsumerResult(consumer=ydb_topic_pb2.Consumer(name=request.consumer))
        for partition in topic.partitions.values():
            made = result.partitions.add()
            _fill_partition(made, partition, with_stats=request.include_stats)
            made.partition_consumer_stats.committed_offset = topic.committed(
                request.consumer, partition.number
            )
        return _fill(response, result)

    async def CommitOffset(self, request: Any, context: Any) -> Any:
        response = ydb_topic_pb2.CommitOffsetResponse()
        try:
            await self._service.enter("CommitOffset", context)
            topic = self._service.topic(request.path)
            try:
                topic.commit(request.consumer, request.partition_id, request.offset)
            except TopicError as error:
                raise StatusError("BAD_REQUEST", str(error)) from None
        except StatusError as error:
            return _refuse(response, error)
        self._service.wake()
        return _fill(response, ydb_topic_pb2.CommitOffsetResult())

    async def StreamRead(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        service, wake = self._service, self._service.waker()
        outgoing: list[Any] = []
        session = ReadSession(
            uuid.uuid4().hex, service.topic, outgoing.append, service.owners, service.database.clock
        )
        service.sessions.add(session)
        incoming: asyncio.Queue[Any] = asyncio.Queue()
        # A separate task: the client may send while the session waits for messages.
        receiver = asyncio.ensure_future(_receive(requests, incoming, wake))
        try:
            await service.enter("StreamRead", context)
            # A client that has closed its side still gets what it has asked for.
            while not (receiver.done() and incoming.empty()):
                # Cleared before looking, so that a message that comes in between is not missed.
                wake.clear()
                while not incoming.empty():
                    session.receive(incoming.get_nowait())
                # Known before messages are sent, so that none is sent after the fault.
                fault = _planned(service, session)
                session.pump(None if fault is None else fault.after_messages)
                for message in outgoing:
                    yield message
                outgoing.clear()
                fault = service.faults.take(
                    "StreamRead", messages=session.sent, partitions=session.partitions
                )
                if fault is not None and session.partitions:
                    await asyncio.sleep(fault.delay_seconds)
                    await service.fail(fault.status, context)
                await wake.wait()
        except StatusError as error:
            # What was sent before the error still belongs to the client.
            for message in outgoing:
                yield message
            failed = ydb_topic_pb2.StreamReadMessage.FromServer(
                status=_StatusIds.StatusCode.Value(error.status)
            )
            failed.issues.add(message=str(error))
            yield failed
        finally:
            receiver.cancel()
            session.close()
            service.sessions.discard(session)
            service.forget(wake)
            # Partitions of this session are free now, and another one may wait for them.
            service.wake()


def _planned(service: Service, session: ReadSession) -> Any:
    """Return the fault that will end this session, so that it sends no message after it."""
    for fault in service.faults.planned:
        if fault.method == "StreamRead" and (
            fault.partition is None or fault.partition in session.partitions
        ):
            return fault
    return None


async def _receive(requests: Any, incoming: asyncio.Queue[Any], wake: asyncio.Event) -> None:
    try:
        async for request in requests:
            incoming.put_nowait(request)
            wake.set()
    finally:
        wake.set()


def _fill_partition(made: Any, partition: Partition, *, with_stats: bool) -> None:
    made.partition_id, made.active = partition.number, partition.active
    made.parent_partition_ids.extend(partition.parents)
    made.child_partition_ids.extend(partition.children)
    # Statistics are asked for separately, because the service collects them.
    if with_stats:
        offsets = made.partition_stats.partition_offsets
        offsets.start, offsets.end = partition.first, partition.end
        if partition.messages:
            made.partition_stats.last_write_time.FromNanoseconds(partition.messages[-1].written_at)
