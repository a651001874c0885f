"""The parts that an epoch adds to a change log: rows in files of tasks, or of staged events. Needs pyarrow."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet

from penstock.errors import UsageError
from penstock.event.model import Source, TableSchema
from penstock.io.columnar.data_files import DataFile
from penstock.io.staging.parked_files import ChangeCodec


class Folder(Protocol):
    """The files of a table by their paths; see `penstock.io.staging.store.FileStore`.

    `create` replaces a file of the same name, which an earlier try has left.
    """

    def create(self, name: str, content: Iterable[bytes]) -> None: ...
    def sync(self, names: Iterable[str]) -> None: ...
    def read(self, name: str) -> bytes: ...
    def length(self, name: str) -> int | None: ...
    def delete(self, names: Iterable[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class LogPart:
    """Rows with the columns `schema` that an epoch adds to a table. `file` is None if they are staged as events."""

    source: Source
    schema: TableSchema
    rows: Callable[[Folder], pa.Table]
    file: DataFile | None = None

    @classmethod
    def of_file(cls, file: DataFile) -> LogPart:
        return cls(file.source, file.schema, partial(_read, file), file)


def _encode_part(part: LogPart) -> bytes:
    if part.file is None:
        raise UsageError(
            f"{part.source.qualified_table} is refused, and the checkpoint holds changes of it that an earlier version "
            "has staged: start the pipeline once with on_refused_table='stop', which writes them, and park it then"
        )
    return msgspec.msgpack.encode(part.file)


def _decode_part(encoded: bytes) -> LogPart:
    return LogPart.of_file(_decode_file(encoded))


def _weigh_part(part: LogPart) -> tuple[int, int]:
    return (0, 0) if part.file is None else (part.file.records, part.file.length)


PARKED_PARTS = ChangeCodec(_encode_part, _decode_part, _weigh_part)
"""A parked table of a log has the names of its data files."""


def _read(file: DataFile, folder: Folder) -> pa.Table:
    rows = pyarrow.parquet.read_table(io.BytesIO(folder.read(file.path)))
    # A format may leave the columns of the partition out of the file.
    for name, value in (file.partition.values if file.partition else {}).items():
        if name not in rows.column_names and (value is None or isinstance(value, str)):
            rows = rows.append_column(name, pa.array([value] * rows.num_rows, pa.string()))
    return rows


_decode_file = msgspec.msgpack.Decoder(DataFile).decode
