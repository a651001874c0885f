"""The two change-stream calls: a thin asynchronous shell around sessions."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from google.cloud.bigtable_v2.types import bigtable as data_types

from penstock_emulators.bigtable.backend import CODES, CallError
from penstock_emulators.bigtable.profiles import ProfileError, Profiles
from penstock_emulators.bigtable.session import RequestError, Session, Status
from penstock_emulators.bigtable.table import ChangeStream
from penstock_emulators.bigtable.tables import Tables, now_us
from penstock_emulators.bigtable.wire import partition_message

_Generate = data_types.GenerateInitialChangeStreamPartitionsRequest.pb()
_Generated = data_types.GenerateInitialChangeStreamPartitionsResponse.pb()
_Read = data_types.ReadChangeStreamRequest.pb()


class Reads:
    """Serves GenerateInitialChangeStreamPartitions and ReadChangeStream."""

    def __init__(self, tables: Tables, profiles: Profiles) -> None:
        """Read the streams of `tables`."""
        self._tables = tables
        self._profiles = profiles

    async def generate(self, body: bytes, context: Any) -> None:
        """GenerateInitialChangeStreamPartitions: the current partitions."""
        stream = await self._stream_for(_Generate.FromString(body))
        for keys in stream.layout.partitions:
            await context.write(_Generated(partition=partition_message(keys)).SerializeToString())

    async def read(self, body: bytes, context: Any) -> None:
        """ReadChangeStream, until it ends or the client disconnects."""
        request = _Read.FromString(body)
        stream = await self._stream_for(request)
        try:
            session = Session.open(stream, request, now_us())
        except RequestError as error:
            raise _call_error(error.status) from None
        # Known to the stream before the first step, so that no record is missed between the two.
        stream.readers.add(session.reader)
        try:
            await serve(session, context)
        finally:
            stream.readers.discard(session.reader)

    async def _stream_for(self, request: Any) -> ChangeStream:
        """Return the stream that may be read with the request's table and profile.

        Raises:
            CallError: NOT_FOUND, or FAILED_PRECONDITION.
        """
        stream = await self._tables.stream(request.table_name)
        try:
            profile = self._profiles.get(request.table_name.partition("/tables/")[0], request.app_profile_id)
        except ProfileError as error:
            raise CallError(grpc.StatusCode.NOT_FOUND, str(error)) from None
        # As the service: two clusters apply changes in different orders.
        if not profile.HasField("single_cluster_routing"):
            raise CallError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "a change stream is read with an app profile of single-cluster routing; this one routes to any",
            )
        return stream


async def serve(session: Session, context: Any) -> None:
    """Send the responses of the session until it ends. Other tasks run between its steps."""
    wake, loop = session.reader.wake, asyncio.get_running_loop()
    while True:
        # Cleared before the step and not after it: a record that comes during the step must wake this task.
        wake.clear()
        now = now_us()
        step = session.step(now)
        for response in step.responses:
            await context.write(response)
        # OK ends the call without an exception.
        if step.end is not None:
            if step.end.code:
                raise _call_error(step.end)
            return
        if step.idle_until_us:
            alarm = loop.call_later(max(0, step.idle_until_us - now) / 1e6, wake.set)
            await wake.wait()
            alarm.cancel()
        # Without a response nothing was awaited, and a long scan would keep the event loop.
        elif not step.responses:
            await asyncio.sleep(0)


def _call_error(status: Status) -> CallError:
    return CallError(CODES[status.code], status.message)
