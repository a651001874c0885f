"""Tables that change while writes are under way, against an emulator behind that is made up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from google.cloud.bigtable_admin_v2.types import bigtable_table_admin as admin_types
from google.cloud.bigtable_admin_v2.types import table as table_types

from penstock_emulators.bigtable.admin import TableAdmin
from penstock_emulators.bigtable.profiles import Profiles
from penstock_emulators.bigtable.tables import Tables
from penstock_emulators.bigtable.writes import MutateRow, Writes

INSTANCE = "projects/p/instances/i"
NAME = f"{INSTANCE}/tables/t"
STREAMING = {
    "name": NAME,
    "column_families": {"f": {}},
    "change_stream_config": {"retention_period": {"seconds": 86400}},
}
SCHEMA = table_types.Table.pb(table_types.Table(name=NAME, column_families={"f": {}}))


class Behind:
    """An emulator behind that answers writes when it is let, and says in which order it answered."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answered: list[str] = []

    async def unary(self, method: str, body: bytes, context: object = None) -> bytes:
        name = method.rpartition("/")[2]
        if name == "MutateRow":
            await self.answers.wait()
        else:
            await asyncio.sleep(0)
        self.answered.append(name)
        return b"" if name == "MutateRow" else SCHEMA.SerializeToString()

    async def table(self, name: str) -> object:
        return SCHEMA


class Front:
    """Writes and administration of one table."""

    def __init__(self) -> None:
        self.behind = Behind()
        self.tables = Tables(self.behind)  # type: ignore[arg-type]
        self._writes = Writes(self.behind, self.tables, Profiles())  # type: ignore[arg-type]
        self._admin = TableAdmin(self.behind, self.tables)  # type: ignore[arg-type]

    def write(self, key: bytes) -> asyncio.Future[bytes]:
        request = MutateRow(table_name=NAME, row_key=key)
        request.mutations.add().set_cell.family_name = "f"
        return _begun(self._writes.mutate_row, request.SerializeToString())

    def create(self) -> asyncio.Future[bytes]:
        request = admin_types.CreateTableRequest(parent=INSTANCE, table_id="t", table=STREAMING)
        return _begun(self._admin.create, admin_types.CreateTableRequest.serialize(request))

    def delete(self) -> asyncio.Future[bytes]:
        request = admin_types.DeleteTableRequest(name=NAME)
        return _begun(self._admin.delete, admin_types.DeleteTableRequest.serialize(request))

    def switch_on(self) -> asyncio.Future[bytes]:
        paths = {"paths": ["change_stream_config"]}
        request = admin_types.UpdateTableRequest(table=STREAMING, update_mask=paths)
        return _begun(self._admin.update, admin_types.UpdateTableRequest.serialize(request))

    def logged(self) -> list[bytes]:
        table = self.tables.streaming(NAME)
        assert table is not None
        assert table.stream is not None
        return [record.key for record in table.stream.log.read(0, 99)]


def _begun(call: Callable[[bytes, None], Awaitable[bytes]], body: bytes) -> asyncio.Future[bytes]:
    return asyncio.ensure_future(call(body, None))


async def a_moment() -> None:
    await asyncio.sleep(0.01)


def test_a_stream_is_enabled_after_earlier_writes_have_finished() -> None:
    async def scenario() -> None:
        front = Front()
        before = front.write(b"before")
        await a_moment()
        switched = front.switch_on()
        await a_moment()
        after = front.write(b"after")
        await a_moment()
        assert not switched.done(), "a write that no record tells of may still reach the table"
        front.behind.answers.set()
        await asyncio.gather(before, switched, after)
        assert front.logged() == [b"after"]

    asyncio.run(scenario())


def test_a_write_that_waits_while_the_table_is_recreated_is_in_the_new_stream() -> None:
    async def scenario() -> None:
        front = Front()
        await front.create()
        first = front.write(b"row")
        await a_moment()
        deleted, created = front.delete(), front.create()
        await a_moment()
        second = front.write(b"row")
        await a_moment()
        front.behind.answers.set()
        await asyncio.gather(first, deleted, created, second)
        assert front.behind.answered[1:] == ["MutateRow", "DeleteTable", "CreateTable", "MutateRow"]
        assert front.logged() == [b"row"]

    asyncio.run(scenario())


def test_a_table_has_its_stream_if_its_creator_disconnects() -> None:
    async def scenario() -> None:
        front = Front()
        creating = front.create()
        await asyncio.sleep(0)
        creating.cancel()
        await a_moment()
        assert front.behind.answered == ["CreateTable"]
        assert front.logged() == []

    asyncio.run(scenario())
