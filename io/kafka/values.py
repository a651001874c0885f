"""Converts events to records of a topic. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from penstock.event.model import ChangeEvent, Source
from penstock.io.staging.delivery import Refusal
from penstock.io.staging.format import Format
from penstock.io.staging.formatted_event import SCHEMA_HEADER, FormattedEvent, format_event

EVENT_ID, VERSION = "penstock.id", "penstock.version"
"""Headers of every record: the id of its event, and its version as sortable text."""

COMPLETE_UNTIL = "penstock.complete_until"
"""Header of a record that says until when the topics of a sink are complete: the time as text."""

ANY_PARTITION = -1
"""As librdkafka has it (`RD_KAFKA_PARTITION_UA`)."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record to produce. `index`: position of its event in the batch. `timestamp_ms`: the event's time.

    `partition`: where it goes; `ANY_PARTITION`: its key decides.
    """

    index: int
    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: list[tuple[str, bytes]]
    partition: int = ANY_PARTITION

    @property
    def is_schema(self) -> bool:
        """Whether it is the record of a SCHEMA event, which goes to every partition."""
        return self.key is None and any(name == SCHEMA_HEADER for name, _ in self.headers)


def records_of(
    events: Iterable[ChangeEvent | FormattedEvent],
    format: Format,
    topic: str,
    left_out: frozenset[int] = frozenset(),
) -> tuple[list[Record], list[Refusal]]:
    """Return the records of a batch, and the events that the format cannot express.

    `topic` is a name with ``{topic}`` (the format's own), ``{table}``, ``{schema}`` and ``{database}``. Events at the
    indexes `left_out` are skipped.
    """
    records: list[Record] = []
    refused = []
    names = _TopicNames(topic)
    for index, event in enumerate(events):
        if index in left_out:
            continue
        try:
            records += _records_of_event(index, event, format, names)
        except ValueError as error:
            refused.append(Refusal(index, str(error)))
    return records, refused


def records_of_event(
    index: int, event: ChangeEvent | FormattedEvent, format: Format, topic: str
) -> list[Record]:
    """Return the records of the event with this index; see `records_of`.

    Raises:
        ValueError: the format cannot express the event, or a topic has no possible name.
    """
    return _records_of_event(index, event, format, _TopicNames(topic))


class _TopicNames:
    """The topics of records, by the format's own topic and the source."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._source: Source | None = None
        self._names: dict[str, str] = {}

    def of(self, of_format: str, source: Source) -> str:
        """Return the name.

        Raises:
            ValueError: it is no possible name of a topic.
        """
        # Neighbours in a batch share their source. A cache with the source in its key would hash its fields each time.
        if source is not self._source:
            self._source, self._names = source, {}
        name = self._names.get(of_format)
        if name is None:
            name = self._names[of_format] = _topic_name(self._topic, of_format, source)
        return name


def _records_of_event(
    index: int, event: ChangeEvent | FormattedEvent, format: Format, names: _TopicNames
) -> list[Record]:
    formatted = event if isinstance(event, FormattedEvent) else format_event(event, format)
    if formatted.reason:
        raise ValueError(formatted.reason)
    source = formatted.source
    own = [(EVENT_ID, formatted.id.encode()), (VERSION, formatted.version.encode())]
    return [
        Record(
            index,
            names.of(each.topic, source),
            each.key,
            each.value,
            each.timestamp_ms,
            [*each.headers, *own],
        )
        for each in formatted.records
    ]


@lru_cache(maxsize=4096)
def _topic_name(topic: str, of_format: str, source: Source) -> str:
    name = topic.format(topic=of_format, table=source.table, schema=source.schema, database=source.database)
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise ValueError(
            f"{name!r} cannot be the name of a topic: Kafka allows 1 to 249 of the characters a-z A-Z 0-9 . _ -. "
            "Pass another topic="
        )
    return name


def topics_of(records: Sequence[Record]) -> frozenset[str]:
    """Return the topics of records."""
    return frozenset({record.topic for record in records})
