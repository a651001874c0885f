"""The event model: one `ChangeEvent` per changed row, for all databases. Pure.

    events = records | ToChangeEvents(database="shop")       # penstock.transforms
    prices = events | beam.Map(lambda event: event.after and event.after.get("Price"))

Three cases remain distinct up to the sink: a column that is NULL (`None` in the image), a column that is empty
(`""`, `b""`, `[]`), and a column that the source did not send (absent from the image, and listed in
`ChangeEvent.unavailable`). `penstock.event.column_types` says which Python value stands for which type;
`penstock.event.coder` is Beam's coder of events.
"""

from penstock.event.column_types import ColumnType, Field, Interval, Kind
from penstock.event.model import (
    NO_COLUMNS,
    CellChange,
    ChangeEvent,
    Column,
    Image,
    Message,
    Op,
    SchemaChange,
    Source,
    TableSchema,
    Transaction,
    TransactionPlace,
    Version,
)

__all__ = [
    "NO_COLUMNS",
    "CellChange",
    "ChangeEvent",
    "Column",
    "ColumnType",
    "Field",
    "Image",
    "Interval",
    "Kind",
    "Message",
    "Op",
    "SchemaChange",
    "Source",
    "TableSchema",
    "Transaction",
    "TransactionPlace",
    "Version",
]
