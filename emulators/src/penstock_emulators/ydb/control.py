"""The client of the control service, with which a test drives the service."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

METHOD = "/penstock_emulators.ydb.Control/Call"


class ControlError(ValueError):
    """The service refused what the test asked for."""


class Control:
    """Drives the service at ``localhost:port``. Topics are named relative to the database, such as ``orders/feed``."""

    def __init__(self, host: str) -> None:
        import grpc

        self._channel = grpc.insecure_channel(host)
        self._rpc = self._channel.unary_unary(METHOD)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def create_table(
        self, name: str, columns: Mapping[str, str], key: Sequence[str], shards: int = 1
    ) -> None:
        """Create a table with `shards` shards. `columns`: YDB's type by name, such as ``Uint64`` or ``Utf8``."""
        self._call("create_table", name=name, columns=columns, key=key, shards=shards)

    def drop_table(self, name: str) -> None:
        """Drop a table with its changefeeds."""
        self._call("drop_table", name=name)

    def alter_table(self, name: str, columns: Mapping[str, str | None]) -> None:
        """Add columns, or drop those with the type None."""
        self._call("alter_table", name=name, columns=columns)

    def add_changefeed(self, table: str, name: str, **options: Any) -> None:
        """Add a changefeed: `mode`, `format`, `virtual_timestamps`, `barrier_seconds`, `initial_scan`, `user_sids`,
        `schema_changes`, `aws_region`, `partitions`, `retention_seconds`."""
        self._call("add_changefeed", table=table, name=name, **options)

    def drop_changefeed(self, table: str, name: str) -> None:
        """Drop a changefeed and its topic."""
        self._call("drop_changefeed", table=table, name=name)

    def disable_changefeed(self, table: str, name: str) -> None:
        """Let a changefeed take no more changes."""
        self._call("disable_changefeed", table=table, name=name)

    def commit(self, operations: Sequence[Sequence[Any]], user: str = "") -> tuple[int, int]:
        """Commit one transaction of [operation, table, key values, {column: value}]; return (step, transaction id).

        The operations are upsert, replace, update and erase.
        """
        filled = [[*each, {}][:4] for each in operations]
        step, tx_id = self._call("commit", operations=filled, user=user)
        return step, tx_id

    def hold(self, table: str, shard: int, held: bool = True) -> None:
        """Let a shard of a table deliver no changes until it is released."""
        self._call("hold", table=table, shard=shard, held=held)

    def rows(self, table: str) -> list[Any]:
        """Return [key values, {column: value}] of each row."""
        return self._call("rows", table=table)

    def split(self, topic: str, partition: int) -> tuple[int, int]:
        """Split a partition; return the two new ones."""
        low, high = self._call("split", topic=topic, partition=partition)
        return low, high

    def merge(self, topic: str, first: int, second: int) -> int:
        """Merge two neighbours; return the new partition."""
        return self._call("merge", topic=topic, first=first, second=second)

    def trim(self, topic: str, partition: int, before: int) -> None:
        """Delete the messages before an offset, as retention does."""
        self._call("trim", topic=topic, partition=partition, before=before)

    def offsets(self, topic: str) -> dict[int, tuple[int, int, bool]]:
        """Return (first offset, end, whether it is active) of each partition."""
        found = self._call("offsets", topic=topic)
        return {int(number): (first, end, bool(active)) for number, (first, end, active) in found.items()}

    def add_consumer(self, topic: str, name: str) -> None:
        """Add a consumer."""
        self._call("add_consumer", topic=topic, name=name)

    def committed(self, topic: str, consumer: str) -> dict[int, int]:
        """Return the committed offset of each partition."""
        found = self._call("committed", topic=topic, consumer=consumer)
        return {int(number): offset for number, offset in found.items()}

    def create_topic(self, name: str, partitions: int = 1, retention_seconds: float = 86_400) -> None:
        """Create a topic that belongs to no table."""
        self._call("create_topic", name=name, partitions=partitions, retention_seconds=retention_seconds)

    def write(self, topic: str, partition: int, data: Sequence[bytes], keys: Sequence[bytes] = ()) -> None:
        """Append messages to a partition; `keys` are their message keys."""
        self._call("write", topic=topic, partition=partition, data=data, keys=keys)

    def fail(self, method: str, status: str = "", **options: Any) -> None:
        """Let calls of a method fail; see `faults.Fault`. `status` is YDB's, or gRPC's as ``grpc:UNAVAILABLE``."""
        self._ask("fail", {"method": method, "status": status, **options})

    def stop_partition(self, partition: int, graceful: bool = False) -> None:
        """Take a partition away from all sessions that read it."""
        self._call("stop_partition", partition=partition, graceful=graceful)

    def require_token(self, token: str | None) -> None:
        """Refuse calls without this token; None: accept all."""
        self._call("require_token", token=token)

    def add_user(self, name: str, password: str) -> None:
        """Let a user log in. The token is accepted where `require_token` asks for one."""
        self._call("add_user", name=name, password=password)

    def calls(self) -> dict[str, int]:
        """Return how often each method was called."""
        return self._call("calls")

    def _call(self, method: str, /, **arguments: Any) -> Any:
        return self._ask(method, arguments)

    def _ask(self, name: str, arguments: Mapping[str, Any]) -> Any:
        request = json.dumps([name, encode_values(arguments)]).encode()
        answer = json.loads(self._rpc(request, timeout=60, wait_for_ready=True))
        if "error" in answer:
            raise ControlError(answer["error"])
        return decode_values(answer["answer"])


def encode_values(value: Any) -> Any:
    """Return a value for JSON, with bytes as ``{"bytes": base64}``."""
    if isinstance(value, bytes):
        return {"bytes": b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {key: encode_values(each) for key, each in value.items()}
    return [encode_values(each) for each in value] if isinstance(value, list | tuple) else value


def decode_values(value: Any) -> Any:
    """Return the value that `encode_values` encoded, with tuples as lists."""
    if isinstance(value, dict):
        if value.keys() == {"bytes"}:
            return b64decode(value["bytes"])
        return {key: decode_values(each) for key, each in value.items()}
    return [decode_values(each) for each in value] if isinstance(value, list) else value
