"""Files as a sink: JSON Lines, published exactly once.

    from penstock.io.files import WriteToJsonLines

    records | WriteToJsonLines("/data/out", table=lambda r: r.table_name, key=lambda r: r.keys, shards=4)

Names are loaded when they are first used, because names of files and JSON Lines need no Beam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.io.staging.errors import OutputError
from penstock.lazy import load

if TYPE_CHECKING:
    from penstock.io.files.write import WriteToJsonLines
    from penstock.io.staging.publication import PublishedFile

__all__ = ["OutputError", "PublishedFile", "WriteToJsonLines"]

# `write` also registers the coder of PublishedFile.
_HOMES = {"PublishedFile": "write", "WriteToJsonLines": "write"}


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
