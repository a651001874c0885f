"""`FlattenAfter`: events as plain rows with metadata columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Literal, get_args

from penstock.errors import UsageError
from penstock.event import ChangeEvent, Op
from penstock.suggestions import did_you_mean
from penstock.transforms.element_transform import ElementTransform

Deletes = Literal["row", "drop"]

_ROWS = frozenset({Op.CREATE, Op.READ, Op.UPDATE, Op.DELETE})

METADATA: Mapping[str, Callable[[ChangeEvent], Any]] = {
    "op": lambda event: str(event.op),
    "deleted": lambda event: event.op is Op.DELETE,
    "timestamp": attrgetter("timestamp"),
    "id": attrgetter("id"),
    "unavailable": lambda event: list(event.unavailable),
    "user": attrgetter("user"),
    **{name: attrgetter(f"source.{name}") for name in ("system", "server", "database", "schema", "table")},
    **{name: attrgetter(f"version.{name}") for name in ("order", "transaction", "sequence", "index")},
    "tag": lambda event: event.transaction.tag if event.transaction else "",
}
"""What a metadata column can show: `timestamp` in nanoseconds, the parts of `source` and of `version`, and others."""


class FlattenAfter(ElementTransform):
    """Turns each event of a row into the row: a dictionary of its columns and of metadata columns.

        rows = events | FlattenAfter(metadata=["op", "timestamp", "table"])

        {"Id": 1, "State": "paid", "_op": "UPDATE", "_timestamp": 1795263118775981000, "_table": "Orders"}

    A row has the columns of the row after the change. A DELETE becomes the columns that the source sent of the row
    before the change, at least the key; ask for the metadata column `deleted` or `op` to tell it from other rows. A
    column that the source did not send is absent; `unavailable` lists such columns. Messages and schema changes become
    no row.

    Order, repeats, watermark and state: see `ElementTransform`.

    Raises ValueError while running for a TRUNCATE, which has no row, for a change that deletes cells of Bigtable, and
    for a metadata column with the name of a column of the table. With `with_exception_handling` such events go to a
    second output.

    Args:
        metadata: what metadata columns show, by the names in `METADATA`; or a mapping from such a name to the
            name of the column.
        prefix: The start of the names of metadata columns, unless a mapping names them.
        deletes: row, or drop to leave deletes out.
    """

    def __init__(
        self,
        *,
        metadata: Iterable[str] | Mapping[str, str] = ("op", "timestamp"),
        prefix: str = "_",
        deletes: Deletes = "row",
    ) -> None:
        # A mapping gives the whole name of a column, so the prefix applies to lists only.
        names = metadata if isinstance(metadata, Mapping) else {each: f"{prefix}{each}" for each in metadata}
        for name in names:
            if name not in METADATA:
                raise UsageError(
                    f"FlattenAfter has no metadata {name!r}{did_you_mean(name, METADATA)}; it has {', '.join(METADATA)}"
                )
        if deletes not in get_args(Deletes):
            raise UsageError(f"FlattenAfter: deletes must be row or drop, not {deletes!r}")
        if len(set(names.values())) != len(names):
            raise UsageError(f"FlattenAfter gives two metadata columns one name: {dict(names)}")
        self._names, self._prefix, self._deletes = dict(names), prefix, deletes
        super().__init__(_Flatten(self._names, deletes == "drop"), dict[str, Any])

    def display_data(self) -> dict[str, Any]:
        metadata = ", ".join(self._names.values())
        return {"metadata": metadata, "prefix": self._prefix, "deletes": self._deletes}


class _Flatten:
    def __init__(self, names: dict[str, str], drop_deletes: bool) -> None:
        self._names, self._drop_deletes = names, drop_deletes

    def __call__(self, event: ChangeEvent) -> list[dict[str, Any]]:
        deleted = event.op is Op.DELETE
        if event.op not in _ROWS or (deleted and self._drop_deletes):
            # Dropping a truncate would leave rows in the target that the source no longer has.
            if event.op is Op.TRUNCATE:
                raise ValueError(
                    f"a truncate of {event.source.table} has no row: filter it before FlattenAfter"
                )
            return []
        # A deletion of cells has no value to show, and an addition shows an operand instead of the result.
        if any(cell.mod != "SET_CELL" for cell in event.cells):
            raise ValueError(
                f"a change of {event.source.table} deletes or adds to cells, which no row shows: use the change log"
            )
        # Copied, because `before` and `after` may be shared with other steps.
        row = dict((event.before if deleted else event.after) or event.key or {})
        for name, column in self._names.items():
            # Checked for each row: only the event knows the columns of its table.
            if column in row:
                raise ValueError(
                    f"{event.source.table} has a column {column}, so FlattenAfter cannot add its metadata under this "
                    "name: choose another prefix"
                )
            row[column] = METADATA[name](event)
        return [row]
