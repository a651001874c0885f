"""Which dead letters a replay writes: letters of changes that the job reads now.

A replay runs without the source, which selects tables, operations and transaction tags. So the letters are selected
where they enter. Filters by columns (`where`) are not repeated: columns of a letter that has passed them may be masked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.event import ChangeEvent, Op
from penstock.io.postgres.record import Table
from penstock.io.spanner.events import OPS
from penstock.tables import EVERY_TABLE, TableSelection


@dataclass(frozen=True, slots=True)
class LetterSelection:
    """Selects elements of dead letters. `operations`: all if it is empty. `without_tags`: transaction tags."""

    tables: TableSelection = EVERY_TABLE
    operations: frozenset[Op] = frozenset()
    without_tags: frozenset[str] = frozenset()

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> LetterSelection:
        """Return the selection that the parameters of a template describe."""
        operations = {Op(str(each).upper()) for each in parameters.get("operations") or ()}
        if mod_types := parameters.get("mod_types"):
            # They do not concern the rows of a snapshot.
            operations |= {Op.READ, *(OPS[each.upper()] for each in mod_types)}
        tags = (parameters.get(name) or () for name in ("without_tags", "exclude_transaction_tags"))
        return cls(
            TableSelection.of(parameters),
            frozenset(operations),
            frozenset(tag for each in tags for tag in each),
        )

    def has(self, element: Any) -> bool:
        """Return whether the change of an element is selected: an event, or a record of a source."""
        if isinstance(element, ChangeEvent):
            tag = element.transaction.tag if element.transaction else ""
            return self._has(element.source.schema, element.source.table, element.op, tag)
        return self._has(*_record_position(element))

    def _has(self, schema: str, table: str, op: Op | None, tag: str) -> bool:
        return (
            # A message of PostgreSQL belongs to no table. Sources with one table have no choice of tables.
            (not table or self.tables.has(schema, table))
            and (op is None or not self.operations or op in self.operations)
            and tag not in self.without_tags
        )


def _record_position(record: Any) -> tuple[str, str, Op | None, str]:
    """Return schema, table, operation and transaction tag of a record; "" or None where its source has none.

    Only Spanner's source filters records by operation. Records of the other sources are filtered later, as events, so
    their operation is None here.
    """
    if name := getattr(record, "table_name", ""):  # of Spanner
        schema, _, table = name.rpartition(".")
        return schema, table, OPS[record.mod_type], record.transaction_tag
    if isinstance(table := getattr(record, "table", None), Table):
        return table.schema, table.name, None, ""
    return "", "", None, ""
