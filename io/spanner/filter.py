"""Selects the records to emit: by table, kind of change and transaction tag. Pure.

Records that are left out still advance the position and the watermark. A selection belongs to the running program:
after a resume with another one, the new one applies from the checkpoint on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.errors import UsageError
from penstock.io.spanner.record import DataChangeRecord
from penstock.tables import is_glob, matches_table

MOD_TYPES = ("INSERT", "UPDATE", "DELETE")


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects records. Empty `tables` and `mod_types` allow all; `excluded_tags` are transaction tags.

    Tables are names or globs, with the letter case of the database: ``sales.*`` in a named schema, and without a schema
    the tables of this name in all schemas.
    """

    tables: frozenset[str] = frozenset()
    mod_types: frozenset[str] = frozenset()
    excluded_tags: frozenset[str] = frozenset()

    @classmethod
    def checked(
        cls, tables: Iterable[str], mod_types: Iterable[str], exclude_transaction_tags: Iterable[str]
    ) -> Selection:
        """Return the selection that the arguments describe.

        Raises:
            UsageError: an argument is one text instead of several, or a mod_type does not exist.
        """
        kinds = frozenset(each.upper() for each in _texts("mod_types", mod_types))
        if unknown := sorted(kinds - set(MOD_TYPES)):
            raise UsageError(
                f"mod_types has {', '.join(unknown)}: pass one or more of {', '.join(MOD_TYPES)}, or none for all"
            )
        tags = frozenset(_texts("exclude_transaction_tags", exclude_transaction_tags))
        # An empty tag would match every transaction without a tag.
        if "" in tags:
            raise UsageError(
                "exclude_transaction_tags has an empty tag: transactions without a tag are always read; leave it out"
            )
        return cls(frozenset(_texts("tables", tables)), kinds, tags)

    @property
    def names(self) -> frozenset[str]:
        """The tables that are named, without those that a glob stands for."""
        return frozenset([each for each in self.tables if not is_glob(each)])

    @property
    def everything(self) -> bool:
        """Whether all records pass."""
        return self == Selection()

    def reads_table(self, table: str) -> bool:
        """Return whether records of the table may pass."""
        schema, _, name = table.rpartition(".")
        return not self.tables or matches_table(self.tables, schema, name)

    def passes(self, record: DataChangeRecord) -> bool:
        """Return whether the record is emitted."""
        return (
            # The table is the usual choice, and drops most.
            self.reads_table(record.table_name)
            and (not self.mod_types or record.mod_type in self.mod_types)
            and record.transaction_tag not in self.excluded_tags
        )


def _texts(name: str, values: Iterable[str]) -> list[str]:
    found = [values] if isinstance(values, str) else list(values)
    # A text is also a sequence of texts, its letters.
    if isinstance(values, str) or not all(isinstance(each, str) for each in found):
        raise UsageError(
            f"{name}={values!r} is not a list of texts: pass a list, such as [{str(found[0])!r}]"
        )
    return found
