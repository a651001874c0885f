"""Selects the changes to emit: by family, column, cluster and garbage collection. Pure.

Changes that are left out still advance the position and the watermark. A selection belongs to the running program:
after a resume with another one, the new one applies from the checkpoint on.
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
    """Selects the entries of a record. Empty allow-lists allow all entries; ignored families and columns never pass.

    With allow-lists an entry passes if its family is in `families` or its column in `columns`. The deletion of a
    family affects its columns too, so it passes if one of them is allowed, and an ignored column does not stop it.
    Mutations of an unknown kind always pass, because their family is not known.
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
        """Whether the entries of a record must be looked at."""
        return bool(self.families or self.columns or self.ignored_families or self.ignored_columns)

    @property
    def everything(self) -> bool:
        """Whether all entries pass."""
        return self == Selection()

    def apply(self, record: ChangeStreamMutation) -> ChangeStreamMutation | None:
        """Return the part of the record that passes, or None. `source_clusters` never stops garbage collection."""
        if record.type is MutationType.GARBAGE_COLLECTION:
            if not self.garbage_collection:
                return None
        elif self.source_clusters and record.source_cluster_id not in self.source_clusters:
            return None
        # Without a look at the entries, which would decode them.
        if not self._by_column:
            return record
        passing = tuple([entry for entry in record.entries if self._passes(entry)])
        # The record itself still has the bytes that were received; a copy would be encoded again.
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
