"""The rows that the published files of a table give when their changes are replayed. Needs pyarrow.

The rows are in a temporary file of SQLite. Published files never change, so a look reads those that are new.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock.errors import UsageError
from penstock.event.column_types import Kind
from penstock.event.keys import canonical_rule
from penstock.event.model import ChangeEvent, Column, Op, TableSchema
from penstock.event.plain_types import plain_schema
from penstock.event.replica import decode_version
from penstock.io.columnar.table_rows import key_text
from penstock.pipelines.published_folder import NoFolderError, PublishedFolder
from penstock.verify.columnar_rows import ColumnarRows
from penstock.verify.digests import digests_of_values, no_rows
from penstock.verify.file_changes import FileKind, UnreadableLineError
from penstock.verify.keys import encode_values
from penstock.verify.replay import Change, ReplayedRow, folded, row_changes
from penstock.verify.rounds import Look, StoredRow, column_differences
from penstock.verify.source import SourceRows

_PART = 5_000
_KEYS_IN_QUERY = 500
_NO_KEY_TYPES = (Kind.TIME, Kind.INTERVAL)
"""Types whose values are texts in files, so that a key of the file is not the key of the event."""
_decode = msgspec.msgpack.Decoder(ReplayedRow).decode


@dataclass(slots=True)
class ReplayedFiles(ColumnarRows):
    """One table. `kind`: of files. `folder`: of the output, a path or a URL. `name`: of the table's folder in it."""

    kind: FileKind
    folder: str
    name: str
    stack: ExitStack
    is_open: bool = field(default=False, init=False)
    _schema: TableSchema = field(default=TableSchema(()), init=False)
    _session: sqlite3.Connection | None = field(default=None, init=False)
    _read: set[str] = field(default_factory=set, init=False)
    _known: set[str] = field(default_factory=set, init=False)
    """Columns of the files."""
    _truncated: str = field(default="", init=False)
    """The version of the newest TRUNCATE."""

    def open(self, schema: TableSchema) -> bool:
        """Replay the files, and choose the columns that are compared; return whether there are files.

        Raises:
            UsageError: the key has a type that files have as text.
        """
        self._schema = schema
        columns = self._compared(schema)
        self._catch_up()
        self.columns = [column for column in columns if column.name in self._known]
        self.left_out = [name for name in schema.names if name not in self._known]
        self.is_open = bool(self._read)
        return self.is_open

    def expected(self, rows: SourceRows) -> pa.RecordBatch:
        """Return the digests of the rows that the files would have."""
        stored = self._stored(rows.events.values())
        made = digests_of_values(self._values(key, row) for key, row in stored.items())
        return pa.concat_batches([made, no_rows(sorted(rows.events.keys() - stored.keys()))])

    def _values(self, key: str, row: Mapping[str, Any]) -> list[Any]:
        return [key, *(row.get(column.name) for column in self.columns)]

    def fingerprints(self) -> Iterator[pa.RecordBatch]:
        """Yield the digests of all rows, in parts. Deleted rows are left out."""
        self._catch_up()
        found = self._rows.execute("select key, row from rows")
        while rows := found.fetchmany(_PART):
            replayed = ((key, _decode(row)) for key, row in rows)
            yield digests_of_values(self._values(key, row.values) for key, row in replayed if not row.deleted)

    def look(self, rows: Mapping[str, ChangeEvent | None]) -> Look:
        """See `penstock.verify.rounds.Target`."""
        self._catch_up()
        wanted = self._stored(event for event in rows.values() if event is not None)
        stored = {
            key: StoredRow(
                decode_version(row.version),
                row.deleted,
                () if row.deleted or rows[key] is None else column_differences(wanted.get(key), row.values),
            )
            for key, row in self._with_keys(list(rows)).items()
        }
        return Look(stored, decode_version(self._truncated).order if self._truncated else None)

    def _compared(self, schema: TableSchema) -> TableSchema:
        """Return the columns of the source in the form of the files; raise as `open` does."""
        if texts := [each.name for each in schema.key_columns if each.type.kind in _NO_KEY_TYPES]:
            raise UsageError(
                f"{self.name}: files have {', '.join(texts)} of the primary key as text, so a row of the source "
                "cannot be found in them. Choose other tables with --table"
            )
        return plain_schema(schema)

    @property
    def _rows(self) -> sqlite3.Connection:
        if self._session is None:
            place = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-verify-"))
            session = sqlite3.connect(Path(place, "rows"), isolation_level=None)
            self._session = self.stack.enter_context(closing(session))
            session.execute("pragma journal_mode = off")
            session.execute("pragma synchronous = off")
            session.execute("create table rows (key text primary key, version text, row blob) without rowid")
        return self._session

    def _catch_up(self) -> None:
        """Read the files that are new."""
        published = PublishedFolder(self.folder, (self.kind.suffix,))
        try:
            files = [each for each in published.files() if each.startswith(f"{self.name}/")]
        except NoFolderError:  # it is made with the first file
            return
        session = self._rows
        for file in files:
            if file not in self._read:
                session.execute("begin")
                self._replay(self._changes(file, published.read(file)))
                session.execute("commit")
                self._read.add(file)

    def _changes(self, file: str, content: bytes) -> list[Change]:
        try:
            read = self.kind.read(content)
        except UnreadableLineError as error:
            raise UsageError(f"{file} below {self.folder}: {error}") from None
        except ValueError:
            raise UsageError(f"{file} below {self.folder} is no file of change rows: remove it") from None
        self._known |= read.columns
        return read.changes

    def _replay(self, changes: list[Change]) -> None:
        if truncates := [each.version for each in changes if each.op == Op.TRUNCATE]:
            self._truncated = max(self._truncated, *truncates)
            self._rows.execute("delete from rows where version < ?", (self._truncated,))
        rows: dict[str, ReplayedRow] = {}
        for change in changes:
            if change.key is None or change.version < self._truncated:
                continue
            for key, row in row_changes(change, self._key_text):
                rows[key] = folded(rows.get(key), row)
        self._save(rows)

    def _save(self, changes: dict[str, ReplayedRow]) -> None:
        keys = list(changes)
        for start in range(0, len(keys), _PART):
            part = keys[start : start + _PART]
            known = self._with_keys(part)
            rows = ((key, folded(known.get(key), changes[key])) for key in part)
            values = ((key, row.version, encode_values(row)) for key, row in rows)
            self._rows.executemany("insert or replace into rows values (?, ?, ?)", values)

    def _with_keys(self, keys: Sequence[str]) -> dict[str, ReplayedRow]:
        found: dict[str, ReplayedRow] = {}
        for start in range(0, len(keys), _KEYS_IN_QUERY):
            part = keys[start : start + _KEYS_IN_QUERY]
            query = f"select key, row from rows where key in ({', '.join('?' * len(part))})"
            found |= {key: _decode(row) for key, row in self._rows.execute(query, part)}
        return found

    def _key_text(self, key: dict[str, Any]) -> str:
        """Return the key of a file as `key_text` of the event's."""
        columns = {column.name: column for column in self._schema.key_columns}
        return key_text({name: _event_value(columns.get(name), value) for name, value in key.items()})


def _event_value(column: Column | None, value: Any) -> Any:
    if column is None or value is None:
        return value
    # The only numbers that files have in another type.
    if column.type.kind is Kind.UINT64:
        value = int(value)
    elif column.type.kind is Kind.DECIMAL:
        value = Decimal(value)
    # An old key comes from an image, which has the source's form.
    rule = canonical_rule(column.type)
    return value if rule is None else rule(value)
