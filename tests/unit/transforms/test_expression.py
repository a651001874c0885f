"""Conditions over rows: what they see of an event, and what they refuse."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.event import ChangeEvent, Op
from penstock.transforms import FilterEvents
from penstock.transforms.expression import ConditionError, RowExpression
from tests.unit.transforms.events import order


@pytest.mark.parametrize(
    ("text", "event", "holds"),
    [
        ("State == 'open'", order(State="open"), True),
        ("State == 'open'", order(State=None), False),
        ("State == None", order(State=None), True),
        ("State in ('open', 'paid') and Id >= 1", order(State="paid"), True),
        ("State == 'paid'", order(op=Op.DELETE, State="paid"), True),
        ("op != 'DELETE' and table == 'Orders'", order(), True),
        ("tag == 'backfill'", order(tag="backfill"), True),
        ("sent('State') and State == 'open'", order(), False),
        ("row['State'].startswith('op')", order(State="open"), True),
        ("after.State == lower('OPEN')", order(State="open"), True),
        ("Id > timestamp('1970-01-01T00:00:00.000000000Z')", order(5), True),
    ],
)
def test_a_condition_sees_the_row_and_the_change(text: str, event: ChangeEvent, holds: bool) -> None:
    expression = pickle.loads(pickle.dumps(RowExpression(text)))
    assert expression(event) is holds
    assert list(FilterEvents(where=expression)._process(event)) == [event] * holds


def test_a_column_that_was_not_sent_fails_instead_of_dropping_the_event() -> None:
    with pytest.raises(
        ValueError, match=r"column Email of Orders, which the source did not send.*sent\('Email'\)"
    ):
        RowExpression("Email == 'a'")(order())


def test_an_error_shows_no_value() -> None:
    with pytest.raises(ConditionError, match="TypeError in 'State > 5'") as caught:
        RowExpression("State > 5")(order(State="secret-value"))
    assert "secret-value" not in str(caught.value)
    assert not caught.value.retryable, "each try fails in the same way"


@pytest.mark.parametrize("text", ["State ==", "import os", "State = 1", ""])
def test_a_text_that_is_no_expression_is_refused_before_the_start(text: str) -> None:
    with pytest.raises(UsageError, match="where is not an expression"):
        RowExpression(text)


@pytest.mark.parametrize("text", ["State.__class__", "open('/etc/passwd')", "'x' * 10 ** 9"])
def test_a_condition_reaches_nothing_outside_of_the_event(text: str) -> None:
    with pytest.raises(ValueError, match="where cannot be computed|which the source did not send"):
        RowExpression(text)(order(State="x"))


def test_the_evaluator_is_not_shared_between_expressions() -> None:
    one, other = RowExpression("Id == 1"), RowExpression("Id == 2")
    found: list[Any] = [one(order(1)), other(order(1)), one(order(2)), other(order(2))]
    assert found == [True, False, False, True]
