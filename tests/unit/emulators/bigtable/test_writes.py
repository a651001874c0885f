"""Writes against an emulator behind that is made up: what it says decides what is logged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from google.cloud.bigtable_admin_v2.types import table as table_types

from penstock_emulators.bigtable.profiles import Profiles
from penstock_emulators.bigtable.table import DAY_US, Table
from penstock_emulators.bigtable.tables import Tables, now_us
from penstock_emulators.bigtable.writes import MutateRow, MutateRows, MutateRowsResponse, Writes

NAME = "projects/p/instances/i/tables/t"


class Behind:
    """An emulator behind that answers when it is let, and refuses the entries that it is told to."""

    def __init__(self, failing: tuple[int, ...] = ()) -> None:
        self.answers = asyncio.Event()
        self.asked = asyncio.Event()
        self._failing = failing

    async def unary(self, method: str, body: bytes, context: object = None) -> bytes:
        self.asked.set()
        await self.answers.wait()
        return b""

    async def collected(self, method: str, body: bytes, context: object = None) -> list[bytes]:
        response = MutateRowsResponse()
        for place in range(len(MutateRows.FromString(body).entries)):
            response.entries.add(index=place).status.code = 13 if place in self._failing else 0
        return [response.SerializeToString()]


class Context:
    async def write(self, message: bytes) -> None:
        self.written = message


def set_up(behind: Behind) -> tuple[Writes, Table]:
    tables = Tables(behind)  # type: ignore[arg-type]
    table = tables.add(NAME, {"f": table_types.ColumnFamily.pb()()})
    table.switch_on(DAY_US, now_us)
    return Writes(behind, tables, Profiles()), table  # type: ignore[arg-type]


def logged(table: Table) -> list[bytes]:
    assert table.stream is not None
    return [record.key for record in table.stream.log.read(0, 99)]


def row(add: Callable[..., object], key: bytes) -> None:
    entry = add(row_key=key)
    entry.mutations.add().set_cell.family_name = "f"  # type: ignore[attr-defined]


def test_only_entries_that_cbtemulator_applied_are_logged() -> None:
    async def scenario() -> list[bytes]:
        writes, table = set_up(Behind(failing=(1,)))
        request = MutateRows(table_name=NAME)
        for key in (b"a", b"b", b"c"):
            row(request.entries.add, key)
        await writes.mutate_rows(request.SerializeToString(), Context())
        return logged(table)

    assert asyncio.run(scenario()) == [b"a", b"c"]


def test_a_write_is_logged_if_its_client_disconnects() -> None:
    async def scenario() -> list[bytes]:
        behind = Behind()
        writes, table = set_up(behind)
        request = MutateRow(table_name=NAME, row_key=b"a")
        request.mutations.add().set_cell.family_name = "f"
        call = asyncio.ensure_future(writes.mutate_row(request.SerializeToString(), None))
        await behind.asked.wait()
        call.cancel()
        await asyncio.sleep(0)
        behind.answers.set()
        await asyncio.sleep(0.01)
        return logged(table)

    assert asyncio.run(scenario()) == [b"a"]
