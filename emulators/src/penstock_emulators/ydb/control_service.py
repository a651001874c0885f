"""The control service in the process of the test service; `control` is its client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock_emulators.ydb.faults import Fault
from penstock_emulators.ydb.services import Service
from penstock_emulators.ydb.topic import Message, Topic


class ControlService:
    """The methods of `Control`, which has their documentation."""

    def __init__(self, service: Service) -> None:
        self._service, self._database = service, service.database

    def create_table(
        self, name: str, columns: Mapping[str, str], key: Sequence[str], shards: int = 1
    ) -> None:
        self._database.create_table(name, columns, key, shards=shards)

    def drop_table(self, name: str) -> None:
        self._database.drop_table(name)

    def alter_table(self, name: str, columns: Mapping[str, str | None]) -> None:
        self._database.alter_table(name, columns)

    def add_changefeed(self, table: str, name: str, **options: Any) -> None:
        self._database.add_changefeed(table, name, **options)

    def drop_changefeed(self, table: str, name: str) -> None:
        self._database.drop_changefeed(table, name)

    def disable_changefeed(self, table: str, name: str) -> None:
        self._database.disable_changefeed(table, name)

    def commit(self, operations: Sequence[Any], user: str = "") -> tuple[int, int]:
        return self._database.commit([tuple(each) for each in operations], user)

    def hold(self, table: str, shard: int, held: bool = True) -> None:
        self._database.hold(table, shard, held)

    def rows(self, table: str) -> list[Any]:
        return [[list(key), row] for key, row in self._database.stored(table).rows.items()]

    def split(self, topic: str, partition: int) -> tuple[int, int]:
        children = self._topic(topic).split(partition)
        self._service.wake()
        return children

    def merge(self, topic: str, first: int, second: int) -> int:
        child = self._topic(topic).merge(first, second)
        self._service.wake()
        return child

    def trim(self, topic: str, partition: int, before: int) -> None:
        self._topic(topic).trim(partition, before)

    def offsets(self, topic: str) -> dict[str, list[int]]:
        partitions = self._topic(topic).partitions.values()
        return {str(each.number): [each.first, each.end, int(each.active)] for each in partitions}

    def add_consumer(self, topic: str, name: str) -> None:
        self._topic(topic).consumers[name] = {}

    def committed(self, topic: str, consumer: str) -> dict[str, int]:
        made = self._topic(topic)
        return {str(number): made.committed(consumer, number) for number in made.partitions}

    def write(self, topic: str, partition: int, data: Sequence[bytes], keys: Sequence[bytes] = ()) -> None:
        made, now = self._topic(topic), self._database.clock()
        for number, each in enumerate(data):
            metadata = (("__key", keys[number]),) if number < len(keys) and keys[number] else ()
            made.append(partition, Message(each, now, now, metadata))
        self._service.wake()

    def create_topic(self, name: str, partitions: int = 1, retention_seconds: float = 86_400) -> None:
        self._database.create_topic(name, partitions=partitions, retention_seconds=retention_seconds)

    def fail(self, **fault: Any) -> None:
        self._service.faults.planned.append(Fault(**fault))
        self._service.wake()

    def stop_partition(self, partition: int, graceful: bool = False) -> None:
        for session in list(self._service.sessions):
            session.stop_partition(partition, graceful)
        self._service.wake()

    def require_token(self, token: str | None) -> None:
        self._service.token = token

    def add_user(self, name: str, password: str) -> None:
        self._service.users[name] = password

    def calls(self) -> dict[str, int]:
        return dict(self._service.calls)

    def _topic(self, name: str) -> Topic:
        return self._service.topic(name)
