"""Selects the records to emit: by table, kind of change and transaction tag. Pure.

Records that are left out still advance the position and the watermark. A selection belongs to the running program:
after a resume with another one, the new one applies from the checkpoint on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.errors import UsageError
from penstock.io.spanner.record import DataChangeRecord
from penstock.tables import EVERY_TABLE, TableSelection, checked_texts

MOD_TYPES = ("INSERT", "UPDATE", "DELETE")


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects records. No `mod_types` allow all; `excluded_tags` are transaction tags."""

    tables: TableSelection = EVERY_TABLE
    mod_types: frozenset[str] = frozenset()
    excluded_tags: frozenset[str] = frozenset()

    @classmethod
    def checked(
        cls,
        tables: Iterable[str],
        mod_types: Iterable[str],
        exclude_transaction_tags: Iterable[str],
        without_tables: Iterable[str] = (),
    ) -> Selection:
        """Return the selection that the arguments describe.

        Raises:
            UsageError: an argument is one text instead of several, or a mod_type does not exist.
        """
        kinds = frozenset(each.upper() for each in checked_texts("mod_types", mod_types))
        if unknown := sorted(kinds - set(MOD_TYPES)):
            raise UsageError(
                f"mod_types has {', '.join(unknown)}: pass one or more of {', '.join(MOD_TYPES)}, or none for all"
            )
        tags = frozenset(checked_texts("exclude_transaction_tags", exclude_transaction_tags))
        # An empty tag would match every transaction without a tag.
        if "" in tags:
            raise UsageError(
                "exclude_transaction_tags has an empty tag: transactions without a tag are always read; leave it out"
            )
        return cls(TableSelection.checked(tables, without_tables), kinds, tags)

    @property
    def everything(self) -> bool:
        """Whether all records pass."""
        return self == Selection()

    def reads_table(self, table: str) -> bool:
        """Return whether records of the table may pass."""
        return self.tables.has_qualified(table)

    def passes(self, record: DataChangeRecord) -> bool:
        """Return whether the record is emitted."""
        return (
            # The table is the usual choice, and drops most.
            self.reads_table(record.table_name)
            and (not self.mod_types or record.mod_type in self.mod_types)
            and record.transaction_tag not in self.excluded_tags
        )
