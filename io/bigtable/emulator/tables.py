"""The tables that the front knows, filled from what passes through it or, for older ones, from behind it."""

from __future__ import annotations

import time
from typing import Any

import grpc

from penstock.io.bigtable.emulator.backend import Backend, CallError
from penstock.io.bigtable.emulator.table import ChangeStream, Table


def now_us() -> int:
    """Return microseconds since the epoch."""
    return time.time_ns() // 1000


class Tables:
    """Tables by full name; one that was made before the front started is asked for when it is first needed."""

    def __init__(self, backend: Backend) -> None:
        """Know none."""
        self._backend = backend
        self._tables: dict[str, Table] = {}

    def streaming(self, name: str) -> Table | None:
        """Return the table if its change stream is on."""
        table = self._tables.get(name)
        return table if table is not None and table.stream is not None else None

    def known(self, name: str) -> Table | None:
        """Return the table if the front has met it."""
        return self._tables.get(name)

    def all_streaming(self) -> list[Table]:
        """Return the tables whose change stream is on, in order of creation."""
        return [table for table in self._tables.values() if table.stream is not None]

    async def get(self, name: str) -> Table:
        """Return a table.

        Raises:
            CallError: NOT_FOUND.
        """
        if name not in self._tables:
            try:
                schema = await self._backend.table(name)
            except grpc.aio.AioRpcError as error:
                raise CallError(error.code(), f"table {name!r}: {error.details()}") from None
            self.add(name, dict(schema.column_families))
        return self._tables[name]

    async def stream(self, name: str) -> ChangeStream:
        """Return a table's change stream.

        Raises:
            CallError: NOT_FOUND, or FAILED_PRECONDITION if it is off.
        """
        stream = (await self.get(name)).stream
        if stream is None:
            raise CallError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"table {name!r} has no change stream; set change_stream_config on it",
            )
        return stream

    def add(self, name: str, families: dict[str, Any]) -> Table:
        """Remember a table that exists behind."""
        table = self._tables.setdefault(name, Table(name, families))
        return table

    def forget(self, name: str) -> None:
        """Forget a table that was deleted; its stream ends."""
        table = self._tables.pop(name, None)
        if table is not None:
            table.switch_off(deleted=True)
