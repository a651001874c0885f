"""A record of `EventFormat` that is parsed gives the event back, in each form."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import assume, given, settings

from penstock.event import CellChange, ChangeEvent, Message, Op, Source, Version
from penstock.event.model import NO_COLUMNS
from penstock.transforms.formats.avro import AvroConverter
from penstock.transforms.formats.converter import Converter, JsonConverter
from penstock.transforms.formats.event_envelope import EventFormat
from penstock.transforms.formats.protobuf import ProtobufConverter
from penstock.transforms.formats.schema_registry import SchemaRegistry
from penstock.transforms.parsers.envelope import EventParser
from tests.property.events.strategies import row_events
from tests.property.formats.test_binary_round_trip import KNOWN, collide

registries = count()
FORMS: dict[str, Callable[[], Converter]] = {
    "json": lambda: JsonConverter(schemas_enable=True),
    "avro": lambda: AvroConverter(SchemaRegistry(f"mock://event-{next(registries)}")),
    "protobuf": lambda: ProtobufConverter(SchemaRegistry(f"mock://event-{next(registries)}")),
}


@pytest.mark.parametrize("form", FORMS)
@given(event=row_events(known=KNOWN))
@settings(max_examples=12, deadline=None)
def test_a_record_gives_the_event_back(form: str, event: ChangeEvent) -> None:
    fields = [[field.name for field in column.type.fields] for column in event.schema]
    assume(not any(map(collide, [event.schema.names, *fields])))
    converter = FORMS[form]()
    (record,) = EventFormat("srv", converter=converter)(event)
    assert EventParser(event.schema, converter=converter)(record.value or b"") == event
    result = EventParser(converter=converter)(record.value or b"")
    assert (result.key, result.before, result.after) == (event.key, event.before, event.after)
    assert result.schema.names == event.schema.names


@pytest.mark.parametrize("form", FORMS)
def test_a_message_and_the_cells_of_bigtable_come_back(form: str) -> None:
    converter = FORMS[form]()
    cells = (
        CellChange("SET_CELL", "f", b"q\xff", 5, None, b""),
        CellChange("ADD_TO_CELL", "s", b"", -1, None, -7),
        CellChange("DELETE_CELLS", "f", b"", 0, 9),
    )
    version = Version(1, "t", "s", 2)
    source = Source("bigtable", "p/i", table="users")
    for event in (
        ChangeEvent(source, Op.UPDATE, 1, None, None, None, version, NO_COLUMNS, None, None, cells, "me"),
        ChangeEvent(source, Op.MESSAGE, 1, None, None, None, version, NO_COLUMNS, None, Message("p", b"\0")),
    ):
        (record,) = EventFormat("srv", converter=converter)(event)
        assert EventParser(converter=converter)(record.value or b"") == event
