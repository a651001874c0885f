"""The client of the control service, with which a test changes layouts, records and faults.

    control = Control("localhost:8086")
    control.split("projects/p/instances/i/tables/t", b"m")

Tables are full names. Keys are bytes; `b""` is before the first key as a start and after the last as an end.
Timestamps are microseconds since the epoch. Every call returns when the change is complete.

On the wire it is one unary gRPC method, `/penstock.bigtable.emulator.Control/Call`, that takes and returns a
`google.protobuf.Struct`: ``{"operation": "split", "table": …, "key": base64}``. It has the names of the methods
and their parameters here, bytes travel as base64. Open to any language without a generated client.
"""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypedDict

from penstock_emulators.bigtable.faults import Fault

METHOD = "/penstock.bigtable.emulator.Control/Call"


class OpenStream(TypedDict):
    """One change stream with an open call: its partition, and how many records it has sent."""

    start: bytes
    end: bytes
    records: int


class ControlError(RuntimeError):
    """The emulator refused a control call; the message says why."""


class Control:
    """A client of the control service of the emulator at `host`, usable from any process and thread."""

    def __init__(self, host: str, *, timeout_seconds: float = 30.0) -> None:
        """Nothing is connected before the first call."""
        self._host = host
        self._timeout_seconds = timeout_seconds

    def close(self) -> None:
        """Do nothing: each call opens and closes a connection."""

    # Partitions

    def layout(self, table: str) -> list[tuple[bytes, bytes]]:
        """Return the current partitions as (start inclusive, end exclusive), ascending."""
        answer = self._call("layout", table=table)
        return [(b64decode(start), b64decode(end)) for start, end in answer["partitions"]]

    def set_layout(self, table: str, boundaries: Sequence[bytes]) -> None:
        """Make the partitions those between `boundaries`; partitions that stay the same are not closed."""
        self._call("set_layout", table=table, boundaries=[_text(key) for key in boundaries])

    def split(self, table: str, key: bytes) -> None:
        """Split the partition that holds `key`, which becomes the first key of the right part."""
        self._call("split", table=table, key=_text(key))

    def merge(self, table: str, key: bytes) -> None:
        """Merge the two partitions whose common boundary is `key`."""
        self._call("merge", table=table, key=_text(key))

    def cross(self, table: str, key: bytes, to: bytes) -> None:
        """Move the boundary `key` to `to`, in one step: [A,key) [key,C) become [A,to) [to,C)."""
        self._call("cross", table=table, key=_text(key), to=_text(to))

    def move(self, table: str, key: bytes) -> None:
        """Replace the partition that holds `key` by one with the same keys, as when it moves to another server."""
        self._call("move", table=table, key=_text(key))

    def churn(self, seconds: float, *, seed: int = 0, table: str = "") -> None:
        """Change the layout of `table` (or of one table after the other) at random every `seconds`; 0 stops.

        While this is on, each stream notices the end of its partition with a delay of up to `seconds`.
        """
        self._call("churn", seconds=seconds, seed=seed, table=table)

    # Records

    def inject(
        self,
        table: str,
        row_key: bytes,
        mutations: Sequence[bytes],
        *,
        cluster: str = "",
        commit_us: int = 0,
        tiebreaker: int = 0,
        garbage_collection: bool = False,
        apply: bool = False,
    ) -> int:
        """Append one record without checks and return its commit timestamp.

        `mutations` are serialized `google.bigtable.v2.Mutation` messages, also of unknown kinds. `commit_us` 0
        is now. Any other is allowed: below the watermark (a late record), in the future, or equal to another record's.
        `cluster` "" is the default cluster. `apply` also applies the mutations to the table, in one row
        transaction, which is not recorded a second time.
        """
        answer = self._call(
            "inject",
            table=table,
            row_key=_text(row_key),
            mutations=[_text(mutation) for mutation in mutations],
            cluster=cluster,
            commit_us=commit_us,
            tiebreaker=tiebreaker,
            garbage_collection=garbage_collection,
            apply=apply,
        )
        return int(answer["commit_us"])

    def gc(self, table: str) -> int:
        """Apply the column families' garbage-collection rules now; return how many records that made."""
        return int(self._call("gc", table=table)["records"])

    def expire(self, table: str, *, before_us: int = 0) -> int:
        """Delete records committed before `before_us` (0: now), and refuse tokens and starts older than that.

        Streams that still have such a record to send end with OUT_OF_RANGE. Returns how many were deleted.
        """
        return int(self._call("expire", table=table, before_us=before_us)["records"])

    def watermark_lag(self, table: str, seconds: float) -> None:
        """Make every watermark `seconds` older than necessary."""
        self._call("watermark_lag", table=table, seconds=seconds)

    def freeze_watermark(self, table: str, frozen: bool = True) -> None:
        """Keep every watermark at or below its current value, until `frozen` is False."""
        self._call("freeze_watermark", table=table, frozen=frozen)

    def chunk_bytes(self, table: str, size: int) -> None:
        """Cut values and messages of later records at `size` bytes (default: 1 MiB)."""
        self._call("chunk_bytes", table=table, size=size)

    # Faults

    def drop_connections(self) -> None:
        """Close every connection, also of data and administration, and wait until clients can connect again."""
        # A higher number of servers proves that the old connections are closed.
        before = self._call("drop_connections")["servers"]
        deadline = time.monotonic() + self._timeout_seconds
        while time.monotonic() < deadline:
            with suppress(ControlError):  # this connection was dropped too
                if self._call("servers")["servers"] > before:
                    return
            time.sleep(0.01)
        raise ControlError("drop_connections: the emulator did not listen again")

    def end_streams_without_close(self, table: str) -> int:
        """End all open streams OK, without a CloseStream; return how many."""
        return int(self._call("end_streams_without_close", table=table)["streams"])

    def fault(self, table: str, fault: Fault, *, count: int = 1, after_records: int = 0) -> None:
        """Arm `fault` for the next `count` streams that can have it, after they have sent `after_records`."""
        self._call("fault", table=table, fault=fault.value, count=count, after_records=after_records)

    def wide_tokens(self, table: str, wide: bool = True) -> None:
        """Put the whole new partition into close tokens, not the part that they continue. The service may do so."""
        self._call("wide_tokens", table=table, wide=wide)

    # Looking

    def streams(self, table: str) -> list[OpenStream]:
        """Return the change streams with an open call."""
        return [
            OpenStream(
                start=b64decode(stream["start"]),
                end=b64decode(stream["end"]),
                records=int(stream["records"]),
            )
            for stream in self._call("streams", table=table)["streams"]
        ]

    def statistics(self, table: str) -> dict[str, int]:
        """Return `records` appended, `layout_changes`, `faults_pending` and `streams_opened` since creation."""
        return {name: int(value) for name, value in self._call("statistics", table=table).items()}

    def _call(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """Send one call on a new connection, so that `drop_connections` needs no special case."""
        import grpc
        from google.protobuf import json_format, struct_pb2

        request = json_format.ParseDict({"operation": operation, **arguments}, struct_pb2.Struct())
        with grpc.insecure_channel(self._host) as channel:
            method = channel.unary_unary(
                METHOD,
                request_serializer=struct_pb2.Struct.SerializeToString,
                response_deserializer=struct_pb2.Struct.FromString,
            )
            try:
                answer = method(request, timeout=self._timeout_seconds, wait_for_ready=True)
            except grpc.RpcError as error:
                raise ControlError(f"{operation}: {error.details()}") from None
        return json_format.MessageToDict(answer)


def _text(key: bytes) -> str:
    return b64encode(key).decode("ascii")
