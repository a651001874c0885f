"""CloudEvents in structured JSON, around the records of another format, with the official SDK. Pure.

    format = CloudEventsFormat(DebeziumFormat("shop"), type="com.example.orders.changed")

    {"id":"1795263118775981000-tx-00000001-0","source":"/spanner/my-project/main/shop/Orders",
     "type":"io.penstock.update","subject":"shop.Orders","time":"2026-11-21T16:51:58.775981Z",
     "datacontenttype":"application/json","partitionkey":"{\"Id\":1}","sequence":"01795263118775981000…",
     "specversion":"1.0","data":{…}}

| attribute | value |
|---|---|
| `id` | the id of the event, the same after a repeated read; with ``-n`` if the event has several records |
| `source` | system, server, database, schema and table as a path |
| `type` | ``io.penstock.`` and the operation in lower case, or the given text |
| `subject` | the topic of the record |
| `time` | the commit time, to the microsecond; data and `sequence` have the nanoseconds |
| `partitionkey` | the key of the record (extension "Partitioning") |
| `sequence` | the version as a text that sorts (extension "Sequence") |

A tombstone becomes no CloudEvent: the delete before it says the same. The inner format decides what `data` carries.

Source: CloudEvents specification 1.0.2, "JSON Event Format", and its documented extensions.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
from cloudevents.core.exceptions import BaseCloudEventException
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from penstock.errors import UsageError
from penstock.event import ChangeEvent
from penstock.timestamps import EPOCH
from penstock.transforms.formats.capture import Mode
from penstock.transforms.formats.formatted import Format, FormattedRecord, value_encoding

_write = JSONFormat().write
_CONTENT_TYPE = (("content-type", b"application/cloudevents+json; charset=UTF-8"),)


class CloudEventsFormat:
    """Formats events as CloudEvents whose data are the records of `data_format`.

    Records keep topic and key of `data_format`, and have the header `content-type`.

    Args:
        data_format: The format of the data.
        source: The attribute `source`. Default: system, server, database, schema and table as a path.
        type: The attribute `type`. Default: ``io.penstock.`` and the operation in lower case.

    Raises:
        UsageError: `source` or `type` is empty text, or `data_format` is not JSON.
    """

    def __init__(self, data_format: Format, *, source: str | None = None, type: str | None = None) -> None:
        for name, value in {"source": source, "type": type}.items():
            if value == "":
                raise UsageError(
                    f"CloudEventsFormat: {name} is empty, which CloudEvents do not allow: leave it out"
                )
        # The envelope is JSON, and `data` is JSON inside of it: binary data would be in the member
        # `data_base64`.
        if value_encoding(data_format) != "json":
            raise UsageError("CloudEventsFormat: data are JSON, so data_format needs converter json")
        self._data_format, self._source, self._type = data_format, source, type

    @property
    def required_mode(self) -> Mode | None:
        """The mode that the source must satisfy for `data_format`."""
        return getattr(self._data_format, "required_mode", None)

    def __call__(self, event: ChangeEvent) -> list[FormattedRecord]:
        """Return the CloudEvents of an event, in the order of its records.

        Raises:
            ValueError: the inner format cannot express the event, or the SDK rejects an attribute.
        """
        # Numbers count records with a value only, so a tombstone does not change the ids.
        records = [record for record in self._data_format(event) if record.value is not None]
        return [
            self._record(event, record, event.id if len(records) == 1 else f"{event.id}-{number}")
            for number, record in enumerate(records)
        ]

    def _record(self, event: ChangeEvent, record: FormattedRecord, id_: str) -> FormattedRecord:
        attributes: dict[str, Any] = {
            "id": id_,
            "source": self._source or _source_path(event),
            "type": self._type or f"io.penstock.{event.op.lower()}",
            "subject": record.topic,
            "time": EPOCH + timedelta(microseconds=event.timestamp // 1000),
            "datacontenttype": "application/json",
            "sequence": _sequence(event),
            "specversion": "1.0",
        }
        # CloudEvents forbid an empty attribute, so an event without a key has none.
        if record.key:
            attributes["partitionkey"] = record.key.decode()
        try:
            value = _write(CloudEvent(attributes, msgspec.json.decode(record.value or b"null")))
        # The SDK's message may show the value of the attribute.
        except BaseCloudEventException:
            name = event.source.table
            raise ValueError(f"an event of {name} has an attribute that CloudEvents do not allow") from None
        return msgspec.structs.replace(record, value=value, headers=(*record.headers, *_CONTENT_TYPE))


def _source_path(event: ChangeEvent) -> str:
    source = event.source
    parts = (source.system, source.server, source.database, source.schema, source.table)
    return "/" + "/".join(filter(None, parts))


def _sequence(event: ChangeEvent) -> str:
    version = event.version
    return f"{version.order:020d}-{version.transaction}-{version.sequence}-{version.index:06d}"
