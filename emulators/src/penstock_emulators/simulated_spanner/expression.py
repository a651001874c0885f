"""Expressions of simple statements: columns, literals, parameters, comparisons, AND, OR, NOT, IN, LIKE, + and -.

An expression is compiled once to a function of a row; a value comes with its type, which a literal that is
compared with a column takes over. NULL is the unknown of SQL: a comparison with it is not true.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any, TypeAlias

from penstock_emulators.simulated_spanner.column_type import ColumnType
from penstock_emulators.simulated_spanner.errors import invalid, unimplemented
from penstock_emulators.simulated_spanner.rows import Row
from penstock_emulators.simulated_spanner.tokens import Reader
from penstock_emulators.simulated_spanner.value import Value, canonical, sort_key

Typed: TypeAlias = tuple[Value, ColumnType | None]
"""A value and its type; None for a literal or an untyped parameter, which takes the type of the other side."""
Evaluate: TypeAlias = Callable[[Row], Typed]

BOOL, STRING, INT64 = ColumnType("BOOL"), ColumnType("STRING"), ColumnType("INT64")
TIMESTAMP = ColumnType("TIMESTAMP")
_DIGITS = 200_000
"""More than any NUMERIC or numeric has: sums are exact."""
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
}


@dataclass(slots=True)
class Scope:
    """Resolves names: the columns of the table with their types, its aliases, and the parameters."""

    columns: Mapping[str, ColumnType]
    names: tuple[str, ...]
    params: Mapping[str, Typed]
    equal: dict[str, Typed]
    """Columns that must equal a constant wherever the condition holds; filled by the parser, for key look-ups."""
    now: str = ""
    """The value of CURRENT_TIMESTAMP()."""

    def column(self, name: str) -> str | None:
        """Return a column by its name, ignoring case."""
        return next((each for each in self.columns if each.lower() == name.lower()), None)


def parse_expression(reader: Reader, scope: Scope) -> Evaluate:
    """Compile an expression.

    Raises:
        ServiceError: a syntax error, or something that is not supported.
    """
    return _disjunction(reader, scope)


def is_true(evaluate: Evaluate, row: Row) -> bool:
    """Return whether a condition holds."""
    return evaluate(row)[0] is True


def _disjunction(reader: Reader, scope: Scope) -> Evaluate:
    start = dict(scope.equal)
    terms = [_conjunction(reader, scope)]
    while reader.accept("OR"):
        terms.append(_conjunction(reader, scope))
    if len(terms) == 1:
        return terms[0]
    # A column need not be equal if only one branch says so, and then a look-up by key would lose rows.
    scope.equal = start  # a branch of an OR need not hold
    return lambda row: (any(is_true(each, row) for each in terms), BOOL)


def _conjunction(reader: Reader, scope: Scope) -> Evaluate:
    terms = [_negation(reader, scope)]
    while reader.accept("AND"):
        terms.append(_negation(reader, scope))
    return terms[0] if len(terms) == 1 else lambda row: (all(is_true(each, row) for each in terms), BOOL)


def _negation(reader: Reader, scope: Scope) -> Evaluate:
    if not reader.accept("NOT"):
        return _comparison(reader, scope)
    # Under NOT an equality says the opposite.
    before = dict(scope.equal)
    inner = _negation(reader, scope)
    scope.equal = before
    return lambda row: (_not(inner(row)[0]), BOOL)


def _not(value: Value) -> bool | None:
    return None if value is None else not value


def _comparison(reader: Reader, scope: Scope) -> Evaluate:
    first = reader.position
    left = _sum(reader, scope)
    # Only a bare column and a bare value can be used for a look-up by key.
    single_column = reader.position == first + 1
    if reader.next.kind == "mark" and reader.next.text in _COMPARISONS:
        operator = reader.take().text
        right_start = reader.position
        right = _sum(reader, scope)
        if operator == "=" and single_column and reader.position == right_start + 1:
            _note_equality(reader, scope, first, right_start)
        return _compared(operator, left, right)
    negated = reader.accept("NOT")
    if reader.accept("IN"):
        return _negated(_membership(reader, scope, left), negated)
    if reader.accept("LIKE"):
        return _negated(_likeness(left, _sum(reader, scope)), negated)
    if reader.accept("BETWEEN"):
        low = _sum(reader, scope)
        reader.expect("AND")
        high = _sum(reader, scope)
        return _negated(_within(left, low, high), negated)
    if reader.accept("IS"):
        negated = reader.accept("NOT")
        reader.expect("NULL")
        return lambda row: ((left(row)[0] is None) != negated, BOOL)
    return left


def _note_equality(reader: Reader, scope: Scope, column_at: int, value_at: int) -> None:
    # The reader goes back to the two tokens, and then to where it was.
    here, reader.position = reader.position, column_at
    token = reader.next
    reader.position = value_at
    value = reader.next
    reader.position = here
    name = scope.column(token.text) if token.kind in ("word", "name") else None
    if name is not None and value.kind in ("string", "number", "parameter"):
        scope.equal[name] = _constant(value.kind, value.text, scope)


def _negated(evaluate: Evaluate, negated: bool) -> Evaluate:
    return (lambda row: (_not(evaluate(row)[0]), BOOL)) if negated else evaluate


def _compared(operator: str, left: Evaluate, right: Evaluate) -> Evaluate:
    compare = _COMPARISONS[operator]

    def evaluate(row: Row) -> Typed:
        a, b = _comparable(left(row), right(row))
        return (None if a is None or b is None else compare(a, b), BOOL)

    return evaluate


def _within(value: Evaluate, low: Evaluate, high: Evaluate) -> Evaluate:
    above, below = _compared(">=", value, low), _compared("<=", value, high)
    return lambda row: (is_true(above, row) and is_true(below, row), BOOL)


def _comparable(left: Typed, right: Typed) -> tuple[Any, Any]:
    kind = left[1] or right[1] or STRING
    # NULL compares as unknown, whatever the other side is.
    if left[0] is None or right[0] is None:
        return None, None
    return sort_key(canonical(left[0], kind), kind), sort_key(canonical(right[0], kind), kind)


def _membership(reader: Reader, scope: Scope, left: Evaluate) -> Evaluate:
    if reader.accept("UNNEST"):
        reader.expect("(")
        values = _sum(reader, scope)
        reader.expect(")")

        def in_array(row: Row) -> Typed:
            found, kind = values(row)
            element = kind.element if kind else None
            return any(_equal(left(row), (each, element)) for each in found or ()), BOOL

        return in_array
    reader.expect("(")
    options = [_sum(reader, scope)]
    while reader.accept(","):
        options.append(_sum(reader, scope))
    reader.expect(")")
    return lambda row: (any(_equal(left(row), each(row)) for each in options), BOOL)


def _equal(left: Typed, right: Typed) -> bool:
    a, b = _comparable(left, right)
    return a is not None and a == b


def _likeness(left: Evaluate, pattern: Evaluate) -> Evaluate:
    def evaluate(row: Row) -> Typed:
        text, like = left(row)[0], pattern(row)[0]
        if text is None or like is None:
            return None, BOOL
        # The two wildcards of LIKE; everything else is literal.
        parts = (".*" if c == "%" else "." if c == "_" else re.escape(c) for c in like)
        return re.fullmatch("".join(parts), text, re.DOTALL) is not None, BOOL

    return evaluate


def _sum(reader: Reader, scope: Scope) -> Evaluate:
    total = _primary(reader, scope)
    while reader.at_words("+") or reader.at_words("-"):
        sign = 1 if reader.take().text == "+" else -1
        total = _added(total, _primary(reader, scope), sign)
    return total


def _added(left: Evaluate, right: Evaluate, sign: int) -> Evaluate:
    def evaluate(row: Row) -> Typed:
        (a, kind_a), (b, kind_b) = left(row), right(row)
        kind = kind_a or kind_b or INT64
        if a is None or b is None:
            return None, kind
        # Floats are added as floats; other numbers exactly.
        if kind.code in ("FLOAT32", "FLOAT64"):
            return float(a) + sign * float(b), kind
        with localcontext() as context:
            context.prec = _DIGITS
            return format(Decimal(a) + sign * Decimal(b), "f"), kind

    return evaluate


def _primary(reader: Reader, scope: Scope) -> Evaluate:
    token = reader.next
    if reader.accept("("):
        inner = _disjunction(reader, scope)
        reader.expect(")")
        return inner
    if reader.accept("-"):
        constant = f"-{reader.take().text}"
        return lambda row: (constant, None)
    if token.kind in ("string", "number", "parameter"):
        reader.take()
        value = _constant(token.kind, token.text, scope)
        # A cast of the PostgreSQL dialect. The type comes from the other side.
        while reader.accept("::"):
            reader.path()
        return lambda row: value
    if reader.at_words("UPPER (") or reader.at_words("LOWER ("):
        return _changed_case(reader, scope)
    if token.kind == "word" and token.text.upper() in ("TRUE", "FALSE", "NULL"):
        literal = {"TRUE": True, "FALSE": False, "NULL": None}[reader.take().text.upper()]
        return lambda row: (literal, BOOL)
    if reader.accept("CURRENT_TIMESTAMP") or reader.accept("NOW ( )"):
        reader.accept("( )")
        return lambda row: (scope.now, TIMESTAMP)
    # The client library sends the commit timestamp as a value, so the function is not needed.
    if reader.at_words("PENDING_COMMIT_TIMESTAMP ( )"):
        raise unimplemented("PENDING_COMMIT_TIMESTAMP().")
    return _column(reader, scope)


def _changed_case(reader: Reader, scope: Scope) -> Evaluate:
    change = str.upper if reader.take().text.upper() == "UPPER" else str.lower
    reader.expect("(")
    inner = _sum(reader, scope)
    reader.expect(")")
    return lambda row: (None if inner(row)[0] is None else change(inner(row)[0]), STRING)


def _constant(kind: str, text: str, scope: Scope) -> Typed:
    if kind != "parameter":
        return text, None
    for name, value in scope.params.items():
        if name.lower() == text.lower():
            return value
    raise invalid(f"No parameter found for binding: {text}")


def _column(reader: Reader, scope: Scope) -> Evaluate:
    path = reader.path()
    table, _, name = path.rpartition(".")
    if table and table.lower() not in (each.lower() for each in scope.names):
        raise invalid(f"Unrecognized name: {path}")
    if reader.at_words("("):
        raise unimplemented(f"The function {path}.")
    found = scope.column(name)
    if found is None:
        raise invalid(f"Unrecognized name: {path}")
    kind = scope.columns[found]
    return lambda row: (row.get(found), kind)
