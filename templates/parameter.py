"""One parameter of a template: its name, its values, and how a text is parsed.

Every value arrives as text, from a flag, the environment or a YAML scalar, and one rule parses all of them. So
`heartbeat_seconds: 1` in a file and `--set heartbeat_seconds=1` mean the same, and a project called `0123` or a
database called `on` keeps its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from penstock.compat import UTC
from penstock.secrets import has_reference

Value: TypeAlias = str | int | float | bool
"""What one text is read as; a repeated parameter is a list of them."""

Kind = Literal["string", "integer", "number", "boolean", "timestamp"]

_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")
_TRUTH = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)
REFERENCE = re.compile(r"\$\{[\w-]+:")


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        # The error is the template author's, and says where the expression fails.
        raise ValueError(f"not a regular expression: {error}") from error
    return pattern


class Parameter(BaseModel):
    """The specification of one parameter of a template or of the runner.

    `pattern` must match the whole text, and `pattern_help` says in words what it asks for. `minimum` and
    `maximum` are inclusive. `repeated` means a list in a file and one flag per value. `secret` values are
    never shown, but a reference to a secret may be. References in other parameters are replaced before a parameter
    reads them. A parameter that is neither required nor has a default is left out
    when it is not given.

    A `mapping` has a value for each of several names, written ``parameter.name``, or as a mapping in a file. `entries`
    are the parameters of the names; without them every name is allowed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    type: Kind = "string"
    help: Annotated[str, Field(min_length=1)]
    required: bool = False
    default: Value | None = None
    example: str | None = None
    pattern: Annotated[str, AfterValidator(_compiles)] | None = None
    pattern_help: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    repeated: bool = False
    secret: bool = False
    mapping: bool = False
    entries: Mapping[str, Parameter] | None = None

    # Faults of a declaration, found when a template is made and so by any test that makes all templates.
    @model_validator(mode="after")
    def _consistent(self) -> Parameter:
        if self.required and self.default is not None:
            raise ValueError("a required parameter has no default")
        if self.pattern and not self.pattern_help:
            raise ValueError("a pattern needs a pattern_help that says it in words")
        # The text that users are shown must give the default.
        if self.default is not None and self.read(show(self.default)) != self.default:
            raise ValueError(f"the default is no {self.type} as written")
        return self

    def read(self, text: str) -> Value:
        """Return the value that `text` stands for.

        Raises:
            ValueError: a clause that says what is wrong with it and what is asked for; it shows the text
                unless the parameter is secret.
        """
        # A reference in any other parameter was replaced before this call: see `penstock.secrets`. One that is still
        # there has a kind that is not known, such as ${ssm:…}, and would be written into names and paths as it is.
        if self.secret and has_reference(text):
            return text
        if REFERENCE.search(text):
            raise ValueError(
                f"{self._shown(text)} contains no reference that is known: write ${{env:NAME}} or ${{file:/path}}"
            )
        if self.pattern and not re.fullmatch(self.pattern, text):
            raise ValueError(f"{self._shown(text)} is not {self.pattern_help}{self._hint()}")
        if self.choices and text not in self.choices:
            raise ValueError(f"{self._shown(text)} is not one of {', '.join(self.choices)}")
        value = self._typed(text)
        self._check_range(value)
        return value

    def _typed(self, text: str) -> Value:
        try:
            return _READERS[self.type](text)
        # Not chained: the text of Python's own error contains the value, which may be a secret.
        except ValueError:
            raise ValueError(f"{self._shown(text)} is not {_EXPECTED[self.type]}{self._hint()}") from None

    def _check_range(self, value: Value) -> None:
        # A bool is an int in Python.
        if isinstance(value, (str, bool)):
            return
        if self.minimum is not None and value < self.minimum:
            raise ValueError(f"{self._shown(show(value))} is less than the minimum, {self.minimum:.15g}")
        if self.maximum is not None and value > self.maximum:
            raise ValueError(f"{self._shown(show(value))} is more than the maximum, {self.maximum:.15g}")

    def _shown(self, text: str) -> str:
        return "the given secret" if self.secret else repr(text)

    def _hint(self) -> str:
        return f", such as {self.example}" if self.example else ""


def show(value: Value) -> str:
    """Return the text that `Parameter.read` turns back into `value`."""
    # `str(True)` is "True", which no parameter reads.
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def _read_text(text: str) -> str:
    if not text:
        raise ValueError("empty")
    return text


def _read_integer(text: str) -> int:
    """Decimal digits with an optional sign; `_` between digits is allowed as in Python and YAML 1.1."""
    return int(text)


def _read_number(text: str) -> float:
    value = float(text)
    # `float` reads "nan" and "inf", and no comparison with a minimum or a maximum rejects NaN.
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError("not finite")
    return value


def _read_boolean(text: str) -> bool:
    if (value := _TRUTH.get(text.lower())) is None:
        raise ValueError("no truth value")
    return value


def _read_timestamp(text: str) -> str:
    """Return the time as RFC 3339 in UTC, with the digits given: nanoseconds, which `datetime` would drop."""
    parts = _TIMESTAMP.fullmatch(text)
    if not parts:
        raise ValueError("not RFC 3339")
    zone = "+00:00" if parts[4] in "Zz" else parts[4]  # Python 3.10 does not read Z
    try:
        whole = datetime.fromisoformat(f"{parts[1]}T{parts[2]}{zone}").astimezone(UTC)
    except OverflowError:
        raise ValueError("in UTC not within the years 1 to 9999") from None
    return f"{whole.replace(tzinfo=None).isoformat()}{parts[3] or ''}Z"


_READERS: dict[Kind, Callable[[str], Value]] = {
    "string": _read_text,
    "integer": _read_integer,
    "number": _read_number,
    "boolean": _read_boolean,
    "timestamp": _read_timestamp,
}

_EXPECTED: dict[Kind, str] = {
    "string": "a text of at least one character",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "timestamp": "a time in RFC 3339 with its zone (2026-01-31T00:00:00Z)",
}
