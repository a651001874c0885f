"""Conditions over rows, written as text: ``State == 'open' and Amount > 100``. Pure.

The language is defined by `simpleeval`: Python's operators, comparisons, `and`, `or`, `not`, `in`, `if … else` and
methods of texts. It has no imports, no assignments and no access to Python's internals.

| name | value |
|---|---|
| a column | its value in the row after the change; of a DELETE, in the row before it |
| `after`, `before`, `key` | the images: ``before.State``, ``row['family:qualifier']`` |
| `row` | the image that columns are taken from |
| `op`, `table`, `schema`, `tag` | operation, table, schema, tag of the transaction |
| `sent('Note')` | whether the row has the column |
| `timestamp('2026-01-31T00:00:00Z')` | the time as nanoseconds, the form of a TIMESTAMP |
| `len`, `lower`, `upper`, `abs` | as in Python |

NULL is `None`. These names hide columns with the same name; `row['op']` is the column.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from simpleeval import EvalWithCompoundTypes, InvalidExpression

from penstock.errors import PenstockError, UsageError
from penstock.event import ChangeEvent, Image, Op
from penstock.timestamps import parse_timestamp

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "len": len,
    "lower": str.lower,
    "timestamp": parse_timestamp,
    "upper": str.upper,
}


# Attributes of other objects, such as methods of texts, are no columns.
_IMAGES = ("row", "after", "before", "key")
_FACTS = ("op", "table", "schema", "tag")


def _names_of(tree: ast.AST) -> frozenset[str]:
    """Return the names in an expression, and those after an image (``before.State``, ``row['State']``)."""
    # Names that a comprehension binds hide columns, and a method that is called is no column.
    found, bound, called = set(), set(), set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                bound.add(name)  # by a comprehension
            case ast.Name(id=name):
                found.add(name)
            # The call comes before its function in `ast.walk`, so the method is known when its attribute is
            # visited.
            case ast.Call(func=ast.Attribute() as method):
                called.add(id(method))
            case ast.Attribute(value=ast.Name(id=image), attr=name) if (
                image in _IMAGES and id(node) not in called
            ):
                found.add(name)
            case ast.Subscript(value=ast.Name(id=image), slice=ast.Constant(value=str(name))) if (
                image in _IMAGES
            ):
                found.add(name)
    return frozenset(found - bound)


class ConditionError(PenstockError, ValueError):
    """A condition cannot be computed for an event. Each try fails in the same way. The message shows no value."""

    retryable = False


class RowExpression:
    """A condition over an event, for `FilterEvents(where=…)`. Picklable.

    Raises:
        UsageError: the text is not an expression.
    """

    def __init__(self, text: str) -> None:
        try:
            self._names = _names_of(ast.parse(text.strip(), mode="eval"))
            EvalWithCompoundTypes().parse(text)
        except (SyntaxError, InvalidExpression) as error:
            raise UsageError(f"where is not an expression: {error.args[0]} in {text!r}") from None
        self._text = text
        # Made in the worker at the first event.
        self._evaluator: _Evaluator | None = None

    @property
    def columns(self) -> list[str]:
        """The columns that the expression names, sorted."""
        return sorted(self._names - _FUNCTIONS.keys() - {*_IMAGES, *_FACTS, "sent"})

    @property
    def chooses_tables(self) -> bool:
        """Whether the expression asks for the table, or whether a row has a column."""
        return bool(self._names & {"table", "schema", "sent"})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_evaluator": None}  # its functions are closures, which do not pickle

    def __call__(self, event: ChangeEvent) -> bool:
        """Return whether an event meets the condition.

        Raises:
            ConditionError: the row does not have a column, or the expression cannot be computed for its values, such as
                ``Amount > 100`` for NULL. The message shows no value.
        """
        if self._evaluator is None:
            # Built once per process: parsing costs more than one evaluation.
            self._evaluator = _Evaluator(self._text)
        return self._evaluator.holds(event)

    def __repr__(self) -> str:
        return self._text


class _Evaluator:
    def __init__(self, text: str) -> None:
        # `sent` asks about the event at hand, so it is a bound method, and the event is an attribute instead of
        # an argument.
        functions = {**_FUNCTIONS, "sent": self._sent}
        self._eval = EvalWithCompoundTypes(names=self._value, functions=functions)
        self._text, self._parsed = text, self._eval.parse(text)
        self._event: Any = None
        self._row: Image = {}

    def holds(self, event: ChangeEvent) -> bool:
        self._event = event
        # A DELETE of a source that sends no old values has at least its key.
        self._row = (event.before if event.op is Op.DELETE else event.after) or event.key or {}
        try:
            return bool(self._eval.eval(self._text, previously_parsed=self._parsed))
        except _MissingColumnError as error:
            raise ConditionError(
                f"where needs column {error} of {event.source.qualified_table}, which the source did not send or the "
                f"table does not have. Test it in the condition: sent('{error}') and …; choose a capture type that "
                "sends whole rows; or send such events to dead letters"
            ) from None
        except Exception as error:  # its text may show values
            raise ConditionError(
                f"where cannot be computed for an event of {event.source.qualified_table}: {type(error).__name__} in "
                f"{self._text!r}. Correct the condition, or send such events to dead letters"
            ) from None

    def _value(self, node: ast.Name) -> Any:
        event = self._event
        match node.id:
            case "row":
                return _Row(self._row)
            case "after" | "before" | "key":
                # An absent image is an empty row: `before.State` of a CREATE then says which column is missing,
                # instead of an error about None.
                return _Row(getattr(event, node.id) or {})
            case "op":
                return str(event.op)
            case "table" | "schema":
                return getattr(event.source, node.id)
            case "tag":
                return event.transaction.tag if event.transaction else ""
        # All other names are columns.
        return _Row(self._row)[node.id]

    def _sent(self, column: str) -> bool:
        return column in self._row


class _MissingColumnError(Exception):
    """A row does not have a column; the text is its name."""


class _Row(dict[str, Any]):
    def __missing__(self, column: str) -> Any:
        raise _MissingColumnError(column)
