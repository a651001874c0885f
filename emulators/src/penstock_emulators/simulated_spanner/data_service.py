"""google.spanner.v1.Spanner: sessions, reads, queries, transactions.

Source: google/spanner/v1/spanner.proto and transaction.proto.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Any

from google.cloud.spanner_v1.types import commit_response as commit_types
from google.cloud.spanner_v1.types import result_set as result_set_types
from google.cloud.spanner_v1.types import spanner as spanner_types
from google.protobuf import empty_pb2

from penstock_emulators.simulated_spanner.change_answer import ChangeAnswer
from penstock_emulators.simulated_spanner.change_query import ChangeQuery, parse_change_query
from penstock_emulators.simulated_spanner.database import Committed, Database
from penstock_emulators.simulated_spanner.errors import ServiceError, invalid, unimplemented
from penstock_emulators.simulated_spanner.key_set import KeySet
from penstock_emulators.simulated_spanner.messages import (
    fill_row_type,
    key_set,
    messages,
    mutation,
    result_set,
    session_message,
    stats_bytes,
    transaction_message,
    typed_params,
)
from penstock_emulators.simulated_spanner.partitioned_read import (
    partition_tokens,
    read_number,
    rows_of_token,
)
from penstock_emulators.simulated_spanner.record_encoding import (
    encoder,
    python_value,
)
from penstock_emulators.simulated_spanner.rows import Row, order_of
from penstock_emulators.simulated_spanner.schema import Table
from penstock_emulators.simulated_spanner.service import Service
from penstock_emulators.simulated_spanner.statement import Result, execute
from penstock_emulators.simulated_spanner.timestamp import SECOND, format_timestamp
from penstock_emulators.simulated_spanner.transaction import (
    AnyTransaction,
    ReadWrite,
    Session,
    Snapshot,
    read_timestamp,
)

_BatchCreateSessionsResponse = spanner_types.BatchCreateSessionsResponse.pb()
_CommitResponse = commit_types.CommitResponse.pb()
_ExecuteBatchDmlResponse = spanner_types.ExecuteBatchDmlResponse.pb()
_ListSessionsResponse = spanner_types.ListSessionsResponse.pb()
_Metadata = result_set_types.ResultSetMetadata.pb()
_PartitionResponse = spanner_types.PartitionResponse.pb()

_ONLY_STREAMING = (
    "Change stream queries must be strong reads executed via single use transactions using the "
    "ExecuteStreamingSql API."
)


class SpannerService:
    """The RPCs; each takes a request message and returns a response message (or yields encoded ones)."""

    def __init__(self, service: Service) -> None:
        self._service = service

    # Sessions

    async def create_session(self, request: Any) -> Any:
        """Make one session."""
        return session_message(self._service.create_session(request.database, request.session.multiplexed))

    async def batch_create_sessions(self, request: Any) -> Any:
        """Make several sessions."""
        made = [
            self._service.create_session(request.database, False)
            # A client that asks for none gets one, as from the service.
            for _ in range(max(1, request.session_count))
        ]
        return _BatchCreateSessionsResponse(session=[session_message(each) for each in made])

    async def get_session(self, request: Any) -> Any:
        """Return a session."""
        return session_message(self._service.session(request.name))

    async def list_sessions(self, request: Any) -> Any:
        """Return all sessions of a database."""
        prefix = f"{request.database}/sessions/"
        found = [each for name, each in self._service.sessions.items() if name.startswith(prefix)]
        return _ListSessionsResponse(sessions=[session_message(each) for each in found])

    async def delete_session(self, request: Any) -> Any:
        """Forget a session."""
        self._service.sessions.pop(request.name, None)
        return empty_pb2.Empty()

    # Transactions

    async def begin_transaction(self, request: Any) -> Any:
        """Begin a transaction."""
        session = self._service.session(request.session)
        started = session.begin(request.options, self._service.next_number(), self._service.clock.now())
        return transaction_message(started, request.options)

    async def commit(self, request: Any) -> Any:
        """Commit a transaction: its DML, then the mutations of the request."""
        session = self._service.session(request.session)
        # A client repeats a commit whose answer it did not get; the second one must not commit again.
        if request.transaction_id in session.committed:
            return session.committed[request.transaction_id]
        # A commit without `begin` is a transaction of its mutations only.
        transaction = ReadWrite(
            session.database, b"", request.single_use_transaction.exclude_txn_from_change_streams
        )
        if request.WhichOneof("transaction") == "transaction_id":
            transaction = session.read_write(request.transaction_id)
        # DML first, in its order; the mutations of the request follow.
        mutations = [*transaction.mutations, *(mutation(session, each) for each in request.mutations)]
        done = session.database.commit(
            mutations,
            self._service.clock.now(),
            reads=transaction.reads,
            tag=request.request_options.transaction_tag or transaction.tag,
            excluded=transaction.excluded,
        )
        self._service.stats["commits"] += 1
        self._publish(session.database, done)
        response = _CommitResponse()
        response.commit_timestamp.seconds, response.commit_timestamp.nanos = divmod(done.timestamp, SECOND)
        if request.return_commit_stats:
            response.commit_stats.mutation_count = done.mutation_count
        if request.transaction_id:
            # A committed transaction cannot be used again, but its answer can be asked for.
            session.transactions.pop(request.transaction_id, None)
            session.committed[request.transaction_id] = response
        return response

    def _publish(self, database: Database, done: Committed) -> None:
        """Encode the records of a commit once for all readers, and wake the queries that wait for them."""
        for stream, partition in done.partitions:
            partition.seal(encoder(database.schema.dialect, stream.definition.partition_mode))
        # Queries that have nothing to send sleep until a partition of theirs has a record.
        self._service.wake([partition.token for _, partition in done.partitions])

    async def rollback(self, request: Any) -> Any:
        """Forget a transaction."""
        self._service.session(request.session).transactions.pop(request.transaction_id, None)
        return empty_pb2.Empty()

    async def batch_write(self, request: Any) -> AsyncIterator[bytes]:
        """Commit each group of mutations as a separate transaction."""
        session = self._service.session(request.session)
        for index, group in enumerate(request.mutation_groups):
            response = spanner_types.BatchWriteResponse.pb()(indexes=[index])
            done = session.database.commit(
                [mutation(session, each) for each in group.mutations],
                self._service.clock.now(),
                tag=request.request_options.transaction_tag,
                excluded=request.exclude_txn_from_change_streams,
            )
            self._publish(session.database, done)
            response.commit_timestamp.seconds, response.commit_timestamp.nanos = divmod(
                done.timestamp, SECOND
            )
            yield response.SerializeToString()

    # Queries

    async def execute_streaming_sql(self, request: Any) -> AsyncIterator[bytes]:
        """Answer a query, a change stream query or a DML statement in parts."""
        session = self._service.session(request.session)
        query = self._change_query(session, request)
        if query is not None:
            _check_change_query(request.transaction)
            answer = ChangeAnswer(self._service, session.database, query)
            async for message in answer.messages(request.resume_token):
                yield message
            return
        transaction, metadata = await self._selected(session, request.transaction)
        result = _executed(session, request, transaction, self._now())
        fill_row_type(metadata, result.columns)
        for message in messages(metadata, result.rows, stats_bytes(result)):
            yield message

    async def execute_sql(self, request: Any) -> Any:
        """Answer a query or a DML statement at once."""
        session = self._service.session(request.session)
        if self._change_query(session, request) is not None:
            raise invalid(
                f"Change stream queries are not supported for the ExecuteSql API. {_ONLY_STREAMING}"
            )
        transaction, metadata = await self._selected(session, request.transaction)
        result = _executed(session, request, transaction, self._now())
        fill_row_type(metadata, result.columns)
        return result_set(metadata, result)

    async def execute_batch_dml(self, request: Any) -> Any:
        """Execute DML statements until one fails."""
        session = self._service.session(request.session)
        transaction, metadata = await self._selected(session, request.transaction)
        response = _ExecuteBatchDmlResponse()
        for number, statement in enumerate(request.statements):
            try:
                result = _executed(session, statement, transaction, self._now())
            except ServiceError as error:
                # An error of the first statement is the error of the call; later ones are part of the answer.
                if not number:
                    raise
                response.status.code = _STATUS_NUMBERS.get(error.code, 2)
                response.status.message = str(error)
                break
            response.result_sets.append(result_set(metadata, result))
            # The transaction is named once, in the first result.
            metadata = _Metadata()
        return response

    def _now(self) -> str:
        return format_timestamp(self._service.clock.now())

    def _change_query(self, session: Session, request: Any) -> ChangeQuery | None:
        params = {name: python_value(value) for name, value in request.params.fields.items()}
        return parse_change_query(session.database, request.sql, params)

    # Reads

    async def streaming_read(self, request: Any) -> AsyncIterator[bytes]:
        """Answer a read in parts."""
        metadata, rows = await self._read(request)
        for message in messages(metadata, rows):
            yield message

    async def read(self, request: Any) -> Any:
        """Answer a read at once."""
        metadata, rows = await self._read(request)
        return result_set(metadata, Result(rows=list(rows)))

    async def partition_read(self, request: Any) -> Any:
        """Divide a read in partitions, to be read with their tokens."""
        session, transaction, response = await self._partitioned(request)
        table = session.database.schema.table(request.table)
        rows = _partitioned_rows(table, request, transaction)
        for token in partition_tokens(request, transaction.id, len(rows)):
            response.partitions.add().partition_token = token
        return response

    async def partition_query(self, request: Any) -> Any:
        """Return the one partition of a query."""
        _, _, response = await self._partitioned(request)
        response.partitions.add().partition_token = b"query"
        return response

    async def _partitioned(self, request: Any) -> tuple[Session, Snapshot, Any]:
        session = self._service.session(request.session)
        transaction, metadata = await self._selected(session, request.transaction)
        # A partitioned read is repeated with tokens, so its rows must not change.
        if not isinstance(transaction, Snapshot):
            raise invalid("Partitioned reads can only be performed in a read-only transaction.")
        response = _PartitionResponse()
        response.transaction.CopyFrom(metadata.transaction)
        return session, transaction, response

    async def _read(self, request: Any) -> tuple[Any, Iterator[list[Any]]]:
        session = self._service.session(request.session)
        if request.index:
            raise unimplemented("Reading an index.")
        transaction, metadata = await self._selected(session, request.transaction)
        table = session.database.schema.table(request.table)
        columns = [table.columns[table.index(name)] for name in request.columns]
        fill_row_type(metadata, [(each.name, each.kind) for each in columns])
        if request.data_boost_enabled and not request.partition_token:
            # As the service: Data Boost reads partitions only.
            raise invalid("Data Boost can only be used for reads with a partition token.")
        if request.partition_token and isinstance(transaction, Snapshot):
            rows = rows_of_token(request, transaction.id, _partitioned_rows(table, request, transaction))
        else:
            rows = _rows(table, key_set(table, request.key_set), transaction)
        found = ([row.get(each.name) for each in columns] for row in rows)
        # Lazily, so that a limit reads no more rows than it returns.
        return metadata, islice(found, request.limit or None)

    async def _selected(self, session: Session, selector: Any) -> tuple[AnyTransaction, Any]:
        """Return the transaction of a request, and metadata that names it if it begins here."""
        metadata = _Metadata()
        now = self._service.clock.now()
        kind = selector.WhichOneof("selector")
        if kind == "id":
            found = session.transaction(selector.id)
        elif kind == "begin":
            found = session.begin(selector.begin, self._service.next_number(), now)
            metadata.transaction.CopyFrom(transaction_message(found, selector.begin))
        else:
            options = selector.single_use
            moment = read_timestamp(session.database, options.read_only, now)
            found = Snapshot(session.database, moment)
            if options.read_only.return_read_timestamp:
                metadata.transaction.CopyFrom(transaction_message(found, options))
        if isinstance(found, Snapshot):
            # The last commit may be dated a little ahead of the clock; nothing is to be waited for then.
            if found.timestamp > max(self._service.clock.now(), session.database.last):
                await self._service.wait_until(found.timestamp)
            # From now on no commit may get a timestamp up to this one: a repeated read would return other rows.
            session.database.close(found.timestamp)
        return found, metadata


_STATUS_NUMBERS = {
    "INVALID_ARGUMENT": 3,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
}


def _check_change_query(selector: Any) -> None:
    """Check that a change stream is read by a strong single-use read, which is also the meaning of no selector."""
    kind = selector.WhichOneof("selector")
    if kind is None:
        return
    if kind != "single_use" or not selector.single_use.read_only.strong:
        raise invalid(
            f"Change stream queries are not supported for multi use transactions. {_ONLY_STREAMING}"
        )


def _executed(session: Session, request: Any, transaction: AnyTransaction, now: str) -> Result:
    schema = session.database.schema
    result = execute(schema, request.sql, typed_params(request), transaction, now)
    if result.mutations is not None:
        if not isinstance(transaction, ReadWrite):
            raise invalid("DML statements can only be performed in a read-write transaction.")
        transaction.apply(result.mutations)
    return result


def _rows(table: Table, keys: KeySet, transaction: AnyTransaction) -> list[Row]:
    """Return the rows of a read in key order."""
    if not keys.scans:
        found = (
            # Sorted, because a read returns rows in the order of the key.
            transaction.row(table, order)
            for order in sorted({order_of(table, key) for key in keys.keys})
        )
        return [row for row in found if row is not None]
    single = {order_of(table, key) for key in keys.keys}
    if isinstance(transaction, Snapshot) and not keys.all_rows and not single and len(keys.ranges) == 1:
        return _rows_of_range(table, keys, transaction)
    return [
        row
        for order, row in transaction.scan(table)
        if order in single or next(keys.matching([(order, row)]), None) is not None
    ]


def _partitioned_rows(table: Table, request: Any, transaction: Snapshot) -> list[Row]:
    """As `_rows`, once for all tokens of a partitioned read."""
    read = read_number(request)
    # All tokens of one read share its rows, so that together they have each row once.
    if transaction.partitioned[0] != read:
        transaction.partitioned = read, _rows(table, key_set(table, request.key_set), transaction)
    return transaction.partitioned[1]


def _rows_of_range(table: Table, keys: KeySet, transaction: Snapshot) -> list[Row]:
    """As `_rows` for one range: looks only at its rows, so that a table can be read range by range."""
    found = []
    (one,) = keys.ranges
    for order, row in transaction.scan(table, one.start):
        # Keys are sorted, so the first one behind the range ends the read.
        if one.holds(order):
            found.append(row)
        elif not one.begins_after(order):
            break
    return found
