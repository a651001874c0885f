"""A Debezium record in Avro or Protobuf that is parsed gives the event back, also what was not sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.event import ChangeEvent, Kind
from penstock.event.float32 import shortest
from penstock.transforms.formats.avro import AvroConverter
from penstock.transforms.formats.avro_schema import avro_name
from penstock.transforms.formats.converter import Converter
from penstock.transforms.formats.debezium import PLACEHOLDER, DebeziumFormat
from penstock.transforms.formats.protobuf import ProtobufConverter
from penstock.transforms.formats.protobuf_schema import protobuf_name
from penstock.transforms.formats.schema_registry import SchemaRegistry
from penstock.transforms.parsers.debezium import DebeziumParser
from tests.property.events.strategies import VALUES, row_events, texts

KNOWN = VALUES | {
    Kind.STRING: texts.filter(lambda text: text != PLACEHOLDER),
    Kind.UINT64: st.integers(0, 2**63 - 1),
    Kind.LOCAL_TIMESTAMP: st.integers(-(2**62), 2**62),
    Kind.FLOAT32: VALUES[Kind.FLOAT32].map(shortest),
}
"""The values that Kafka Connect's types hold, in the forms that sources have for them."""
PRECISE = {"time_precision_mode": "nanoseconds", "interval_handling_mode": "string"}
registries = count()


def new_registry() -> SchemaRegistry:
    return SchemaRegistry(
        f"mock://{next(registries)}"
    )  # the client library keeps one registry for each address


def collide(names: Sequence[str]) -> bool:
    """Return whether two names are one in Avro or in Protobuf, which both converters refuse."""
    return any(len(set(map(rule, names))) < len(names) for rule in (avro_name, protobuf_name))


@pytest.mark.parametrize("converter_type", [AvroConverter, ProtobufConverter])
@pytest.mark.parametrize("typed", [True, False])
@given(event=row_events(known=KNOWN))
@settings(max_examples=12, deadline=None)
def test_a_record_gives_the_event_back(
    converter_type: Callable[[SchemaRegistry], Converter], typed: bool, event: ChangeEvent
) -> None:
    fields = [[field.name for field in column.type.fields] for column in event.schema]
    assume(not any(map(collide, [event.schema.names, *fields])))
    registry = new_registry()
    format_ = DebeziumFormat("srv", converter=converter_type(registry), **PRECISE)  # type: ignore[arg-type]
    parse = DebeziumParser(event.schema if typed else None, converter=converter_type(registry), **PRECISE)
    (result,) = [
        each for record in format_(event) for each in parse(record.key, record.value, record.headers)
    ]
    assert (result.op, result.source, result.version, result.transaction) == (
        event.op,
        event.source,
        event.version,
        event.transaction,
    )
    assert (result.key, result.before, result.after) == (event.key, event.before, event.after)
    assert result.schema.names == event.schema.names
    if typed:
        assert result == event
