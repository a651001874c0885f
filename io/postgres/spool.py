"""Messages of a transaction that is not committed yet: in memory at first, in a temporary file when there are many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from struct import Struct
from tempfile import SpooledTemporaryFile

from penstock.io.postgres.record import Table

_HEAD = Struct("!QI")

MEMORY_BYTES = 4 << 20
"""How much of one transaction stays in memory."""


class Spool:
    """Messages with their positions, in the order in which they were added.

    `in_stream`: they came between Stream Start and Stream Stop, so each names its (sub)transaction. `tables`: those
    that were described before the first message.
    """

    def __init__(
        self, *, in_stream: bool, tables: Mapping[int, Table], memory_bytes: int = MEMORY_BYTES
    ) -> None:
        self.in_stream = in_stream
        # A copy: messages of other transactions may bring other descriptions before this one is committed.
        self.tables = dict(tables)
        self.described: list[tuple[int, Table]] = []
        """The tables that the messages describe, with their object ids, in the order of the messages."""
        self.aborted: set[int] = set()
        """Ids of the subtransactions that were rolled back."""
        self._file = SpooledTemporaryFile(max_size=memory_bytes, prefix="penstock-transaction-")  # noqa: SIM115

    def add(self, lsn: int, payload: bytes) -> None:
        self._file.write(_HEAD.pack(lsn, len(payload)) + payload)

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Yield position and payload of each message. Nothing can be added after it."""
        self._file.seek(0)
        while head := self._file.read(_HEAD.size):
            lsn, size = _HEAD.unpack(head)
            yield lsn, self._file.read(size)

    def close(self) -> None:
        self._file.close()
