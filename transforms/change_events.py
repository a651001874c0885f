"""`ToChangeEvents`: native records of any source to `ChangeEvent`s."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.event import ChangeEvent
from penstock.event.coder import ChangeEventCoder  # noqa: F401  (registers the coder)
from penstock.transforms.element_transform import ElementTransform

Convert = Callable[[Any], Iterable[ChangeEvent]]


class ToChangeEvents(ElementTransform):
    """Converts the records of a source to `ChangeEvent`s, one per changed row.

        events = changes | ToChangeEvents(server="my-project/main", database="shop", stream="OrdersStream")

    Input: `DataChangeRecord` (Spanner), `ChangeStreamMutation` (Bigtable), `LogRecord` (PostgreSQL),
    `ChangefeedRecord` (YDB); a `ChangeEvent` passes unchanged.
    Records do not name the place they come from, so it is given here and copied into each event's `source`:
    `server` (project and instance), `database`, `stream` (the change stream) and `table` (Bigtable; a Spanner
    record names its table).

    A record that is not valid raises a ValueError, which names table and column but shows no value. With
    `with_exception_handling` such records go to a second output.
    """

    def __init__(self, *, server: str = "", database: str = "", stream: str = "", table: str = "") -> None:
        super().__init__(_Converter(server, database, stream, table), ChangeEvent)
        self._source = {"server": server, "database": database, "stream": stream, "table": table}

    def display_data(self) -> dict[str, Any]:
        return {name: value for name, value in self._source.items() if value}


class _Converter:
    """Chooses the converter by the class of the record. Picklable: converters are made in the worker, when needed."""

    def __init__(self, server: str, database: str, stream: str, table: str) -> None:
        self._server, self._database, self._stream, self._table = server, database, stream, table
        self._converters: dict[type, Convert] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Converters cache schemas and are cheap to make again, so they are not pickled with the step.
        return {**self.__dict__, "_converters": {}}

    def __call__(self, record: Any) -> Iterable[ChangeEvent]:
        # One look-up per record by its class: `isinstance` would import the class of every source.
        convert = self._converters.get(type(record))
        if convert is None:
            convert = self._converters[type(record)] = self._converter(type(record))
        return convert(record)

    def _converter(self, record_type: type) -> Convert:
        # Converters are found by name, so that a pipeline over one system does not import the others.
        match f"{record_type.__module__}.{record_type.__qualname__}":
            case "penstock.io.spanner.record.DataChangeRecord":
                from penstock.io.spanner.events import EventConverter as Spanner

                return Spanner(self._server, self._database, self._stream)
            case "penstock.io.bigtable.record.ChangeStreamMutation":
                from penstock.io.bigtable.events import EventConverter as Bigtable

                return Bigtable(self._server, self._table)
            case "penstock.io.postgres.record.LogRecord":
                from penstock.io.postgres.events import EventConverter as Postgres

                return Postgres(self._server, self._database, self._stream)
            case "penstock.io.ydb.record.ChangefeedRecord":
                from penstock.transforms.formats.ydb_events import EventConverter as Ydb

                return Ydb(self._server, self._database)
            case "penstock.event.model.ChangeEvent":
                return lambda event: [event]
        raise TypeError(
            f"ToChangeEvents got a {record_type.__qualname__}; "
            "it converts DataChangeRecord, ChangeStreamMutation, LogRecord, ChangefeedRecord and ChangeEvent"
        )
