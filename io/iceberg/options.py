"""The options of the Iceberg sink, each declared once; see `penstock.options`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from penstock.event.schema_policies import Abilities
from penstock.io.columnar.options import ABILITIES, TableSinkOptions
from penstock.io.columnar.table_rows import Mode
from penstock.options import Accepts, options

_FOLLOWED: Abilities = {
    **ABILITIES["current"],
    "drop": ("evolve", "lenient", "ignore", "stop"),
    "rename": ("evolve", "lenient", "stop"),
}

ICEBERG_ABILITIES: Mapping[Mode, Abilities] = {
    "log": ABILITIES["log"],
    "current": _FOLLOWED,
    "history": _FOLLOWED,
}
"""The policies for changes of columns that Iceberg tables keep; see `penstock.event.schema_policies`."""


@options
class IcebergSinkOptions(TableSinkOptions):
    """The options of `WriteToIceberg`."""

    table: Annotated[str, Accepts(example="shop.{table}")] = field(kw_only=False)
    """Table to write, with its namespace, such as ``shop.orders``. ``{table}``, ``{schema}`` and ``{database}`` are the
    names of the source; without them all events must be of one table."""
    catalog: str = "default"
    """Name of the catalogue, as in the configuration of pyiceberg."""
    catalog_properties: Annotated[Mapping[str, str] | None, Accepts(example="uri=${env:CATALOG_URI}")] = None
    """Properties of the catalogue, in addition to the configuration file and the environment of pyiceberg, which are
    the better place for credentials."""
