"""A SQLite database in memory as bytes, and back. Pure.

Python 3.11 has `serialize` and `deserialize`. Under Python 3.10 the bytes go through a temporary file.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path


def to_bytes(database: sqlite3.Connection) -> bytes:
    """Return the file that the database would be."""
    if sys.version_info >= (3, 11):
        data: bytes = database.serialize()
        return data
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run")
        with closing(sqlite3.connect(path)) as copy:
            database.backup(copy)
        return path.read_bytes()


def from_bytes(data: bytes, empty: sqlite3.Connection) -> None:
    """Load `data`, the content of a database file, into `empty`, a database in memory."""
    if sys.version_info >= (3, 11):
        empty.deserialize(data)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run")
        path.write_bytes(data)
        with closing(sqlite3.connect(path)) as copy:
            copy.backup(empty)
