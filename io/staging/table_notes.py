"""Notes of the tables that a sink has written, in the folder of its staged batches: idle tables get marks too. No Beam.

    <staging>/…/<sink>/table_<digest>     {"name": "shop.orders", "source_schema": "public", "source_table": "orders"}

A driver knows only the tables that it has written itself. A target whose names have placeholders has other ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from penstock.io.staging.errors import OutputError
from penstock.io.staging.names import staging_folder
from penstock.io.staging.store import FileStore

_PREFIX = "table_"


class WrittenTable(msgspec.Struct, frozen=True):
    """A table of a target, and the table of the source whose changes it has."""

    name: str
    source_schema: str
    source_table: str


class TableNotes:
    """The notes of one sink and job. They stay as long as the checkpoint."""

    def __init__(self, store: FileStore, job: str, sink: str) -> None:
        self._store, self._folder = store, staging_folder(job, sink)

    def read(self) -> list[WrittenTable]:
        """Return the tables, in no order."""
        names = self._store.names_in(self._folder)
        return [
            _decode(self._store.read(name)) for name in names if name.rpartition("/")[2].startswith(_PREFIX)
        ]

    def add(self, tables: Iterable[WrittenTable]) -> None:
        """Note tables. Those that are noted already stay as they are."""
        for table in tables:
            content = msgspec.json.encode(table)
            name = f"{self._folder}/{_PREFIX}{hashlib.blake2b(content, digest_size=12).hexdigest()}"
            # An earlier driver, or an earlier try of this epoch, has noted it.
            if self._store.length(name) is not None:
                continue
            try:
                self._store.create(name, [content])
            except OutputError:
                # Another driver has noted it at the same moment: a paused one, or its successor.
                if self._store.length(name) is None:
                    raise
            self._store.sync([name])


_decode = msgspec.json.Decoder(WrittenTable).decode
