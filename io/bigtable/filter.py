"""Which changes are handed on: families, columns, clusters, collected garbage. Pure; the position moves anyway.

A selection belongs to the running program: after a resume with another one it counts from the position on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock.io.bigtable.record import (
    ChangeStreamMutation,
    DeleteFamily,
    Entry,
    MutationType,
    UnknownMutation,
)

Column = tuple[str, bytes]
"""A family and a qualifier."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What passes. Empty allow-lists allow everything; what a deny-list names never passes.

    With allow-lists an entry passes when its family is in `families` or its column in `columns`. The deletion
    of a family touches its columns too, so it passes when one of them may, and no column on a deny-list stops
    it. Mutations of unknown kind always pass: nobody can tell what they touch.
    """

    families: frozenset[str] = frozenset()
    columns: frozenset[Column] = frozenset()
    ignored_families: frozenset[str] = frozenset()
    ignored_columns: frozenset[Column] = frozenset()
    garbage_collection: bool = True
    source_clusters: frozenset[str] = frozenset()
    _column_families: frozenset[str] = field(init=False, repr=False, default=frozenset())

    def __post_init__(self) -> None:
        object.__setattr__(self, "_column_families", frozenset(family for family, _ in self.columns))

    @property
    def _by_column(self) -> bool:
        """Whether it depends on its entries what of a record passes."""
        return bool(self.families or self.columns or self.ignored_families or self.ignored_columns)

    @property
    def everything(self) -> bool:
        """Whether nothing is ever left out."""
        return self == Selection()

    def apply(self, record: ChangeStreamMutation) -> ChangeStreamMutation | None:
        """Return the part of the record that passes, or None. `source_clusters` never stops garbage collection."""
        if record.type is MutationType.GARBAGE_COLLECTION:
            if not self.garbage_collection:
                return None
        elif self.source_clusters and record.source_cluster_id not in self.source_clusters:
            return None
        if not self._by_column:
            return record
        passing = tuple([entry for entry in record.entries if self._passes(entry)])
        if len(passing) == len(record.entries):
            return record
        return replace(record, entries=passing) if passing else None

    def _passes(self, entry: Entry) -> bool:
        if isinstance(entry, UnknownMutation):
            return True
        family = entry.family
        if family in self.ignored_families:
            return False
        if not self.families and not self.columns:
            return isinstance(entry, DeleteFamily) or (family, entry.qualifier) not in self.ignored_columns
        if isinstance(entry, DeleteFamily):
            return family in self.families or family in self._column_families
        column = family, entry.qualifier
        return column not in self.ignored_columns and (family in self.families or column in self.columns)
