"""What text a parameter accepts, and what it says of the rest."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.templates.parameter import Parameter, show


def parameter(**facts: Any) -> Parameter:
    return Parameter(help="For this test.", **facts)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", "0123", "0123"),
        ("string", "on", "on"),
        ("integer", "-5", -5),
        ("number", "0.5", 0.5),
        ("boolean", "Yes", True),
        ("boolean", "off", False),
        ("timestamp", "2026-01-31T00:00:00.123456789Z", "2026-01-31T00:00:00.123456789Z"),
        ("timestamp", "2026-01-31T00:30:00.5+01:00", "2026-01-30T23:30:00.5Z"),
    ],
)
def test_text_is_read_as_its_type(kind: Any, text: str, value: object) -> None:
    assert parameter(type=kind).read(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "asked"),
    [
        ("string", "", "at least one character"),
        ("integer", "1.5", "whole number"),
        ("integer", "1,000", "whole number"),
        ("number", "nan", "a number"),
        ("number", "inf", "a number"),
        ("boolean", "maybe", "true or false"),
        ("timestamp", "2026-01-31", "RFC 3339"),
        ("timestamp", "2026-01-31T00:00:00", "with its zone"),
        ("timestamp", "2026-02-30T00:00:00Z", "RFC 3339"),
        ("timestamp", "2026-01-31T00:00:00.1234567890Z", "RFC 3339"),
        ("timestamp", "0001-01-01T00:00:00+01:00", "RFC 3339"),
    ],
)
def test_other_text_is_refused_and_the_error_names_the_expected_form(
    kind: Any, text: str, asked: str
) -> None:
    with pytest.raises(ValueError, match=asked):
        parameter(type=kind).read(text)


@pytest.mark.parametrize("text", ["1", "3"])
def test_both_ends_of_a_range_are_allowed(text: str) -> None:
    assert parameter(type="integer", minimum=1, maximum=3).read(text) == int(text)


@pytest.mark.parametrize("text", ["0", "4"])
def test_a_value_outside_its_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is (less|more) than"):
        parameter(type="integer", minimum=1, maximum=3).read(text)


def test_a_pattern_must_match_the_whole_text() -> None:
    names = parameter(pattern="[a-z]+", pattern_help="lowercase letters", example="orders")
    assert names.read("orders") == "orders"
    with pytest.raises(ValueError, match="'orders2' is not lowercase letters, such as orders"):
        names.read("orders2")


def test_a_choice_is_one_of_the_choices() -> None:
    with pytest.raises(ValueError, match="'c' is not one of a, b"):
        parameter(choices=("a", "b")).read("c")


def test_a_secret_is_never_shown() -> None:
    secret = parameter(secret=True, pattern="x+", pattern_help="a key")
    with pytest.raises(ValueError, match="the given secret is not a key") as caught:
        secret.read("hunter2")
    assert "hunter2" not in str(caught.value)


def test_a_secret_keeps_its_references_and_unknown_ones_are_refused() -> None:
    secret = parameter(secret=True, pattern="x+", pattern_help="a key")
    assert secret.read("${env:KEY}") == "${env:KEY}"
    assert secret.read("host=db password=${file:/run/key}") == "host=db password=${file:/run/key}"
    for each in (parameter(), secret):
        with pytest.raises(ValueError, match=r"write \$\{env:NAME\} or"):
            each.read("${evn:KEY}")


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [
        ({"required": True, "default": "x"}, "no default"),
        ({"pattern": "("}, "missing"),
        ({"pattern": "x"}, "pattern_help"),
        ({"type": "integer", "default": 0, "minimum": 1}, "less than"),
        ({"type": "integer", "default": "one"}, "whole number"),
        ({"tipe": "integer"}, "tipe"),
    ],
)
def test_a_specification_that_contradicts_itself_is_refused(facts: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        parameter(**facts)


@given(st.one_of(st.tuples(st.just("integer"), st.integers()), st.tuples(st.just("boolean"), st.booleans())))
def test_shown_values_can_be_parsed_again(case: tuple[Any, int | bool]) -> None:
    kind, value = case
    assert parameter(type=kind).read(show(value)) == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_read_back_exactly(value: float) -> None:
    assert parameter(type="number").read(show(value)) == value
