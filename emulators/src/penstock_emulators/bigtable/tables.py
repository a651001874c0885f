"""The tables that the front knows, from the requests that pass through it or, for older tables, from the backend."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import grpc

from penstock_emulators.bigtable.backend import Backend, CallError
from penstock_emulators.bigtable.locks import EVERYTHING, RowLocks, lane
from penstock_emulators.bigtable.table import ChangeStream, Table


def now_us() -> int:
    """Return microseconds since the epoch."""
    return time.time_ns() // 1000


class Tables:
    """Tables by full name. The backend is asked for a table that was made before the front started."""

    def __init__(self, backend: Backend) -> None:
        """No tables are known."""
        self._backend = backend
        self._tables: dict[str, Table] = {}
        self._locks: WeakValueDictionary[str, RowLocks] = WeakValueDictionary()
        self._lanes = count()

    @asynccontextmanager
    async def writing(self, name: str, stripes: int) -> AsyncIterator[Table | None]:
        """Provide the table with its rows in `stripes` locked, if its change stream is on, otherwise None.

        The table does not change during the block. A write that waited for the locks gets the table that exists then,
        not an earlier one of the same name.
        """
        while True:
            table = self.streaming(name)
            wanted = stripes if table is not None else lane(next(self._lanes))
            async with self._locks_of(name).holding(wanted):
                # While this task waited, the stream may have been switched on or off, or the table made again. Then the
                # locks are of the wrong kind: try again.
                if self.streaming(name) is table:
                    yield table
                    return

    def altering(self, name: str) -> AbstractAsyncContextManager[None]:
        """Lock all of a table, which need not exist, for a block that changes it."""
        return self._locks_of(name).holding(EVERYTHING)

    def _locks_of(self, name: str) -> RowLocks:
        """Return the locks of a name. They outlive the table, since tasks may wait for them."""
        return self._locks.setdefault(name, RowLocks())

    def streaming(self, name: str) -> Table | None:
        """Return the table if its change stream is on."""
        table = self._tables.get(name)
        return table if table is not None and table.stream is not None else None

    def known(self, name: str) -> Table | None:
        """Return the table if the front knows it."""
        return self._tables.get(name)

    def all_streaming(self) -> list[Table]:
        """Return the tables whose change stream is on, in order of creation."""
        return [table for table in self._tables.values() if table.stream is not None]

    async def get(self, name: str) -> Table:
        """Return a table. The caller holds it with `altering`, so no one deletes it.

        Raises:
            CallError: NOT_FOUND.
        """
        # A table of an earlier run of the backend.
        if name not in self._tables:
            self.add(name, dict((await self._schema(name)).column_families))
        return self._tables[name]

    async def stream(self, name: str) -> ChangeStream:
        """Return a table's change stream.

        Raises:
            CallError: NOT_FOUND, or FAILED_PRECONDITION if it is off.
        """
        table = self._tables.get(name)
        if table is None:
            await self._schema(name)
        stream = table.stream if table is not None else None
        if stream is None:
            raise CallError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"table {name!r} has no change stream; set change_stream_config on it",
            )
        return stream

    async def _schema(self, name: str) -> Any:
        try:
            return await self._backend.table(name)
        except grpc.aio.AioRpcError as error:
            raise CallError(error.code(), f"table {name!r}: {error.details()}") from None

    def add(self, name: str, families: dict[str, Any]) -> Table:
        """Add a table that exists in the backend."""
        table = self._tables.setdefault(name, Table(name, families))
        return table

    def forget(self, name: str) -> None:
        """Remove a table that was deleted; its stream ends."""
        # Removed first: a stream that is asked for now must not be found.
        table = self._tables.pop(name, None)
        if table is not None:
            table.switch_off(deleted=True)
