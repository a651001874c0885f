"""Files as a sink: JSON Lines, published exactly once.

    from penstock.io.files import WriteToJsonLines

    records | WriteToJsonLines("/data/out", table=lambda r: r.table_name, key=lambda r: r.keys, shards=4)

Names are loaded when they are first used, because names of files and JSON Lines need no Beam.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.io.files.write import WriteToJsonLines
    from penstock.io.staging.errors import OutputError
    from penstock.io.staging.publication import PublishedFile

__all__ = ["OutputError", "PublishedFile", "WriteToJsonLines"]

_MODULES = {
    "OutputError": "penstock.io.staging.errors",
    "PublishedFile": "penstock.io.staging.publication",
    "WriteToJsonLines": "penstock.io.files.write",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
