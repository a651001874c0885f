"""The loop around a session leaves the others their turns."""

from __future__ import annotations

import asyncio

from google.cloud.bigtable_v2.types import bigtable as api

from penstock_emulators.bigtable.layout import KeyRange, Layout
from penstock_emulators.bigtable.reads import serve
from penstock_emulators.bigtable.session import Session
from penstock_emulators.bigtable.table import DAY_US, ChangeStream
from penstock_emulators.bigtable.tables import now_us
from penstock_emulators.bigtable.wire import Mutation, Origin, partition_message


class Context:
    async def write(self, message: bytes) -> None:
        pass


def test_a_stream_that_skips_a_long_log_does_not_delay_other_streams() -> None:
    async def scenario() -> int:
        stream = ChangeStream(DAY_US, Layout.between([b"m"]), now_us)
        request = api.ReadChangeStreamRequest.pb()(partition=partition_message(KeyRange(b"m", b"")))
        request.start_time.FromMicroseconds(now_us())
        stream.append([(b"a", [Mutation()])] * 20_000, Origin("c"), now_us())
        request.end_time.FromMicroseconds(stream.clock.watermark_us())
        reading = asyncio.ensure_future(serve(Session.open(stream, request, now_us()), Context()))
        turns = 0
        while not reading.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(scenario()) > 5
