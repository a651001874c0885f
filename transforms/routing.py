"""`RouteEvents` and `ShardByKey`: they choose the destination and the shard of an event. Pure rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.errors import UsageError
from penstock.event import ChangeEvent
from penstock.event.sharding import shard_of
from penstock.transforms.element_transform import ElementTransform
from penstock.transforms.tables import matches, table_name


class RouteEvents(ElementTransform):
    """Pairs each event with the name of its destination: (destination, event).

        events | RouteEvents({"Orders": "orders", "sales.*": "sales_{table}"})
        events | RouteEvents(lambda event: f"{event.source.table}-{event.op}")

    A mapping goes from table patterns to names; the first pattern that matches counts, and ``{table}``,
    ``{schema}`` and ``{database}`` are filled in. An event that no pattern matches raises a ValueError, because it
    would be lost: add ``"*"``, or filter it before.
    """

    def __init__(self, routes: Mapping[str, str] | Callable[[ChangeEvent], str]) -> None:
        # An empty mapping would reject every event.
        if not callable(routes) and not routes:
            raise UsageError('RouteEvents has no route: give at least {"*": "{table}"}')
        self._routes = routes
        rule = routes if callable(routes) else _Routes(tuple(routes.items()))
        super().__init__(_WithDestination(rule), tuple[str, ChangeEvent])

    def display_data(self) -> dict[str, Any]:
        if callable(self._routes):
            return {"routes": "a function of the event"}
        return {"routes": ", ".join(f"{table}: {name}" for table, name in self._routes.items())}


class ShardByKey(ElementTransform):
    """Pairs each event with a shard number: (shard, event), 0 <= shard < `shards`.

        events | ShardByKey(8)
        events | ShardByKey(8, rule=YdbFormat("feed").partition)  # as YDB assigns rows to topic partitions

    Events of one key have one shard, so their order stays if each shard is processed in order. The number depends
    on table and key only, not on the process or the version of Python. Events without a key go to the shard of
    their table.

    `rule` is a function of an event and the number of shards. Default: the CRC-32 of table and key.
    """

    def __init__(self, shards: int, *, rule: Callable[[ChangeEvent, int], int] | None = None) -> None:
        if shards < 1:
            raise UsageError(f"ShardByKey needs at least 1 shard, not {shards}")
        self._shards = shards
        super().__init__(_WithShard(shards, rule or shard_of), tuple[int, ChangeEvent])

    def display_data(self) -> dict[str, Any]:
        return {"shards": self._shards}


class _Routes:
    def __init__(self, routes: tuple[tuple[str, str], ...]) -> None:
        self._routes = routes

    def __call__(self, event: ChangeEvent) -> str:
        source = event.source
        # In the order of the mapping: a user writes the special patterns before the general one.
        for pattern, name in self._routes:
            if matches(pattern, source):
                return name.format(table=source.table, schema=source.schema, database=source.database)
        raise ValueError(f'no route for table {table_name(source)}: add one, or "*" for all other tables')


class _WithDestination:
    def __init__(self, rule: Callable[[ChangeEvent], str]) -> None:
        self._rule = rule

    def __call__(self, event: ChangeEvent) -> Iterable[tuple[str, ChangeEvent]]:
        return ((self._rule(event), event),)


class _WithShard:
    def __init__(self, shards: int, rule: Callable[[ChangeEvent, int], int]) -> None:
        self._shards, self._rule = shards, rule

    def __call__(self, event: ChangeEvent) -> Iterable[tuple[int, ChangeEvent]]:
        return ((self._rule(event, self._shards), event),)
