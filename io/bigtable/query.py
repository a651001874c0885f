"""The requests to the service, as plain protobufs. Only a running pipeline imports this module.

Both ends in time are inclusive; the service rounds timestamps down to microseconds. A request starts either
from a time or from tokens: one token for exactly its partition, or several that cover it exactly.
"""

from __future__ import annotations

from typing import Any

from google.cloud.bigtable_v2.types import bigtable as service

from penstock.io.bigtable.frontier import Position
from penstock.io.bigtable.keys import KeyRange
from penstock.io.bigtable.source import ChangeStream
from penstock.timestamps import NANOS

ReadChangeStreamRequest = service.ReadChangeStreamRequest.pb()
ReadChangeStreamResponse = service.ReadChangeStreamResponse.pb()
PartitionsRequest = service.GenerateInitialChangeStreamPartitionsRequest.pb()
PartitionsResponse = service.GenerateInitialChangeStreamPartitionsResponse.pb()
SampleRowKeysRequest = service.SampleRowKeysRequest.pb()
SampleRowKeysResponse = service.SampleRowKeysResponse.pb()


def read_request(stream: ChangeStream, app_profile: str, heartbeat_ms: int, position: Position) -> Any:
    """Return the ReadChangeStreamRequest for one partition."""
    request = ReadChangeStreamRequest(table_name=stream.table_path, app_profile_id=app_profile)
    _write_range(request.partition.row_range, position.partition)
    if position.start is not None:
        _write_time(request.start_time, position.start)
    for part, token in position.tokens:
        continuation = request.continuation_tokens.tokens.add(token=token)
        _write_range(continuation.partition.row_range, part)
    # A stream with an end time closes there without a token, and then a merge that needs its token never completes.
    if stream.end is not None and position.bounded:
        _write_time(request.end_time, stream.end)
    request.heartbeat_duration.FromMilliseconds(heartbeat_ms)
    return request


def partitions_request(stream: ChangeStream, app_profile: str) -> Any:
    """Return the GenerateInitialChangeStreamPartitionsRequest."""
    return PartitionsRequest(table_name=stream.table_path, app_profile_id=app_profile)


def _write_range(row_range: Any, part: KeyRange) -> None:
    row_range.start_key_closed, row_range.end_key_open = part


def _write_time(timestamp: Any, nanoseconds: int) -> None:
    timestamp.seconds, timestamp.nanos = divmod(nanoseconds, NANOS)
