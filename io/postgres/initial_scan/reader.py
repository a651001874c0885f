"""Reads blocks of tables at a held snapshot, over its own connections. One thread uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.errors import ChangeStreamError
from penstock.io.postgres.incremental.chunk_reader import ChunkReader, States
from penstock.io.postgres.incremental.held_read_view import HeldReadView
from penstock.io.postgres.initial_scan.stream import Copied, ViewLostError
from penstock.io.postgres.position import ReadView
from penstock.io.postgres.source import ChangeStream, PostgresSettings


class HeldBlockReader:
    """Reads the tables of one slot. While it is open, the server keeps the snapshot."""

    def __init__(
        self,
        stream: ChangeStream,
        settings: PostgresSettings,
        view: ReadView,
        states: dict[tuple[str, str], States],
    ) -> None:
        """`states`: see `ChunkReader`. Raises as `BlockReader` does."""
        # `Settings` is shared by all sources, and declares another type of connection.
        connection: Any = settings.connection
        self._stream, self._view = stream, view
        self._stopped: Callable[[], bool] = lambda: False
        self._held = HeldReadView(stream, connection, view)
        try:
            if not self._held.resume(view):
                raise self._lost()
        except BaseException:
            self._held.close()
            raise
        self._reader = ChunkReader(
            stream,
            connection,
            settings.selection,
            self._held,
            stopped=lambda: self._stopped(),
            in_order=True,
            held_states=states,
        )

    def read_blocks(self, table: str, start: int, end: int, stopped: Callable[[], bool]) -> Copied:
        """See `BlockReader`."""
        self._stopped = stopped
        self._held.keep()
        try:
            return self._reader.read_blocks(table, start, end)
        except ChangeStreamError as error:
            # An error does not say whether the snapshot is gone or only the table was changed, so the server is asked.
            if self._held.exists(self._view):
                raise
            raise self._lost() from error

    def _lost(self) -> ViewLostError:
        return ViewLostError(f"{self._stream}: the server does not hold it any more")

    def close(self) -> None:
        self._reader.close()
        self._held.close()
