"""A folder of signals: one JSON file for each, as `penstock snapshot` writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_signal(folder: Path, id_: str, type_: str, data: Mapping[str, Any], nanoseconds: int) -> Path:
    """Write a signal; its file appears complete. Files with an earlier time are read first.

    Raises:
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{nanoseconds:020d}-{id_}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"id": id_, "type": type_, "data": data}))
    part.rename(path)
    return path
