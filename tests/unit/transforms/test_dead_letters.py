"""`DeadLetters`: what is known about an element that failed, without its values."""

from __future__ import annotations

import traceback
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that

from penstock.errors import UsageError
from penstock.event import ChangeEvent
from penstock.event.coder import encode_event
from penstock.transforms import DeadLetter, DeadLetters, FilterEvents
from penstock.transforms.dead_letters import DeadLetterCoder, dead_letter
from tests.unit.transforms.events import order

SECRET = "someone@example.com"


def fails_with_the_value(event: ChangeEvent) -> bool:
    assert event.after
    raise KeyError(f'no\n  File "{event.after["Email"]}", line 1, in {event.after["Email"]}')


def test_a_letter_has_reason_position_bytes_and_attempt() -> None:
    event = order(3, Email=SECRET)
    failure = (event, failure_of(event))
    letter = dead_letter(failure, attempt=2)
    assert letter.reason.startswith("KeyError at test_dead_letters.py:")
    assert letter.reason.endswith(" in fails_with_the_value")
    assert (letter.source, letter.version) == (event.source, event.version)
    assert letter.data == encode_event(event)
    assert letter.event == event
    assert letter.attempt == 2


def failure_of(event: ChangeEvent) -> Any:
    """Return what Beam notes about the exception."""
    try:
        fails_with_the_value(event)
    except KeyError as error:
        return KeyError, repr(error), traceback.format_exception(error)


def test_the_reason_has_no_value_of_the_row_even_if_the_message_looks_like_a_traceback() -> None:
    event = order(3, Email=SECRET)
    letter = dead_letter((event, failure_of(event)))
    assert SECRET not in letter.reason
    assert SECRET not in repr(letter)
    assert SECRET in dead_letter((event, failure_of(event)), with_text=True).reason


def test_failures_of_a_pipeline_become_letters() -> None:
    def check(letters: list[DeadLetter]) -> None:
        (letter,) = letters
        assert letter.event.key == {"Id": 3}
        assert letter.attempt == 4
        assert SECRET not in letter.reason

    with beam.Pipeline() as pipeline:
        failing = FilterEvents(where=fails_with_the_value).with_exception_handling()
        _, failures = pipeline | beam.Create([order(3, Email=SECRET)]) | failing
        assert_that(failures | DeadLetters(attempt=4), check)


def test_an_event_in_a_pair_and_bytes_are_found() -> None:
    trace: list[str] = []
    assert dead_letter(((1, order(3)), (ValueError, "", trace))).event == order(3)
    letter = dead_letter((b"\x00raw", (ValueError, "", trace)))
    assert (letter.data, letter.element_type, letter.reason) == (b"\x00raw", "bytes", "ValueError")
    with pytest.raises(ValueError, match="not an event"):
        _ = letter.event


def test_the_coder_is_exact() -> None:
    coder = DeadLetterCoder()
    for element in (order(3, Email=SECRET), b"raw", "text"):
        letter = dead_letter((element, (ValueError, "", [])))
        assert coder.decode(coder.encode(letter)) == letter


def test_attempts_count_from_one() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        DeadLetters(attempt=0)
