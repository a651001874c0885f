"""The merge of Netflix's DBLog and of Debezium, as a peer: rows whose key appears in a window of the log are dropped.

The window lies between two marks, one before the chunk is read and one after it. The four cases of
`test_snapshot_peer.py` were seen in Debezium 3.6.3, record by record.

Source: "DBLog: A Watermark Based Change-Data-Capture Framework", Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.property.change_streams.database import Change, Database
from tests.property.change_streams.merging import Read


def read_with_window(
    database: Database, during: Callable[[], None], *, skips_deletes: bool = False
) -> list[Change | Read]:
    """Read the log and one chunk of all rows. `during` happens after the rows were read, before the high mark."""
    low = len(database.log)
    rows = {key: Read(key, row, frozenset(database.visible)) for key, row in database.rows.items()}
    during()
    high = len(database.log)
    output: list[Change | Read] = []
    for place, change in enumerate(database.log):
        if skips_deletes and change.row is None and change.key is not None:
            continue
        if low <= place < high:
            for key in (change.key, change.old_key):
                if key is not None:
                    rows.pop(key, None)
        output.append(change)
    return [*output, *rows.values()]
