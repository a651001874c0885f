"""`FilterEvents`: keep the events of some tables, operations or rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.errors import UsageError
from penstock.event import ChangeEvent, Op
from penstock.transforms.element_transform import ElementTransform
from penstock.transforms.tables import TablePattern, matches, pattern_names


class FilterEvents(ElementTransform):
    """Keeps the events that meet every given condition.

        events | FilterEvents(tables=["Orders", "sales.*"], ops=["CREATE", "UPDATE"], where=is_large)

    `tables` and `without_tables` are names or globs; `ops` are operations; `where` is a function of the event;
    `without_tags` are transaction tags whose changes are dropped, such as the tag of a backfill. An empty list keeps
    nothing and is refused.
    """

    def __init__(
        self,
        *,
        tables: TablePattern | None = None,
        without_tables: TablePattern | None = None,
        ops: Iterable[Op | str] | None = None,
        without_tags: Iterable[str] = (),
        where: Callable[[ChangeEvent], Any] | None = None,
    ) -> None:
        chosen = None if ops is None else frozenset(map(_op, ops))
        for name, value in {"tables": tables, "ops": chosen}.items():
            if value is not None and not value:
                raise UsageError(f"FilterEvents({name}=…) is empty and would drop every event: leave it out")
        tags = frozenset(without_tags)
        self._given = {
            "tables": pattern_names(tables or ()),
            "without_tables": pattern_names(without_tables or ()),
            "ops": sorted(chosen or ()),
            "without_tags": sorted(tags),
        }
        super().__init__(_Filter(tables, without_tables, chosen, tags, where), ChangeEvent)

    def display_data(self) -> dict[str, Any]:
        return {name: ", ".join(values) for name, values in self._given.items() if values}


class _Filter:
    def __init__(
        self,
        tables: TablePattern | None,
        without_tables: TablePattern | None,
        ops: frozenset[Op] | None,
        without_tags: frozenset[str],
        where: Callable[[ChangeEvent], Any] | None,
    ) -> None:
        self._tables, self._without_tables = tables, without_tables
        self._ops, self._without_tags, self._where = ops, without_tags, where

    def __call__(self, event: ChangeEvent) -> tuple[ChangeEvent, ...]:
        return (event,) if self._keeps(event) else ()

    def _keeps(self, event: ChangeEvent) -> bool:
        return (
            # The cheapest conditions come first; `where` may run the user's code or parse JSON.
            (self._ops is None or event.op in self._ops)
            and (self._tables is None or matches(self._tables, event.source))
            and (self._without_tables is None or not matches(self._without_tables, event.source))
            and (event.transaction is None or event.transaction.tag not in self._without_tags)
            and (self._where is None or bool(self._where(event)))
        )


def _op(name: Op | str) -> Op:
    try:
        # Names in a job file are lower case as often as upper case.
        return Op(str(name).upper())
    except ValueError:
        raise UsageError(f"{name!r} is not an operation: use one of {', '.join(Op)}") from None
