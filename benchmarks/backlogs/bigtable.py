"""Google's Bigtable emulator behind Penstock's front, with a change stream of one tablet that has not been read."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
from google.cloud.bigtable_admin_v2.types import bigtable_table_admin as admin_types
from google.cloud.bigtable_admin_v2.types import table as table_types
from google.cloud.bigtable_v2.types import bigtable as data_types

from backlogs import Backlog, batches, times_since
from penstock_emulators.bigtable import BigtableEmulator

PROJECT, INSTANCE, TABLE = "benchmark", "benchmark", "orders"
CELLS = 3


@contextmanager
def backlog(changes: int, rows: int) -> Iterator[Backlog]:
    """Start the emulator and write `changes` row mutations of three cells each, `rows` in each request."""
    with BigtableEmulator.start() as emulator:
        os.environ |= emulator.environment()
        with grpc.insecure_channel(emulator.host) as channel:
            _create_table(channel)
            start = time.time_ns()
            _write(channel, changes, rows)
        times = times_since(start)

        def settings(empty: bool) -> Mapping[str, str]:
            return {"project": PROJECT, "instance": INSTANCE, "table": TABLE, **times(empty)}

        yield Backlog("bigtable", changes, settings)


def _create_table(channel: grpc.Channel) -> None:
    request = admin_types.CreateTableRequest(
        parent=f"projects/{PROJECT}/instances/{INSTANCE}",
        table_id=TABLE,
        table={
            "column_families": {"f": {}},
            "change_stream_config": {"retention_period": {"seconds": 86400}},
        },
    )
    channel.unary_unary(
        "/google.bigtable.admin.v2.BigtableTableAdmin/CreateTable",
        request_serializer=lambda message: type(message).pb(message).SerializeToString(),
        response_deserializer=table_types.Table.pb().FromString,
    )(request)


def _write(channel: grpc.Channel, changes: int, rows: int) -> None:
    mutate = channel.unary_stream(
        "/google.bigtable.v2.Bigtable/MutateRows",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=bytes,
    )
    path = f"projects/{PROJECT}/instances/{INSTANCE}/tables/{TABLE}"
    for numbers in batches(changes, rows):
        request = data_types.MutateRowsRequest.pb()(table_name=path)
        for number in numbers:
            entry = request.entries.add(row_key=b"row%06d" % (number % 100_000))
            for cell in range(CELLS):
                _set(entry.mutations.add().set_cell, number, cell)
        list(mutate(request))


def _set(cell: Any, number: int, index: int) -> None:
    cell.family_name, cell.column_qualifier = "f", b"column%d" % index
    cell.timestamp_micros, cell.value = number * 1000, b"%060d" % number
