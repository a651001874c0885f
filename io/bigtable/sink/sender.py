"""Conditional requests to rows of Bigtable, many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
from google.cloud.bigtable_v2.services.bigtable.transports.grpc import BigtableGrpcTransport

from penstock.event.model import ChangeEvent
from penstock.event.replica import NotReplicableError
from penstock.io.bigtable.client import channel_to, check_table, routing
from penstock.io.bigtable.sink.errors import classify_error, is_row_error
from penstock.io.bigtable.sink.target import BigtableTarget
from penstock.io.bigtable.sink.values import (
    CheckAndMutateRowRequest,
    CheckAndMutateRowResponse,
    is_of_the_sink,
    mark_request,
    parts_of_row,
    row_request,
)
from penstock.io.staging.complete_marks import Mark
from penstock.io.staging.delivery import (
    PARTLY_WRITTEN,
    Delivery,
    EventBatch,
    Refusal,
    RefusalError,
    Sent,
)

_REQUEST_SECONDS = 60.0
_CHECK_SECONDS = 30.0
_AT_A_TIME = 32
"""Number of row mutations that are sent at the same time."""


class BigtableSender:
    """See `penstock.io.staging.delivery.Sender`.

    There are no transactions over rows, and no ledger: each row has its version, so a repeat changes nothing.
    """

    def __init__(self, target: BigtableTarget, skip_refused: bool) -> None:
        self._target, self._skip_refused = target, skip_refused
        self._channel = channel_to(target.connection, BigtableGrpcTransport.DEFAULT_HOST)
        self._call = self._channel.unary_unary(
            "/google.bigtable.v2.Bigtable/CheckAndMutateRow",
            request_serializer=CheckAndMutateRowRequest.SerializeToString,
            response_deserializer=CheckAndMutateRowResponse.FromString,
        )
        self._headers = routing(target.table_path, target.connection)

    def check(self) -> None:
        """Ask the service for one row key of the table."""
        check_table(self._target.table_path, self._target.connection, _CHECK_SECONDS)

    def send(self, delivery: Delivery, events: EventBatch) -> Sent:
        """Write the batch; see `Sender.send`. A batch may be written in part when an error is raised."""
        rows: dict[bytes, list[tuple[int, ChangeEvent]]] = {}
        for index, event in enumerate(events):
            if not is_of_the_sink(event, self._target.version_family):
                # A repr keeps an event without a valid key apart; `row_request` refuses it with a reason.
                key = next(iter((event.key or {}).values()), b"")
                rows.setdefault(key if isinstance(key, bytes) else repr(key).encode(), []).append(
                    (index, event)
                )
        # Rows are independent, so they are sent side by side. The changes of one row keep their order within
        # its request. The end of the block waits for requests that run, also after an error: none arrives while the
        # batch is sent again.
        with ThreadPoolExecutor(_AT_A_TIME) as threads:
            refusals = [each for part in threads.map(self._write_row, rows.values()) for each in part]
        # In the order of the batch, whatever thread was faster.
        refused = sorted(refusals, key=lambda each: each.index)
        if refused and not self._skip_refused:
            raise RefusalError(refused[0], PARTLY_WRITTEN)
        return Sent(tuple(refused))

    def mark_complete(self, job: str, sink: str, record: int, until_us: int) -> None:
        """Set the time until which the target is complete; see `penstock.publish.MarksComplete`."""
        target = self._target
        mark = Mark.of(job, sink, record, until_us)
        try:
            self._ask(
                mark_request(target.table_path, target.connection.app_profile, target.version_family, mark)
            )
        except grpc.RpcError as error:
            raise classify_error(error.code().name, error.details() or "", target.name) from error

    def close(self) -> None:
        self._channel.close()

    def _write_row(self, changes: Sequence[tuple[int, ChangeEvent]]) -> list[Refusal]:
        """Write the changes of one row in as few requests as possible; halve a request that is refused."""
        refused: list[Refusal] = []
        parts = parts_of_row([event for _, event in changes])
        while parts:
            first, last = parts.pop(0)
            # From the front, because the version of a later part would make the earlier part look old.
            reason = self._refusal([event for _, event in changes[first:last]])
            if reason is None:
                continue
            if last - first > 1:
                middle = (first + last) // 2
                # Halved until the row that is refused stands alone: the service does not say which one it is.
                parts[:0] = [(first, middle), (middle, last)]
            else:
                refused.append(Refusal(changes[first][0], reason))
        return refused

    def _refusal(self, events: Sequence[ChangeEvent]) -> str | None:
        """Write changes of one row; return why they are refused, or None."""
        try:
            self._request(events)
        except NotReplicableError as error:
            return str(error)
        except grpc.RpcError as error:
            code = error.code().name
            # Other statuses concern the table or the connection. The batch fails, and is sent again or ends the
            # pipeline.
            if not is_row_error(code):
                raise classify_error(code, error.details() or "", self._target.name) from error
            return f"Bigtable says {code}"
        return None

    def _request(self, events: Sequence[ChangeEvent]) -> None:
        target = self._target
        profile = target.connection.app_profile
        self._ask(row_request(target.table_path, profile, target.version_family, events))

    def _ask(self, request: CheckAndMutateRowRequest) -> None:
        self._call(request, timeout=_REQUEST_SECONDS, metadata=self._headers)
