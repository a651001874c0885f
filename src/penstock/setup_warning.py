"""A warning before a start that a user may accept, so that it is not repeated at each start. Pure."""

from __future__ import annotations


class SetupWarning(str):
    """The text of a warning. The option `accept_warnings` names it by its `name`."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str, text: str) -> SetupWarning:
        """Return the warning `text` with a way to accept it."""
        made = super().__new__(cls, f"{text}. Or accept it with accept_warnings={name}")
        made.name = name
        return made
