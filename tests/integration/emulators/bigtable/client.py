"""A client that follows only the service's documentation: raw stubs, plain messages, no reader of Penstock.

It checks what it receives against the proto comments, and stalls where a client that trusts them stalls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.cloud.bigtable_admin_v2.types import bigtable_instance_admin as instance_admin
from google.cloud.bigtable_admin_v2.types import bigtable_table_admin as table_admin
from google.cloud.bigtable_admin_v2.types import table as table_types
from google.cloud.bigtable_v2.types import bigtable as api
from google.cloud.bigtable_v2.types import data as data_types

from tests.support.waiting import wait_until

INSTANCE = "projects/penstock-test/instances/penstock-test"
DATA = "/google.bigtable.v2.Bigtable/"
TABLE_ADMIN = "/google.bigtable.admin.v2.BigtableTableAdmin/"
INSTANCE_ADMIN = "/google.bigtable.admin.v2.BigtableInstanceAdmin/"

Mutation = data_types.Mutation.pb()
Range = tuple[bytes, bytes]
Cells = dict[bytes, dict[tuple[str, bytes, int], bytes]]

_ANSWERS = {
    "MutateRow": api.MutateRowResponse,
    "MutateRows": api.MutateRowsResponse,
    "CheckAndMutateRow": api.CheckAndMutateRowResponse,
    "ReadModifyWriteRow": api.ReadModifyWriteRowResponse,
    "ReadRows": api.ReadRowsResponse,
    "SampleRowKeys": api.SampleRowKeysResponse,
    "GenerateInitialChangeStreamPartitions": api.GenerateInitialChangeStreamPartitionsResponse,
    "ReadChangeStream": api.ReadChangeStreamResponse,
    "CreateTable": table_types.Table,
    "GetTable": table_types.Table,
    "ModifyColumnFamilies": table_types.Table,
}
_STREAMS = ("MutateRows", "ReadRows", "SampleRowKeys", "GenerateInitialChangeStreamPartitions")


@dataclass(frozen=True, slots=True)
class Change:
    """One complete record, joined from its messages."""

    key: bytes
    commit_us: int
    kind: int
    cluster: str
    tiebreaker: int
    mutations: tuple[Any, ...]
    token: str
    watermark_us: int
    messages: int


@dataclass(slots=True)
class Answer:
    """All messages of one ReadChangeStream call."""

    changes: list[Change] = field(default_factory=list)
    heartbeats: list[Any] = field(default_factory=list)
    close: Any = None


def set_cell(family: str, qualifier: bytes, value: bytes, timestamp_us: int = -1) -> Any:
    mutation = Mutation()
    cell = mutation.set_cell
    cell.family_name, cell.column_qualifier, cell.value = family, qualifier, value
    cell.timestamp_micros = timestamp_us
    return mutation


def delete_row() -> Any:
    mutation = Mutation()
    mutation.delete_from_row.SetInParent()
    return mutation


def delete_family(family: str) -> Any:
    mutation = Mutation()
    mutation.delete_from_family.family_name = family
    return mutation


def delete_column(family: str, qualifier: bytes, start_us: int = 0, end_us: int = 0) -> Any:
    mutation = Mutation()
    delete = mutation.delete_from_column
    delete.family_name, delete.column_qualifier = family, qualifier
    delete.time_range.start_timestamp_micros, delete.time_range.end_timestamp_micros = start_us, end_us
    return mutation


def add_to_cell(family: str, qualifier: bytes, amount: int) -> Any:
    mutation = Mutation()
    mutation.add_to_cell.family_name = family
    mutation.add_to_cell.column_qualifier.raw_value = qualifier
    mutation.add_to_cell.timestamp.raw_timestamp_micros = 0
    mutation.add_to_cell.input.int_value = amount
    return mutation


def partition_of(keys: Range) -> Any:
    partition = data_types.StreamPartition.pb()()
    partition.row_range.start_key_closed, partition.row_range.end_key_open = keys
    return partition


def range_of(partition: Any) -> Range:
    return partition.row_range.start_key_closed, partition.row_range.end_key_open


def now_us() -> int:
    return time.time_ns() // 1000


class Client:
    """One table, through raw calls on a connection with these options of gRPC's."""

    def __init__(self, host: str, table: str, **options: int) -> None:
        self.table = f"{INSTANCE}/tables/{table}"
        options = {"grpc.max_receive_message_length": -1, **options}
        self._channel = grpc.insecure_channel(host, options=list(options.items()))

    def close(self) -> None:
        self._channel.close()

    def call(self, service: str, name: str, request: Any, timeout: float = 20, **options: Any) -> Any:
        """Make a call: its answer, the list of its answers, or for ReadChangeStream the open call."""
        parse = _ANSWERS[name].pb().FromString if name in _ANSWERS else bytes
        streams = name in (*_STREAMS, "ReadChangeStream")
        make = self._channel.unary_stream if streams else self._channel.unary_unary
        raw = type(request).pb(request) if hasattr(type(request), "pb") else request
        call = make(
            service + name,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=parse,
        )(raw, timeout=timeout, **options)
        return list(call) if name in _STREAMS else call

    # Administration

    def create(
        self,
        families: dict[str, Any] | None = None,
        *,
        stream: bool = True,
        splits: Sequence[bytes] = (),
        days: float = 1,
    ) -> Any:
        parent, _, table_id = self.table.rpartition("/tables/")
        config = {"change_stream_config": {"retention_period": {"seconds": int(days * 86400)}}}
        request = table_admin.CreateTableRequest(
            parent=parent,
            table_id=table_id,
            table={"column_families": families or {"f": {}, "g": {}}, **(config if stream else {})},
            initial_splits=[{"key": key} for key in splits],
        )
        return self.call(TABLE_ADMIN, "CreateTable", request)

    def get(self) -> Any:
        return self.call(TABLE_ADMIN, "GetTable", table_admin.GetTableRequest(name=self.table))

    def delete(self) -> None:
        self.call(TABLE_ADMIN, "DeleteTable", table_admin.DeleteTableRequest(name=self.table))

    def configure(self, days: float) -> None:
        """Set the stream's retention, or switch it off (0), through UpdateTable."""
        config = {"change_stream_config": {"retention_period": {"seconds": int(days * 86400)}}}
        request = table_admin.UpdateTableRequest(
            table={"name": self.table, **(config if days else {})},
            update_mask={"paths": ["change_stream_config"]},
        )
        self.call(TABLE_ADMIN, "UpdateTable", request)

    def modify_family(self, family: str, **how: Any) -> None:
        """Make (create={…}), change (update={…}) or drop (drop=True) a column family."""
        self.modify_families([{"id": family, **how}])

    def modify_families(self, modifications: Sequence[dict[str, Any]]) -> None:
        request = table_admin.ModifyColumnFamiliesRequest(name=self.table, modifications=modifications)
        self.call(TABLE_ADMIN, "ModifyColumnFamilies", request)

    def drop_rows(self, prefix: bytes | None) -> None:
        """Drop the rows that begin with `prefix`; all, for None."""
        how = {"delete_all_data_from_table": True} if prefix is None else {"row_key_prefix": prefix}
        self.call(TABLE_ADMIN, "DropRowRange", table_admin.DropRowRangeRequest(name=self.table, **how))

    def create_profile(self, name: str, cluster: str | None) -> None:
        """An app profile routed to one cluster; to any, for None."""
        routing = (
            {"multi_cluster_routing_use_any": {}}
            if cluster is None
            else {"single_cluster_routing": {"cluster_id": cluster}}
        )
        request = instance_admin.CreateAppProfileRequest(
            parent=INSTANCE, app_profile_id=name, app_profile=routing
        )
        self.call(INSTANCE_ADMIN, "CreateAppProfile", request)

    # Data

    def write(self, key: bytes, *mutations: Any, profile: str = "", timeout: float = 20) -> None:
        request = api.MutateRowRequest.pb()(
            table_name=self.table, app_profile_id=profile, row_key=key, mutations=mutations
        )
        self.call(DATA, "MutateRow", request, timeout)

    def write_many(self, entries: Iterable[tuple[bytes, Sequence[Any]]], profile: str = "") -> list[int]:
        """MutateRows; returns the status code of each entry."""
        request = api.MutateRowsRequest.pb()(table_name=self.table, app_profile_id=profile)
        for key, mutations in entries:
            request.entries.add(row_key=key, mutations=mutations)
        answer = [entry for part in self.call(DATA, "MutateRows", request) for entry in part.entries]
        assert [entry.index for entry in answer] == list(range(len(request.entries)))
        return [entry.status.code for entry in answer]

    def check_and_write(
        self, key: bytes, if_any: Sequence[Any], if_none: Sequence[Any] = (), profile: str = ""
    ) -> bool:
        request = api.CheckAndMutateRowRequest.pb()(
            table_name=self.table,
            app_profile_id=profile,
            row_key=key,
            true_mutations=if_any,
            false_mutations=if_none,
        )
        return bool(self.call(DATA, "CheckAndMutateRow", request).predicate_matched)

    def read_modify_write(self, key: bytes, *rules: dict[str, Any], profile: str = "") -> Any:
        request = api.ReadModifyWriteRowRequest(
            table_name=self.table, app_profile_id=profile, row_key=key, rules=rules
        )
        return self.call(DATA, "ReadModifyWriteRow", request)

    def cells(self) -> Cells:
        """Return all cells of the table."""
        table: Cells = {}
        key, family, qualifier, value = b"", "", b"", b""
        for answer in self.call(DATA, "ReadRows", api.ReadRowsRequest(table_name=self.table)):
            for chunk in answer.chunks:
                key = chunk.row_key or key
                family = chunk.family_name.value if chunk.HasField("family_name") else family
                qualifier = chunk.qualifier.value if chunk.HasField("qualifier") else qualifier
                value += chunk.value
                if not chunk.value_size:
                    table.setdefault(key, {})[family, qualifier, chunk.timestamp_micros] = value
                    value = b""
        return table

    # The change stream

    def partitions(self, profile: str = "") -> list[Range]:
        request = api.GenerateInitialChangeStreamPartitionsRequest(
            table_name=self.table, app_profile_id=profile
        )
        answers = self.call(DATA, "GenerateInitialChangeStreamPartitions", request)
        return [range_of(answer.partition) for answer in answers]

    def open(
        self,
        keys: Range = (b"", b""),
        *,
        start_us: int | None = None,
        tokens: Sequence[tuple[Range, str]] = (),
        end_us: int | None = None,
        heartbeat_s: float | None = None,
        profile: str = "",
        timeout: float = 20,
    ) -> Any:
        """Return an open ReadChangeStream call."""
        request = api.ReadChangeStreamRequest.pb()(
            table_name=self.table, app_profile_id=profile, partition=partition_of(keys)
        )
        if start_us is not None:
            request.start_time.FromMicroseconds(start_us)
        for part, token in tokens:
            request.continuation_tokens.tokens.add(partition=partition_of(part), token=token)
        if end_us is not None:
            request.end_time.FromMicroseconds(end_us)
        if heartbeat_s is not None:
            request.heartbeat_duration.FromMicroseconds(int(heartbeat_s * 1e6))
        return self.call(DATA, "ReadChangeStream", request, timeout)

    def read(self, keys: Range = (b"", b""), **options: Any) -> Answer:
        """Read until the call ends; without an end time, to now."""
        if "end_us" not in options:
            options["end_us"] = now_us()
        answer = Answer()
        for event in events(self.open(keys, **options)):
            _note(answer, event)
        return answer


def events(call: Iterable[Any]) -> Iterator[Change | Any]:
    """Yield whole changes, heartbeats and the close of a call, checking the rules of chunks on the way."""
    parts: list[Any] = []
    for response in call:
        kind = response.WhichOneof("stream_record")
        if kind != "data_change":
            assert not parts, f"{kind} in the middle of a record"
            yield getattr(response, kind)
            continue
        parts.append(response.data_change)
        if response.data_change.done:
            yield _put_together(parts)
            parts = []
    assert not parts, "the stream ended in the middle of a record"


def _note(answer: Answer, event: Any) -> None:
    if isinstance(event, Change):
        answer.changes.append(event)
    elif hasattr(event, "continuation_tokens"):
        assert answer.close is None, "two closes"
        answer.close = event
    else:
        answer.heartbeats.append(event)


def _put_together(parts: Sequence[Any]) -> Change:
    first, last = parts[0], parts[-1]
    assert first.type_ in (1, 2)
    assert bool(first.source_cluster_id) == (first.type_ == 1), "GC has no cluster, a user's change has one"
    for other in parts[1:]:
        assert other.type_ == 3
        assert not other.row_key
        assert not other.HasField("commit_timestamp")
    mutations = tuple(_whole_mutations([list(part.chunks) for part in parts]))
    assert mutations
    assert all(mutation.WhichOneof("mutation") != "delete_from_row" for mutation in mutations)
    assert last.token
    assert last.HasField("estimated_low_watermark")
    return Change(
        first.row_key,
        first.commit_timestamp.ToMicroseconds(),
        first.type_,
        first.source_cluster_id,
        first.tiebreaker,
        mutations,
        last.token,
        last.estimated_low_watermark.ToMicroseconds(),
        len(parts),
    )


def _whole_mutations(messages: Sequence[Sequence[Any]]) -> Iterator[Any]:
    open_cell: Any = None
    size = 0
    for chunks in messages:
        for place, chunk in enumerate(chunks):
            info = chunk.chunk_info
            if not info.chunked_value_size:
                assert open_cell is None, "another mutation inside a chunked value"
                yield chunk.mutation
                continue
            if open_cell is None:
                assert info.chunked_value_offset == 0
                size = info.chunked_value_size
                open_cell = Mutation.FromString(chunk.mutation.SerializeToString())
            else:
                assert place == 0, "a continued chunk comes first in its message"
                assert info.chunked_value_offset == len(open_cell.set_cell.value)
                open_cell.set_cell.value += chunk.mutation.set_cell.value
            assert info.chunked_value_size == size
            if info.last_chunk:
                assert len(open_cell.set_cell.value) == info.chunked_value_size
                yield open_cell
                open_cell = None
            else:
                assert place == len(chunks) - 1, "an unfinished chunk comes last in its message"
    assert open_cell is None


def replayed(changes: Iterable[Change]) -> Cells:
    """Return the table that results from applying the changes in the given order."""
    table: Cells = {}
    for change in changes:
        row = table.setdefault(change.key, {})
        for mutation in change.mutations:
            _apply(row, mutation)
        if not row:
            del table[change.key]
    return table


def _apply(row: dict[tuple[str, bytes, int], bytes], mutation: Any) -> None:
    kind = mutation.WhichOneof("mutation")
    if kind == "set_cell":
        cell = mutation.set_cell
        row[cell.family_name, cell.column_qualifier, cell.timestamp_micros] = cell.value
    elif kind == "add_to_cell":
        add = mutation.add_to_cell
        where = (add.family_name, add.column_qualifier.raw_value, add.timestamp.raw_timestamp_micros)
        total = int.from_bytes(row.get(where, b""), "big", signed=True) + add.input.int_value
        row[where] = total.to_bytes(8, "big", signed=True)
    elif kind == "delete_from_family":
        for where in [where for where in row if where[0] == mutation.delete_from_family.family_name]:
            del row[where]
    else:
        delete = mutation.delete_from_column
        start, end = delete.time_range.start_timestamp_micros, delete.time_range.end_timestamp_micros
        for where in [
            where
            for where in row
            if where[:2] == (delete.family_name, delete.column_qualifier)
            and start <= where[2]
            and (not end or where[2] < end)
        ]:
            del row[where]


class FollowingReader:
    """Reads a table's stream as the documentation says: one thread a partition, merges wait for all tokens.

    `changes` are in order of arrival. It stalls where the documentation stalls; `waiting` says where.
    """

    def __init__(self, client: Client, start_us: int, pause_s: float = 0.0) -> None:
        """Read from `start_us`; a partition is opened `pause_s` after its tokens came, as over a network."""
        self._pause_s = pause_s
        self.changes: list[Change] = []
        self.errors: list[BaseException] = []
        self._client = client
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._waiting: dict[Range, dict[Range, str]] = {}
        self._calls: set[Any] = set()
        self._stopped = False
        for keys in client.partitions():
            self._open(keys, start_us=start_us)

    @property
    def waiting(self) -> set[Range]:
        """Return the partitions for which some tokens have arrived, but not all."""
        with self._lock:
            return set(self._waiting)

    def stop(self) -> None:
        self._stopped = True

        def ended() -> bool:
            # Again and again, because a thread may be about to open its call.
            for call in list(self._calls):
                call.cancel()
            return not any(thread.is_alive() for thread in self._threads)

        wait_until(ended, "a stream does not end")
        assert not self.errors, self.errors[0]

    def _open(self, keys: Range, **start: Any) -> None:
        thread = threading.Thread(target=self._follow, args=(keys, start), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _follow(self, keys: Range, start: dict[str, Any]) -> None:
        time.sleep(self._pause_s)
        if self._stopped:
            return
        call = self._client.open(keys, heartbeat_s=0.2, timeout=120, **start)
        self._calls.add(call)
        try:
            for event in events(call):
                if isinstance(event, Change):
                    with self._lock:
                        self.changes.append(event)
                elif hasattr(event, "new_partitions"):
                    with self._lock:
                        self._closed(event)
        except grpc.RpcError as error:
            if not self._stopped:
                self.errors.append(error)
        except BaseException as error:
            self.errors.append(error)
        finally:
            self._calls.discard(call)

    def _closed(self, close: Any) -> None:
        assert len(close.continuation_tokens) == len(close.new_partitions)
        for token, target in zip(close.continuation_tokens, close.new_partitions, strict=True):
            parts = self._waiting.setdefault(range_of(target), {})
            parts[range_of(token.partition)] = token.token
            if _covers(range_of(target), sorted(parts)):
                del self._waiting[range_of(target)]
                self._open(range_of(target), tokens=sorted(parts.items()))


def _covers(target: Range, parts: list[Range]) -> bool:
    reached = target[0]
    for start, end in parts:
        if start != reached or (not end and target[1]):
            return False
        reached = end
    return reached == target[1] and bool(parts)
