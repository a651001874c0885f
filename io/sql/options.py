"""The options of the SQL sink, each declared once; see `penstock.options`. Pure."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from penstock.event.schema_policies import Abilities
from penstock.io.staging.options import ParkingOptions, SendOptions, TargetTableOptions, TombstoneOptions
from penstock.options import Accepts, options

Mode = Literal["current", "log"]

ABILITIES: Abilities = {
    "add": ("evolve", "try_evolve", "lenient", "ignore", "stop"),
    "widen": ("evolve", "try_evolve", "lenient", "ignore", "stop"),
    "type": ("try_evolve", "lenient", "ignore", "stop"),
    "narrow": ("lenient", "ignore", "stop"),
    "drop": ("evolve", "lenient", "ignore", "stop"),
    "rename": ("evolve", "lenient", "stop"),
    "nullability": ("lenient", "ignore"),
    "key": ("stop",),
}
"""The policies for changes of columns that a replica keeps; see `penstock.event.schema_policies`."""


@options
class SqlSinkOptions(TargetTableOptions, TombstoneOptions, ParkingOptions, SendOptions):
    """The options of `WriteToSql`."""

    dsn: Annotated[str, Accepts(example="${env:TARGET_DSN}")] = field(kw_only=False)
    """Connection string of libpq. A password belongs in PGPASSWORD, in ~/.pgpass, or in a reference to a secret."""
    mode: Mode = "current"
    """Whether the sink maintains a replica (current) or appends every event (log)."""
    schema: str = "public"
    """Schema of the target tables and of the tables of the sink itself, such as the ledger."""
    mark_complete: bool = False
    """Whether the table ``penstock_complete`` says until which commit time the target is complete."""
