"""Makes the tables of a target fit the columns of a batch, and finds the schemas that a table cannot have. Pure.

For sinks that create and alter a table before they write its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

from penstock.event.model import ChangeEvent, Source, TableSchema, Version
from penstock.event.schema_changes import warn_once
from penstock.event.schema_policies import ChangePolicies

Table = TypeVar("Table", bound=Hashable)
"""The name of a table of the target."""

Schemas = Mapping[TableSchema, Version]
"""The schemas of events of one table, each with the lowest version of its events."""


def schemas_of(
    events: Iterable[ChangeEvent], table_of: Callable[[ChangeEvent], Table]
) -> dict[Table, tuple[Source, Schemas]]:
    """Return the source and the schemas of each table, in the order of the events.

    Leaves out events without a key and events of no table, which sinks of rows refuse or leave out.
    """
    tables: dict[Table, tuple[Source, dict[TableSchema, Version]]] = {}
    for event in events:
        if event.schema.key_columns and event.source.system != "bigtable":
            schemas = tables.setdefault(table_of(event), (event.source, {}))[1]
            if event.version < schemas.setdefault(event.schema, event.version):
                schemas[event.schema] = event.version
    return dict(tables)


def make_fit(
    table: str,
    source: Source,
    schemas: Schemas,
    policies: ChangePolicies,
    fit: Callable[[Schemas], None],
    errors: tuple[type[Exception], ...],
    reason_of: Callable[[Exception], str] = str,
) -> dict[TableSchema, str]:
    """Make a table fit the rows of some schemas by `fit`; return those that it cannot have, with the reason.

    `fit` raises one of `errors` if the table cannot have their columns. `reason_of` returns the text of such an error,
    or raises it if it may pass.

    Raises:
        one of `errors`: the table cannot have the columns, and the policy is not *try_evolve*.
    """
    try:
        # Rows of one batch may have several schemas, and the table needs the columns of all.
        fit(schemas)
        return {}
    except errors as error:
        if not policies.refuses_rows:
            raise
        reason = reason_of(error)
    warn_once(
        f"rows of {source.qualified_table} are refused, because {table} cannot follow its columns: {reason}"
    )
    if len(schemas) == 1:
        return dict.fromkeys(schemas, reason)
    # The oldest first: the rows of one of them may be written.
    unfit: dict[TableSchema, str] = {}
    for schema in sorted(schemas, key=lambda each: schemas[each]):
        unfit |= make_fit(table, source, {schema: schemas[schema]}, policies, fit, errors, reason_of)
    return unfit
