"""The mutations that the sink writes for one event; see `penstock.io.staging.preview`."""

from __future__ import annotations

from penstock.event.model import ChangeEvent
from penstock.io.bigtable.sink.target import BigtableTarget
from penstock.io.bigtable.sink.values import is_of_the_sink, row_request
from penstock.io.staging.preview import Written


def mutations_of_event(event: ChangeEvent, target: BigtableTarget) -> list[Written]:
    """Return the mutations of the event's row, without the cell of its version.

    Raises:
        ValueError: the event is not of Bigtable, or has an entry that cannot be repeated.
    """
    if is_of_the_sink(event, target.version_family):
        return []
    # The request itself is not shown, because its condition and its version are details of the sink.
    row_request(target.table_path, "", target.version_family, [event])  # refuses what cannot be replicated
    mutations = [
        {
            "kind": cell.mod,
            "family": cell.family,
            "qualifier": cell.qualifier,
            "timestamp_micros": cell.start_us,
            "value": cell.value,
        }
        for cell in event.cells
    ]
    (row_key,) = (event.key or {}).values()
    return [{"table": target.table, "row_key": row_key, "mutations": mutations}]
