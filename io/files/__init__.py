"""Files as a sink: JSON Lines, Parquet and Avro, published exactly once.

    from penstock.io.files import WriteToJsonLines

    records | WriteToJsonLines("/data/out", table=lambda r: r.table_name, key=lambda r: r.keys, shards=4)
    events | WriteToParquet("/data/lake")

Names are loaded when they are first used, because names of files and JSON Lines need no Beam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.io.staging.complete_marks import complete_until
from penstock.io.staging.errors import OutputError
from penstock.lazy import load

if TYPE_CHECKING:
    from penstock.io.files.write import WriteToJsonLines
    from penstock.io.files.write_rows import WriteToAvro, WriteToParquet
    from penstock.io.staging.staged_file import PublishedFile

__all__ = [
    "OutputError",
    "PublishedFile",
    "WriteToAvro",
    "WriteToJsonLines",
    "WriteToParquet",
    "complete_until",
]

# `write` also registers the coder of PublishedFile.
_HOMES = {
    "PublishedFile": "write",
    "WriteToAvro": "write_rows",
    "WriteToJsonLines": "write",
    "WriteToParquet": "write_rows",
}


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
