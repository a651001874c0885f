"""Checks of the arguments that all sinks share. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import UsageError


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a value that is none of the choices.

    Raises:
        UsageError: the message names the choices.
    """
    if value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(choices)}, got {value!r}.")


def check_placeholders(name: str, value: str, fields: Sequence[str]) -> None:
    """Refuse the name of a target that has other placeholders than `fields`, in braces.

    Raises:
        UsageError: the message names the placeholders.
    """
    try:
        # Formatted with samples: the same function fills the names at run time, so both accept the same.
        value.format(**dict.fromkeys(fields, "x"))
    except (KeyError, IndexError, ValueError):
        known = ", ".join(f"{{{field}}}" for field in fields)
        raise UsageError(
            f"{name} may have the placeholders {known} and no other braces, got {value!r}."
        ) from None


SOURCE_NAMES = ("table", "schema", "database")
"""Placeholders for the names of an event's source."""
