"""Each transform of the package sends elements that it cannot process to a second output."""

from __future__ import annotations

import pickle
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

from penstock import transforms
from penstock.errors import DecodeError, ServiceError
from penstock.event import ChangeEvent, Kind, Op
from penstock.transforms import (
    AddSchemaEvents,
    AddTransactionMetadata,
    AssembledTransaction,
    AssembleTransactions,
    Barriers,
    DeadLetters,
    DebeziumFormat,
    Deduplicate,
    FilterEvents,
    FlattenAfter,
    FormatEvents,
    FormatShardRecords,
    FormatTransactions,
    MaskColumns,
    MaterializeRows,
    OrderByKey,
    RenameColumns,
    RouteEvents,
    SelectColumns,
    ShardByKey,
    ShardRecord,
    ToChangeEvents,
    VirtualTimestamp,
    VirtualTimestamps,
    YdbFormat,
    redacted,
)
from penstock.transforms.element_transform import ElementTransform
from tests.unit.formats.events import event_of, schema_of

pytestmark = pytest.mark.slow

EVENT = event_of(schema_of({"Id": Kind.INT64}, State=Kind.STRING), Op.CREATE, after={"Id": 1, "State": "new"})
BAD = "no event"
FAILURE = (EVENT, (ValueError, "text", []))

MADE: dict[str, tuple[Any, Any]] = {
    "AddSchemaEvents": (AddSchemaEvents(), EVENT),
    "AddTransactionMetadata": (
        AddTransactionMetadata(DebeziumFormat("srv")),
        AssembledTransaction("7", EVENT.timestamp, (EVENT,)),
    ),
    "AssembleTransactions": (AssembleTransactions(), EVENT),
    "Barriers": (Barriers(shards=1), (0, EVENT)),
    "DeadLetters": (DeadLetters(), FAILURE),
    "Deduplicate": (Deduplicate(horizon_seconds=1), EVENT),
    "FilterEvents": (FilterEvents(tables="Orders"), EVENT),
    "FlattenAfter": (FlattenAfter(), EVENT),
    "FormatEvents": (FormatEvents(DebeziumFormat("srv")), EVENT),
    "FormatShardRecords": (
        FormatShardRecords(YdbFormat("feed")),
        (0, ShardRecord(VirtualTimestamp(1, 0), EVENT)),
    ),
    "FormatTransactions": (
        FormatTransactions(DebeziumFormat("srv")),
        AssembledTransaction("7", EVENT.timestamp, (EVENT,)),
    ),
    "MaskColumns": (MaskColumns({"State": redacted()}), EVENT),
    "MaterializeRows": (MaterializeRows(), EVENT),
    "OrderByKey": (OrderByKey(), EVENT),
    "RenameColumns": (RenameColumns({"State": "status"}), EVENT),
    "RouteEvents": (RouteEvents({"*": "all"}), EVENT),
    "SelectColumns": (SelectColumns(only=["State"]), EVENT),
    "ShardByKey": (ShardByKey(2), EVENT),
    "ToChangeEvents": (ToChangeEvents(), EVENT),
    "VirtualTimestamps": (VirtualTimestamps(), EVENT),
}


def exported() -> list[str]:
    found = {name: getattr(transforms, name) for name in transforms.__all__}
    return sorted(
        name for name, each in found.items() if isinstance(each, type) and issubclass(each, beam.PTransform)
    )


def in_quick_tests(name: str) -> Any:
    """Transforms over single elements share one implementation: `FormatEvents` stands for them in `make test`."""
    shared = isinstance(MADE[name][0], ElementTransform) and name != "FormatEvents"
    return pytest.param(name, marks=pytest.mark.long(seconds=5)) if shared else name


def test_each_exported_transform_is_tested_here() -> None:
    assert exported() == sorted(MADE)


@pytest.mark.parametrize("name", [in_quick_tests(name) for name in MADE])
def test_a_bad_element_goes_to_the_last_output_and_the_others_are_processed(name: str) -> None:
    transform, good = MADE[name]
    with beam.Pipeline() as pipeline:
        elements = pipeline | beam.Create([good, BAD]) | untyped()
        done, *_, failed = elements | transform.with_exception_handling()
        assert_that(failed | beam.Map(lambda failure: failure[0]), equal_to([BAD]), "failed")
        assert_that(done | beam.combiners.Count.Globally() | beam.Map(bool), equal_to([True]), "done")


@pytest.mark.parametrize("name", ["FormatEvents", "MaterializeRows"])
def test_without_it_a_bad_element_fails_the_pipeline(name: str) -> None:
    transform, _ = MADE[name]
    with pytest.raises(AttributeError), beam.Pipeline() as pipeline:
        _ = pipeline | beam.Create([BAD]) | untyped() | transform


def untyped() -> Any:
    return beam.Map(lambda element: element).with_output_types(Any)


def test_the_dead_letter_of_a_format_has_reason_position_and_the_event() -> None:
    truncate = event_of(EVENT.schema, Op.TRUNCATE, after={"Id": 1})

    def check(letters: list[Any]) -> None:
        (letter,) = letters
        assert "ValueError" in letter.reason
        assert (letter.source, letter.version, letter.attempt) == (truncate.source, truncate.version, 2)
        event: ChangeEvent = pickle.loads(pickle.dumps(letter)).event
        assert event == truncate

    with beam.Pipeline() as pipeline:
        events = pipeline | beam.Create([EVENT, truncate])
        _, failed = events | FormatEvents(YdbFormat("feed")).with_exception_handling()
        assert_that(failed | DeadLetters(attempt=2), check)


def test_a_record_that_cannot_be_decoded_is_the_elements_fault_and_a_service_is_not() -> None:
    def handled(error: Exception) -> None:
        def fail(_: Any) -> list[Any]:
            raise error

        with beam.Pipeline() as pipeline:
            _, failed = pipeline | beam.Create([1]) | ElementTransform(fail, int).with_exception_handling()
            assert_that(failed | beam.Map(lambda failure: failure[0]), equal_to([1]))

    handled(DecodeError("not a record"))
    with pytest.raises(ServiceError, match="not there"):
        handled(ServiceError("not there"))
