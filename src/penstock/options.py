"""Declares parameters once, and reads their declarations. Pure.

    @options
    class ClockOptions(Options):
        interval_seconds: Annotated[float, Accepts(minimum=0.1, maximum=60)] = 1.0
        '''Time, in seconds, between two ticks.'''

    class ReadFromClock(ClockOptions, beam.PTransform):
        def __post_init__(self) -> None: ...

A transform inherits the class with its options, so the fields are the arguments of the transform: for Python, editors
and type checkers. `arguments_of` returns the same fields with their docstrings and limits. Templates, the command line,
JSON schemas and the pages of the documentation take them from there. A field that a subclass declares again keeps the
docstring and the limits that it does not repeat.

A field is given by keyword, or also by position if it is ``field(kw_only=False)``. An optional mapping is ``… | None =
None``, as a function would have it.

`arguments_of` also reads plain functions and classes, such as record formats: then the text of an argument is in the
section ``Args:`` of the docstring.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Annotated, Any, TypeVar, get_args, get_origin

from typing_extensions import dataclass_transform

EMPTY = inspect.Parameter.empty

Class = TypeVar("Class", bound=type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepts:
    """Restrictions of a value beyond its type, if it comes as text. Limits are inclusive.

    `words` says in words what `pattern` asks for. `choices`: of the elements, if there are several.
    """

    minimum: float | None = None
    maximum: float | None = None
    pattern: str | None = None
    words: str | None = None
    choices: tuple[str, ...] = ()
    example: str | None = None


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: its type without None, its default (`EMPTY`: required), its choices, its help and its limits.

    The type of a moment (`Timelike`) is `datetime`. The default of a mapping is an empty one.
    """

    name: str
    type: Any
    default: Any
    choices: tuple[str, ...]
    help: str
    accepts: Accepts = Accepts()


class Options:
    """The base of declarations."""

    def __post_init__(self) -> None:
        """Do nothing. A transform checks its options here, and makes of them what it needs.

        The constructor of a dataclass calls this only if the class has it when it is declared.
        """


@dataclass_transform(
    kw_only_default=True, frozen_default=True, eq_default=False, field_specifiers=(dataclasses.field,)
)
def options(cls: Class) -> Class:
    """Make a class the declaration of options: a frozen dataclass whose fields are given by keyword.

    Not compared by value and without a `repr` of its fields: a transform that inherits it is neither, and fields may
    be secrets.
    """
    decorate: Any = dataclass(frozen=True, kw_only=True, eq=False, repr=False)
    made: Class = decorate(cls)
    return made


def arguments_of(function: Callable[..., Any]) -> dict[str, Argument]:
    """Return the arguments of a function or class that can be passed by keyword, in their order.

    Fields without a default come first, as an address is written: from the general base to the class itself. Then come
    the others, the fields of the class before the fields of its bases: a reader looks for what is special about it.

    `help` is the docstring of a field, or the text of the argument in the section ``Args:`` of the docstring; in one
    line, with single backquotes.
    """
    helps = documented_arguments(inspect.getdoc(function) or "")
    if isinstance(function, type) and dataclasses.is_dataclass(function):
        # The class that declares the fields, of which a transform is a subclass: annotations of the transform itself
        # may be for type checkers alone.
        function = next(each for each in function.__mro__ if "__dataclass_fields__" in vars(each))
        declared, limits = _declared_fields(function), _limits(function)
        hints = typing.get_type_hints(function, include_extras=True)
        fields = {field.name: field for field in dataclasses.fields(function) if field.init}
        return {
            name: _argument(
                name,
                hints[name],
                _default(fields[name]),
                declared.get(name, helps.get(name, "")),
                limits.get(name, Accepts()),
            )
            for name in _in_order(function, fields)
        }
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {
        name: _argument(name, each.annotation, each.default, helps.get(name, ""), Accepts())
        for name, each in inspect.signature(function, eval_str=True).parameters.items()
        if each.kind in kinds
    }


def documented_arguments(docstring: str) -> dict[str, str]:
    """Return the texts of the section ``Args:`` of a cleaned docstring, by name. ``a, b: text`` describes two."""
    _, _, section = docstring.partition("\nArgs:\n")
    section = re.split(r"\n\S", section, maxsplit=1)[0]
    helps: dict[str, str] = {}
    for entry in re.findall(r"^    (\w[^\n]*(?:\n(?:     .*|$))*)", section, re.MULTILINE):
        names, _, text = entry.partition(":")
        helps |= dict.fromkeys(re.findall(r"\w+", names), _one_line(text))
    return helps


def _argument(name: str, annotation: Any, default: Any, help_: str, accepts: Accepts) -> Argument:
    type_ = _plain_type(annotation)
    choices = get_args(type_) if get_origin(type_) is typing.Literal else accepts.choices
    if get_origin(type_) is Mapping and default is None:
        default = {}  # a signature has None, because {} could be changed
    return Argument(name, type_, default, choices, help_, accepts)


def _plain_type(annotation: Any) -> Any:
    """Return X of ``X | None`` and of ``Annotated[X, …]``, and text if it is one of several types."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (types.UnionType, typing.Union):
        members = [each for each in get_args(annotation) if each is not types.NoneType]
        if datetime in members:
            return datetime
        # A path may be given as text, and a parameter is text.
        annotation = str if str in members else members[0]
    return annotation


def _in_order(cls: type, fields: Mapping[str, dataclasses.Field[Any]]) -> list[str]:
    """Return the names of `fields`, which a class and its bases declare, in the order of `arguments_of`."""
    own_first: list[str] = []
    for each in reversed(cls.__mro__):
        if "__dataclass_fields__" in vars(each):
            # A field that a class declares again stays beside the fields with which its base declares it.
            own = [name for name in inspect.get_annotations(each) if name in fields and name not in own_first]
            own_first = [*own, *own_first]
    required = [name for name, field in fields.items() if _default(field) is EMPTY]
    return list(dict.fromkeys([*required, *own_first]))


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return EMPTY if field.default is dataclasses.MISSING else field.default


@functools.cache
def _limits(cls: type) -> Mapping[str, Accepts]:
    """Return the limits of the fields, a subclass's before its bases'."""
    found: dict[str, Accepts] = {}
    for each in reversed(cls.__mro__):
        if "__dataclass_fields__" in vars(each):
            hints = typing.get_type_hints(each, include_extras=True)
            for name in inspect.get_annotations(each):
                for given in getattr(hints[name], "__metadata__", ()):
                    if isinstance(given, Accepts):
                        found[name] = _over(found.get(name, Accepts()), given)
    return found


def _over(base: Accepts, accepts: Accepts) -> Accepts:
    said = {each.name: getattr(accepts, each.name) for each in dataclasses.fields(accepts)}
    return replace(base, **{name: value for name, value in said.items() if value not in (None, ())})


def _declared_fields(cls: type) -> dict[str, str]:
    """Return the docstrings of the fields of a class and its bases, by name."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if "__dataclass_fields__" in vars(each):
            found |= _field_docstrings(each)
    return found


@functools.cache
def _field_docstrings(cls: type) -> Mapping[str, str]:
    """Return the strings that follow the fields in the body of a class. Python itself drops them.

    They are empty if the source is not there, for example in a program that consists of bytecode.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return {}
    body = typing.cast("ast.ClassDef", tree.body[0]).body
    found = {}
    for field, text in pairwise(body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                found[name] = _one_line(words)
    return found


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")
