"""The error output of a source, shown with lists in memory as the source."""

from __future__ import annotations

import uuid
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import registry
from apache_beam.testing.util import assert_that, equal_to

from penstock.errors import DecodeError
from penstock.io.change_streams.coders import UndecodableRecordCoder
from penstock.io.change_streams.undecodable import UndecodableRecord
from penstock.transforms import DeadLetters
from tests.conformance.toy_source import LISTS, Lists, ReadFromLists, Record
from tests.support.epochs import Epochs

SECRET = b"a value of the row"
BAD = UndecodableRecord(
    commit_timestamp=2,
    partition="a",
    position="a/2",
    reason="mod_type is not one of INSERT, UPDATE, DELETE",
    data=SECRET,
    format="bytes",
)


def reading(**options: Any) -> ReadFromLists:
    """Return a read of three records, of which the second cannot be decoded."""
    name = uuid.uuid4().hex
    LISTS[name] = Lists(a=[Record(1, "first"), BAD, Record(3, "third")])  # type: ignore[list-item]
    return ReadFromLists(name=name, start=0, end=5, **options)


def test_without_an_error_output_a_record_that_cannot_be_decoded_fails_the_read() -> None:
    read = Epochs(reading())
    with pytest.raises(
        DecodeError, match=r"a record at a/2 cannot be decoded: mod_type .*with_exception_handling"
    ):
        read.run_to_the_end()
    assert read.committed == []


def test_with_an_error_output_the_read_continues_and_the_watermark_passes_the_record() -> None:
    transform = reading().with_exception_handling()
    read = Epochs(transform)
    outputs = read.run_to_the_end()
    assert [getattr(each, "key", None) for each in outputs] == ["first", None, "third"]
    assert outputs[1] == UndecodableRecord(
        commit_timestamp=2, partition="a", position="a/2", reason=BAD.reason, data=SECRET, format="bytes",
        stream=str(transform.stream),
    )  # fmt: skip
    assert read.residuals == []


def test_beam_gets_two_outputs_and_dead_letters_are_made_of_the_second() -> None:
    with beam.Pipeline() as pipeline:
        records, undecodable = pipeline | reading().with_exception_handling()
        assert records.element_type is Record
        assert undecodable.element_type is UndecodableRecord
        keys = records | beam.Map(lambda record: record.key)
        letters = (
            undecodable | DeadLetters() | beam.Map(lambda letter: (letter.reason, SECRET in letter.data))
        )
        assert_that(keys, equal_to(["first", "third"]), "records")
        assert_that(letters, equal_to([(BAD.reason, True)]), "letters")


def test_a_record_survives_its_coder_and_its_text_shows_no_value() -> None:
    coder = registry.get_coder(UndecodableRecord)
    assert isinstance(coder, UndecodableRecordCoder)
    assert coder.is_deterministic()
    assert coder.decode(coder.encode(BAD)) == BAD
    assert SECRET.decode() not in repr(BAD)
    with pytest.raises(ValueError, match="format version 7"):
        coder.decode(b"\x07")
