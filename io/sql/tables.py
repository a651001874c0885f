"""The tables that a sender writes: made and altered for the columns of its events, before their transaction begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce

import psycopg

from penstock.event.column_numbers import Numbers, adapted_by_number, follows_numbers
from penstock.event.model import NO_COLUMNS, ChangeEvent, Source, TableSchema
from penstock.event.replica import encode_version
from penstock.event.schema_changes import Adaptation, SchemaChangedError, merged_schema, one_schema
from penstock.event.schema_policies import ChangePolicies, policies_of
from penstock.io.sql.catalog import Catalog
from penstock.io.sql.errors import SqlTargetError, classify_error
from penstock.io.sql.statements import TableName, TargetTable, stored_type
from penstock.io.sql.target import SqlTarget
from penstock.io.sql.values import sql_type
from penstock.io.staging.table_sources import TableSources
from penstock.io.staging.unfit_schemas import Schemas, make_fit, schemas_of


@dataclass(frozen=True, slots=True)
class _KnownTable:
    """A table that is ready for rows with the columns `joined`, which all schemas seen so far have.

    `adaptations`: how rows of a schema are written, if the policy for other types is *lenient*; else empty. `names`:
    how they are written under the names that the target has, and their schema then, if columns are followed by their
    `numbers` in `source`; else empty.
    """

    joined: TableSchema = NO_COLUMNS
    target: TargetTable | None = None
    adaptations: Mapping[TableSchema, Adaptation] = field(default_factory=dict)
    names: Mapping[TableSchema, tuple[Adaptation, TableSchema]] = field(default_factory=dict)
    source: Source | None = None
    numbers: Numbers = field(default_factory=dict)
    numbered: Mapping[TableSchema, TableSchema] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        return self.target is not None


_UNKNOWN_TABLE = _KnownTable()


class StaleColumnsError(Exception):
    """Another shard has renamed or dropped columns of a table since it was prepared."""


class TargetTables:
    """The tables of one sender. A table is created and altered before the transaction of its rows.

    If the transaction of the rows had written the table, an ALTER would wait for the other shards, and they for it.
    """

    def __init__(self, target: SqlTarget, catalog: Catalog) -> None:
        self._target, self._catalog = target, catalog
        self._known: dict[TableName, _KnownTable] = {}
        self._refused: dict[tuple[TableName, TableSchema], str] = {}
        self._sources = TableSources(SqlTargetError)

    def prepare(self, events: Sequence[ChangeEvent]) -> None:
        """Create and alter the tables that a batch needs.

        Raises:
            SchemaChangedError, SqlTargetError: a table cannot have the columns of its events.
            psycopg.Error: the server refuses.
        """
        # The columns of a log never change, so a log that is known needs nothing more.
        if self._target.mode == "log":
            for name in dict.fromkeys(map(self._target.table_of, events)):
                if name not in self._known:
                    self._catalog.log(name)
                    self._known[name] = _KnownTable(target=TargetTable(name, (), ()))
            return
        for event in events:
            # A message belongs to no table.
            if event.source.table:
                self._sources.check(self._target.table_of(event), event.source)
        self._refused = {
            (name, schema): reason
            for name, (source, schemas) in schemas_of(events, self._target.table_of).items()
            for schema, reason in self._prepare_table(name, source, schemas).items()
        }

    def check_numbers(self, events: Sequence[ChangeEvent]) -> None:
        """Raise StaleColumnsError if another shard has renamed a column since the tables were prepared.

        No other shard does so before the transaction ends.
        """
        for name in dict.fromkeys(map(self._target.table_of, events)):
            known = self._known.get(name, _UNKNOWN_TABLE)
            if (
                known.source is not None
                and self._catalog.numbers(name, known.source, "for share") != known.numbers
            ):
                raise StaleColumnsError

    def refusals(self, events: Sequence[ChangeEvent]) -> dict[int, str]:
        """Return the reason by index for each event of the batch whose table cannot have its columns."""
        if not self._refused:
            return {}
        reasons = [self._refused.get((self._target.table_of(each), each.schema)) for each in events]
        return {index: reason for index, reason in enumerate(reasons) if reason is not None}

    def adapted(self, events: Iterable[ChangeEvent]) -> Iterable[ChangeEvent]:
        """Return the events as their tables take them."""
        # Nearly always False, and the table of each event costs time.
        adapts = any(known.names or known.adaptations for known in self._known.values())
        return map(self._adapted, events) if adapts else events

    def table(self, name: TableName) -> TargetTable | None:
        """Return a table of the batch."""
        return self._known[name].target

    def _prepare_table(self, name: TableName, source: Source, schemas: Schemas) -> dict[TableSchema, str]:
        policies = policies_of(self._target.schema_changes, source.schema, source.table)
        fit = partial(self._evolve, name, source, policies)
        errors = (SchemaChangedError, SqlTargetError, psycopg.Error)
        return make_fit(str(name), source, schemas, policies, fit, errors, self._lasting)

    def _lasting(self, error: Exception) -> str:
        """Return the text of an error; raise it if it may pass."""
        if isinstance(error, psycopg.Error):
            classified = classify_error(error.sqlstate or "", str(error), self._target.name)
            if classified.retryable:
                raise error
            return str(classified)
        return str(error)

    def _evolve(self, name: TableName, source: Source, policies: ChangePolicies, schemas: Schemas) -> None:
        known = self._known.get(name, _UNKNOWN_TABLE)
        if follows_numbers(policies):
            known = self._follow(name, source, schemas, known, policies)
        of_names = [named for _, named in known.names.values()]
        self._known[name] = self._fit(name, of_names or list(schemas), known, policies)

    def _follow(
        self,
        name: TableName,
        source: Source,
        schemas: Schemas,
        known: _KnownTable,
        policies: ChangePolicies,
    ) -> _KnownTable:
        """Rename and drop columns of a table; return what is known of it then."""
        versions = [(encode_version(version), schema) for schema, version in schemas.items()]
        moves = self._catalog.follow(name, source, versions, policies)
        # Schemas of earlier batches too: more of them may wait.
        numbered = {**known.numbered, **moves.numbered}
        # Columns may have other names now.
        known = known if moves.known == known.numbers else _UNKNOWN_TABLE
        names = {schema: adapted_by_number(moves.known, each, policies) for schema, each in numbered.items()}
        return replace(known, source=source, numbers=moves.known, numbered=numbered, names=names)

    def _fit(
        self, name: TableName, schemas: Sequence[TableSchema], known: _KnownTable, policies: ChangePolicies
    ) -> _KnownTable:
        """Create and alter a table for rows of further schemas."""
        # The server converts the text of a value to the type of its column, so types are compared only for this.
        if policies.type == "lenient":
            if known.is_ready and set(schemas) <= known.adaptations.keys():
                return known
            every = list(dict.fromkeys((*known.adaptations, *schemas)))
            types = self._catalog.types(name)
            joined, adaptations = one_schema(
                str(name), types, every, policies, lambda each: stored_type(sql_type(each))
            )
        else:
            joined, adaptations = reduce(merged_schema, schemas, known.joined), {}
            if known.is_ready and joined == known.joined:
                return known
        target = self._catalog.replica(name, joined, policies)
        return replace(known, joined=joined, target=target, adaptations=adaptations)

    def _adapted(self, event: ChangeEvent) -> ChangeEvent:
        """Return an event as its table takes it."""
        known = self._known.get(self._target.table_of(event), _UNKNOWN_TABLE)
        if (named := known.names.get(event.schema)) is not None:
            event = named[0].event(event, named[1])
        adaptation = known.adaptations.get(event.schema)
        return event if adaptation is None else adaptation.event(event, known.joined)
