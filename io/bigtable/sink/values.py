"""Converts events of Bigtable to the mutations of one row of the target, with its version; and marks to rows of it.

Each row of the target has the version of its newest change in a separate cell. The cell is written with the change,
by one conditional request. So a change that comes again, or late, finds a version that is not lower and changes
nothing: a deletion that is repeated removes nothing that was written since.

A mark that says until when the target is complete is a row with cells of that family only, as a deleted row is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from google.cloud.bigtable_v2.types import bigtable as bigtable_types
from google.cloud.bigtable_v2.types import data as data_types

from penstock.event.model import CellChange, ChangeEvent
from penstock.event.replica import NotReplicableError, encode_version
from penstock.io.staging.complete_marks import Mark

CheckAndMutateRowRequest = bigtable_types.CheckAndMutateRowRequest.pb()
CheckAndMutateRowResponse = bigtable_types.CheckAndMutateRowResponse.pb()
_Mutation = data_types.Mutation.pb()
_RowFilter = data_types.RowFilter.pb()

QUALIFIER = b"version"
MARK_PREFIX = b"_penstock_complete/"
"""The beginning of the keys of the rows with marks."""
MARK, RECORD = b"mark", b"record"
_SERVER_TIME = -1
"""The timestamp of a cell that the service sets. Source: Bigtable documentation, `Mutation.SetCell`."""
MAX_MUTATIONS = 100_000
"""Mutations of one row in one request, the version included. Source: Bigtable documentation, "Quotas and limits"."""


def is_of_the_sink(event: ChangeEvent, family: str) -> bool:
    """Return whether a change was written by this sink, by the family of versions; it must not go back."""
    # The cell of the version is written with every change of the sink, so its family marks them all.
    return any(cell.family == family for cell in event.cells)


def parts_of_row(events: Sequence[ChangeEvent]) -> list[tuple[int, int]]:
    """Return the places, first and last (exclusive), of the changes of a row that fit into one request together.

    A change with more entries than the limit has a separate part, which the service refuses.
    """
    # The size begins at 1 for the cell of the version, which each request has.
    parts, first, size = [], 0, 1
    for index, event in enumerate(events):
        if index > first and size + len(event.cells) > MAX_MUTATIONS:
            parts.append((first, index))
            first, size = index, 1
        size += len(event.cells)
    return [*parts, (first, len(events))]


def row_request(table: str, app_profile: str, family: str, events: Iterable[ChangeEvent]) -> Any:
    """Return the conditional request that applies the changes of one row, in their order.

    Raises:
        NotReplicableError: an event is not of Bigtable, or has an entry that cannot be repeated.
    """
    mutations: list[Any] = []
    version, key, order = "", b"", 0
    for event in events:
        mutations += map(_mutation, _checked_cells(event))
        # The last event's version covers the earlier ones, because they are in one request.
        version, order = encode_version(event.version), event.version.order
        key = next(iter((event.key or {}).values()))
    # The time of the commit, so that a policy of the family removes versions by their age.
    cell = {
        "family_name": family,
        "column_qualifier": QUALIFIER,
        "timestamp_micros": order // 1_000_000 * 1000,
    }
    mutations.append(_Mutation(set_cell={**cell, "value": version.encode()}))
    return CheckAndMutateRowRequest(
        table_name=table,
        app_profile_id=app_profile,
        row_key=key,
        predicate_filter=_not_below(family, QUALIFIER, version.encode()),
        # `false_mutations`: they apply when the condition finds nothing, so no version is as high as this one.
        false_mutations=mutations,
    )


def mark_request(table: str, app_profile: str, family: str, mark: Mark) -> Any:
    """Return the conditional request that replaces the mark of a sink, unless the table has one of a later record."""
    # The service compares bytes. With leading zeros they sort as the numbers do.
    number = f"{mark.record:012d}".encode()
    mutations = []
    for qualifier, value in ((RECORD, number), (MARK, mark.encoded)):
        column = {"family_name": family, "column_qualifier": qualifier}
        # A policy of the family keeps cells for weeks, and a mark comes every few seconds.
        mutations.append(_Mutation(delete_from_column=column))
        mutations.append(_Mutation(set_cell={**column, "timestamp_micros": _SERVER_TIME, "value": value}))
    return CheckAndMutateRowRequest(
        table_name=table,
        app_profile_id=app_profile,
        row_key=MARK_PREFIX + f"{mark.job}/{mark.sink}".encode(),
        predicate_filter=_not_below(family, RECORD, number),
        false_mutations=mutations,
    )


def _not_below(family: str, qualifier: bytes, value: bytes) -> Any:
    """Return the filter that finds something if the newest cell of a column is `value` or higher."""
    return _RowFilter(
        chain={
            "filters": [
                {"family_name_regex_filter": re.escape(family)},
                {"column_qualifier_regex_filter": qualifier},
                # The newest cell only: older versions remain until garbage collection.
                {"cells_per_column_limit_filter": 1},
                {"value_range_filter": {"start_value_closed": value}},
            ]
        }
    )


def _checked_cells(event: ChangeEvent) -> tuple[CellChange, ...]:
    if event.source.system != "bigtable" or not event.cells or not event.key:
        raise NotReplicableError(
            f"table {event.source.table}: the event has no cells: WriteToBigtable replicates changes of Bigtable only"
        )
    return event.cells


def _mutation(cell: CellChange) -> Any:
    match cell.mod:
        case "SET_CELL":
            return _Mutation(
                set_cell={
                    "family_name": cell.family,
                    "column_qualifier": cell.qualifier,
                    "timestamp_micros": cell.start_us,
                    "value": cell.value,
                }
            )
        case "DELETE_CELLS":
            range_: dict[str, int] = {"start_timestamp_micros": cell.start_us}
            # An open end means all cells from the start on.
            if cell.end_us is not None:
                range_["end_timestamp_micros"] = cell.end_us
            return _Mutation(
                delete_from_column={
                    "family_name": cell.family,
                    "column_qualifier": cell.qualifier,
                    "time_range": range_,
                }
            )
        case "DELETE_FAMILY":
            return _Mutation(delete_from_family={"family_name": cell.family})
    raise NotReplicableError(
        f"a change has an entry of kind {cell.mod}: inputs of aggregates add up in the source, and "
        "WriteToBigtable does not replicate them"
    )
