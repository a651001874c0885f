"""A history of changes that has every column type, replica identity and kind of record. It is data; see `debezium_engine`.

A change is one transaction. `prepare:` runs it as a two-phase commit, `origin:` as one of another server, and `copy:` copies
two rows into a table. The order of the changes is that of the recorded golden files.
"""

# ruff: noqa: E501

from __future__ import annotations

from tests.integration.postgres.debezium_history import (
    built_in_types,
    identities,
    large_values,
    other_types,
    tables_and_keys,
)
from tests.integration.postgres.debezium_history.tables import SETUP

CHANGES = [
    *built_in_types.CHANGES,
    *other_types.CHANGES,
    *identities.CHANGES,
    *large_values.CHANGES,
    *tables_and_keys.CHANGES,
]

__all__ = ["CHANGES", "SETUP"]
