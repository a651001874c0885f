from __future__ import annotations

import uuid
from typing import Any

from penstock.errors import DecodeError, PositionLostError
from penstock.io.change_streams.status import UnreachableError
from penstock.io.change_streams.undecodable import UndecodableRecord
from tests.conformance.adapters import Adapter
from tests.conformance.toy_source import LISTS, Lists, ReadFromLists, Record

FAILURES = {
    "unavailable": UnreachableError("no answer"),
    "position lost": PositionLostError("the list was cut"),
    "damaged": DecodeError("not a record"),
}


class ToyAdapter(Adapter):
    name = "toy"
    namespace = "penstock.io.lists"

    def __init__(self) -> None:
        super().__init__()
        self._lists = Lists(low=[], high=[])
        self._name = uuid.uuid4().hex
        LISTS[self._name] = self._lists

    def commit(self, timestamp: int, key: str) -> None:
        self._lists.lists["low" if key < "n" else "high"].append(Record(timestamp, key))

    def commit_damaged(self, timestamp: int) -> None:
        damaged = UndecodableRecord(
            commit_timestamp=timestamp,
            partition="low",
            position="1",
            reason="no key",
            data=b"",
            format="none",
        )
        self._lists.lists["low"].append(damaged)  # type: ignore[arg-type]

    def transform(self, **options: Any) -> ReadFromLists:
        return ReadFromLists(
            **{"name": self._name, "start": self.start, "idle_stream_seconds": 0.1, **options}
        )

    def identity(self, record: Record) -> tuple[int, str]:
        return record.commit_timestamp, record.key

    def fail(self, kind: str) -> None:
        def failing() -> None:
            raise FAILURES[kind]

        if kind == "missing":
            del LISTS[self._name]
        else:
            self._lists.on_read = failing
