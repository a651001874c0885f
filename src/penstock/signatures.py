"""The arguments of a function or class, as its signature and its docstring give them. Pure.

Templates and record formats take their parameters from here, so a parameter is described once: next to the code that
uses it.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

EMPTY = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: its type without None, its default (`EMPTY`: required), its `Literal` choices, and its help."""

    name: str
    type: Any
    default: Any
    choices: tuple[str, ...]
    help: str


def arguments_of(function: Callable[..., Any]) -> dict[str, Argument]:
    """Return the arguments of a function or class that can be passed by keyword, in their order.

    `help` is the text of the argument in the section ``Args:`` of the docstring, in one line, with single backquotes.
    """
    helps = documented_arguments(inspect.getdoc(function) or "")
    found = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if parameter.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            type_ = _without_none(parameter.annotation)
            choices = typing.get_args(type_) if typing.get_origin(type_) is typing.Literal else ()
            found[name] = Argument(name, type_, parameter.default, choices, helps.get(name, ""))
    return found


def documented_arguments(docstring: str) -> dict[str, str]:
    """Return the texts of the section ``Args:`` of a cleaned docstring, by name. ``a, b: text`` describes two."""
    _, _, section = docstring.partition("\nArgs:\n")
    section = re.split(r"\n\S", section, maxsplit=1)[0]
    helps: dict[str, str] = {}
    for entry in re.findall(r"^    (\w[^\n]*(?:\n(?:     .*|$))*)", section, re.MULTILINE):
        names, _, text = entry.partition(":")
        helps |= dict.fromkeys(re.findall(r"\w+", names), " ".join(text.split()).replace("``", "`"))
    return helps


def _without_none(annotation: Any) -> Any:
    """Return X of ``X | None``, and text if it is one of several types."""
    if isinstance(annotation, types.UnionType):
        members = [each for each in typing.get_args(annotation) if each is not types.NoneType]
        # A path may be given as text, and a parameter is text.
        annotation = str if str in members else members[0]
    return annotation
