"""Values of every column type, at the edges of their ranges, from the service through decoder and event model."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from penstock.event import Op
from penstock.event.column_types import ColumnType, Interval, Kind
from penstock.io.spanner.events import EventConverter
from tests.integration.emulators.simulated_spanner.conftest import GOOGLESQL, POSTGRESQL, History
from tests.integration.emulators.simulated_spanner.test_histories import MUTABLE, read_with_penstock

pytestmark = pytest.mark.long(seconds=5)
CAPTURE = "value_capture_type = 'NEW_ROW'"
ARRAYS = (
    ", V INTERVAL, Ts ARRAY<TIMESTAMP>, Js ARRAY<JSON>, Us ARRAY<UUID>, Ys ARRAY<BYTES(MAX)>, Ds ARRAY<DATE>, "
    "Ns ARRAY<NUMERIC>, Bs ARRAY<BOOL>, Gs ARRAY<FLOAT32>"
)


def plain(kind: ColumnType, value: Any) -> Any:
    """Return a value of the event model in the form in which an ordinary client shows it."""
    if value is None:
        return None
    if kind.kind is Kind.ARRAY:
        assert kind.element is not None
        return [plain(kind.element, each) for each in value]
    if kind.kind is Kind.DATE:
        return date.fromordinal(date(1970, 1, 1).toordinal() + value)
    if kind.kind is Kind.JSON:
        return json.loads(value)
    if kind.kind is Kind.FLOAT32:
        return in_32_bits(value)
    if kind.kind is Kind.FLOAT64:
        return repr(value)  # nan equals nan
    if kind.kind is Kind.DECIMAL:
        return str(value)
    if kind.kind is Kind.INTERVAL:
        return value
    return value


def in_32_bits(value: float) -> str:
    """The client shows 3.140000104904175 and the event model 3.14: in 32 bits they are the same number."""
    return repr(struct.unpack("f", struct.pack("f", value))[0])


def shown(kind: ColumnType, value: Any) -> Any:
    """Return a value as the client returns it in the same form."""
    if value is None:
        return None
    if kind.kind is Kind.ARRAY:
        assert kind.element is not None
        return [shown(kind.element, each) for each in value]
    return _SHOWN.get(kind.kind, lambda same: same)(value)


def _nanoseconds(value: Any) -> int:
    whole = round(value.replace(microsecond=0).timestamp())
    return whole * 1_000_000_000 + value.nanosecond


def _interval(value: Any) -> Interval:
    return Interval(value.months, value.days, value.nanos)


_SHOWN: dict[Kind, Callable[[Any], Any]] = {
    Kind.BYTES: base64.b64decode,
    Kind.TIMESTAMP: _nanoseconds,
    Kind.FLOAT32: lambda value: in_32_bits(float(value)),
    Kind.FLOAT64: lambda value: repr(float(value)),
    Kind.DECIMAL: lambda value: str(Decimal(value)),
    Kind.JSON: lambda value: json.loads(value if isinstance(value, str) else value.serialize() or "null"),
    Kind.UUID: str,
    Kind.INTERVAL: _interval,
}


@pytest.mark.parametrize("mutable", [False, True], ids=["immutable", "mutable"])
@pytest.mark.parametrize("dialect", [GOOGLESQL, POSTGRESQL])
def test_events_replay_to_the_values_of_every_column_type(
    new_history: Callable[..., History], dialect: str, mutable: bool
) -> None:
    history = new_history(
        21,
        dialect=dialect,
        options=f"{CAPTURE}, {MUTABLE}" if mutable else CAPTURE,
        extra=ARRAYS,
        steps=200,
    )
    convert = EventConverter("server", "database", "Changes")
    replica: dict[str, dict[Any, Any]] = {}
    kinds: dict[str, ColumnType] = {}
    for record in read_with_penstock(history):
        for event in convert(record):
            table = replica.setdefault(event.source.table, {})
            kinds |= {column.name: column.type for column in event.schema}
            (key,) = event.key.values()
            if event.op is Op.DELETE:
                del table[key]
            else:
                table[key] = event.after
    assert not {kind.native for kind in kinds.values() if kind.kind is Kind.OTHER}
    for name, rows in replica.items():
        expected = table_of(history, name, kinds)
        ours = {
            key: {column: plain(kinds[column], value) for column, value in row.items()}
            for key, row in rows.items()
        }
        assert ours == expected
        assert rows, "the history leaves rows"


def table_of(history: History, name: str, kinds: dict[str, ColumnType]) -> dict[Any, Any]:
    """Return the rows of a table by key, read with an ordinary client."""
    with history.client.snapshot() as snapshot:
        found = snapshot.execute_sql(f"SELECT * FROM {name}")
        rows = list(found)
        names = [field.name for field in found.fields]
    key = "Id" if "Id" in names else "id"
    return {
        row[names.index(key)]: {
            each: shown(kinds[each], value) for each, value in zip(names, row, strict=True)
        }
        for row in rows
    }
