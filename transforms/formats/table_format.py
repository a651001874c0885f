"""The base of formats that prepare something for each table: a plan, made once for each source and schema. Pure."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from penstock.event import ChangeEvent, Source, TableSchema

Plan = TypeVar("Plan")


class TableFormat(Generic[Plan]):
    """Keeps the plans of a format: names, converters and other values that are the same for all events of a table."""

    def __init__(self) -> None:
        self._plans: dict[tuple[Source, TableSchema], Plan] = {}
        self._last: tuple[Source | None, TableSchema | None, Any] = (None, None, None)

    def __getstate__(self) -> dict[str, Any]:
        # Converters are closures, which do not pickle; the worker makes them again.
        return {**self.__dict__, "_plans": {}, "_last": (None, None, None)}

    def _plan(self, event: ChangeEvent) -> Plan:
        source, schema, plan = self._last
        # Hashing both costs as much as half a row, and neighbours have the same objects.
        if event.source is source and event.schema is schema:
            return plan
        about = (event.source, event.schema)
        found = self._plans.get(about)
        if found is None:
            found = self._plans[about] = self._make_plan(*about)
        self._last = (*about, found)
        return found

    def _make_plan(self, source: Source, schema: TableSchema) -> Plan:
        raise NotImplementedError
