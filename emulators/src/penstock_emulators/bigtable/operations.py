"""The server side of the control service: each operation of `Control`, by the same name."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
from google.protobuf import json_format, struct_pb2

from penstock_emulators.bigtable.backend import CallError
from penstock_emulators.bigtable.churn import Churn
from penstock_emulators.bigtable.faults import Armed, Fault
from penstock_emulators.bigtable.profiles import DEFAULT_CLUSTER
from penstock_emulators.bigtable.table import ChangeStream
from penstock_emulators.bigtable.tables import Tables, now_us
from penstock_emulators.bigtable.wire import GARBAGE_COLLECTION, USER, Mutation, Origin
from penstock_emulators.bigtable.writes import Writes

Arguments = Mapping[str, Any]
Answer = dict[str, Any]


class Operations:
    """Operations on a running front."""

    def __init__(
        self,
        tables: Tables,
        writes: Writes,
        churn: Churn,
        drop_connections: Callable[[], None],
        servers: Callable[[], int],
    ) -> None:
        """Operate on these objects.

        `drop_connections` returns at once, drops them a moment later, and then starts one more server;
        `servers` returns how many were started so far.
        """
        self._tables = tables
        self._writes = writes
        self._churn = churn
        self._drop = drop_connections
        self._started = servers
        self._on_streams: dict[str, Callable[[ChangeStream, Arguments], Answer | None]] = {
            "layout": _layout,
            "set_layout": lambda stream, given: stream.relay(
                stream.layout.with_boundaries(map(b64decode, given["boundaries"]))
            ),
            "split": lambda stream, given: stream.relay(stream.layout.split(_key(given))),
            "merge": lambda stream, given: stream.relay(stream.layout.merge(_key(given))),
            "cross": lambda stream, given: stream.relay(
                stream.layout.cross(_key(given), b64decode(given["to"]))
            ),
            "move": lambda stream, given: stream.relay(stream.layout.move(_key(given))),
            "expire": lambda stream, given: {"records": stream.expire(int(given["before_us"]) or now_us())},
            "watermark_lag": lambda stream, given: stream.lag(int(given["seconds"] * 1e6)),
            "freeze_watermark": lambda stream, given: stream.freeze(given["frozen"]),
            "chunk_bytes": _chunk_bytes,
            "end_streams_without_close": _end_streams_without_close,
            "fault": _fault,
            "wide_tokens": _wide_tokens,
            "streams": _streams,
            "statistics": _statistics,
        }
        self._others: dict[str, Callable[[Arguments], Awaitable[Answer | None]]] = {
            "inject": self._inject,
            "gc": self._gc,
            "churn": self._set_churn,
            "drop_connections": self._drop_connections,
            "servers": self._servers,
        }

    async def call(self, body: bytes, context: Any) -> bytes:
        """Serve one call: a google.protobuf.Struct with `operation` and its arguments, and one in return."""
        # Struct has only doubles, so numbers are converted where they are used.
        given = json_format.MessageToDict(struct_pb2.Struct.FromString(body))
        try:
            answer = await self._answer(given.pop("operation", ""), given)
        except (ValueError, KeyError, TypeError) as error:
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, _reason(error)) from None
        return json_format.ParseDict(answer or {}, struct_pb2.Struct()).SerializeToString()

    async def _answer(self, operation: str, given: Arguments) -> Answer | None:
        if operation in self._others:
            return await self._others[operation](given)
        if operation not in self._on_streams:
            known = ", ".join(sorted((*self._others, *self._on_streams)))
            raise ValueError(f"there is no operation {operation!r}; there are {known}")
        stream = await self._tables.stream(given["table"])
        return self._on_streams[operation](stream, given)

    async def _inject(self, given: Arguments) -> Answer:
        stream = await self._tables.stream(given["table"])
        mutations = [Mutation.FromString(b64decode(mutation)) for mutation in given["mutations"]]
        if not mutations:
            raise ValueError("a record has at least one mutation")
        key = b64decode(given["row_key"])
        # Before the record is logged: a reader may look at the row as soon as it has the record.
        if given["apply"]:
            await self._writes.apply_silently(given["table"], key, mutations)
        origin = (
            Origin("", 0, GARBAGE_COLLECTION)
            if given["garbage_collection"]
            else Origin(given["cluster"] or DEFAULT_CLUSTER, int(given["tiebreaker"]), USER)
        )
        return {"commit_us": stream.inject(key, mutations, origin, int(given["commit_us"]))}

    async def _gc(self, given: Arguments) -> Answer:
        return {"records": await self._writes.collect_garbage(given["table"])}

    async def _set_churn(self, given: Arguments) -> None:
        self._churn.set(given["seconds"], int(given["seed"]), given["table"])

    async def _drop_connections(self, given: Arguments) -> Answer:
        self._drop()
        return {"servers": self._started()}

    async def _servers(self, given: Arguments) -> Answer:
        return {"servers": self._started()}


def _layout(stream: ChangeStream, given: Arguments) -> Answer:
    return {"partitions": [[_text(keys.start), _text(keys.end)] for keys in stream.layout.partitions]}


def _chunk_bytes(stream: ChangeStream, given: Arguments) -> None:
    size = int(given["size"])
    if size < 1:
        raise ValueError(f"chunks of {size} bytes; pass 1 or more")
    stream.chunk_bytes = size


def _end_streams_without_close(stream: ChangeStream, given: Arguments) -> Answer:
    """End each open stream once, also one that is waiting."""
    count = len(stream.readers)
    # One fault for each open stream, so that each of them ends.
    stream.faults.extend([Armed(Fault.END_WITHOUT_CLOSE)] * count)
    stream.wake()
    return {"streams": count}


def _fault(stream: ChangeStream, given: Arguments) -> None:
    armed = Armed(Fault(given["fault"]), int(given["after_records"]))
    stream.faults.extend([armed] * int(given["count"]))
    stream.wake()


def _wide_tokens(stream: ChangeStream, given: Arguments) -> None:
    stream.wide_tokens = bool(given["wide"])


def _streams(stream: ChangeStream, given: Arguments) -> Answer:
    return {
        "streams": [
            {"start": _text(reader.keys.start), "end": _text(reader.keys.end), "records": reader.records}
            for reader in stream.readers
        ]
    }


def _statistics(stream: ChangeStream, given: Arguments) -> Answer:
    return {
        "records": stream.log.end,
        "layout_changes": stream.layout.changes,
        "faults_pending": len(stream.faults),
        "streams_opened": stream.opened,
    }


def _reason(error: Exception) -> str:
    return f"the argument {error} is missing" if isinstance(error, KeyError) else str(error)


def _key(given: Arguments) -> bytes:
    return b64decode(given["key"])


def _text(key: bytes) -> str:
    return b64encode(key).decode("ascii")
