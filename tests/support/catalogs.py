"""Catalogues of Iceberg in a file."""

from __future__ import annotations

from pathlib import Path


def catalog_in(folder: Path | str) -> dict[str, str]:
    """Return the properties of a catalogue in a file of `folder`, which keeps its tables in the folder too."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
