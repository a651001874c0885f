"""Checks before the start that the source's capture type has the row images that a format needs. Pure."""

from __future__ import annotations

from typing import Literal, get_args

from penstock.errors import UsageError
from penstock.event import ChangeEvent, Source

Mode = Literal["KEYS_ONLY", "UPDATES", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES"]
"""What the records of a change show of a row: the modes of YDB. DynamoDB Streams has the same without UPDATES."""

MODES: tuple[str, ...] = get_args(Mode)

_PARTIAL = frozenset({"KEYS_ONLY", "UPDATES"})
_NEW_ROW = _PARTIAL | {"NEW_IMAGE"}
_EVERYTHING = frozenset(get_args(Mode))
_CAPTURES: dict[str, frozenset[str]] = {
    "OLD_AND_NEW_VALUES": _PARTIAL,
    "NEW_VALUES": _PARTIAL,
    "NEW_ROW": _NEW_ROW,
    "NEW_ROW_AND_OLD_VALUES": _EVERYTHING,
    # PostgreSQL's replica identities. Without FULL an unchanged TOAST value is not sent.
    "DEFAULT": _PARTIAL,
    "INDEX": _PARTIAL,
    "FULL": _EVERYTHING,
    # YDB's own modes; a changefeed of images does not say which columns were updated, but has them all.
    "KEYS_ONLY": frozenset({"KEYS_ONLY"}),
    "UPDATES": _PARTIAL,
    "NEW_IMAGE": _NEW_ROW,
    "OLD_IMAGE": frozenset({"KEYS_ONLY", "OLD_IMAGE"}),
    "NEW_AND_OLD_IMAGES": _EVERYTHING,
    # Bigtable has no capture type: it sends the cells that a change sets.
    "": _PARTIAL,
}
# For the message only: it should offer the capture types of the user's own system.
_SYSTEMS = (
    ("OLD_AND_NEW_VALUES", "NEW_VALUES", "NEW_ROW", "NEW_ROW_AND_OLD_VALUES"),
    ("DEFAULT", "INDEX", "FULL"),
    ("KEYS_ONLY", "UPDATES", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES"),
)


def check_capture(mode: Mode, capture_type: str, *, modes: tuple[str, ...] = MODES) -> None:
    """Check before the pipeline starts that a capture type can satisfy a mode.

    `capture_type` is Spanner's value capture type, PostgreSQL's replica identity, the mode of a YDB changefeed, or
    empty for Bigtable, as `Source.capture` has it. `modes` are those that the format has, for the message.

    Raises:
        UsageError: it cannot; the message names the capture types that can. Or one of the two is unknown.
    """
    check_choice("mode", mode, get_args(Mode))
    # Empty is a known type (Bigtable), so the message leaves it out.
    if capture_type not in _CAPTURES:
        known = ", ".join(filter(None, _CAPTURES))
        raise UsageError(f"capture type {capture_type!r} is unknown: use one of {known}")
    satisfied = _CAPTURES[capture_type]
    if mode in satisfied:
        return
    able = [
        name for system in _SYSTEMS if capture_type in system for name in system if mode in _CAPTURES[name]
    ]
    # A capture type cannot help where the system sends no rows at all.
    remedy = f"use capture type {' or '.join(able)}" if able else "use a source that sends whole rows"
    raise UsageError(
        f"mode {mode} cannot be made from {capture_type or 'Bigtable'}, which does not send what it needs: {remedy}, "
        f"or mode {' or '.join(name for name in modes if name in satisfied)}"
    )


def check_source(mode: Mode, source: Source) -> None:
    """Check the source of events as `check_capture` does. A capture type that this module does not know passes.

    Rows from `MaterializeRows` satisfy every mode. Formats call it for each table: a record of Spanner describes only
    the columns that its capture type sends, so an incomplete image cannot be told from a whole one.

    Raises:
        UsageError: the source cannot satisfy the mode.
    """
    if source.materialized:
        return
    # A capture type of a newer server is no reason to fail a pipeline that may work.
    if source.capture in _CAPTURES and (source.capture or source.system == "bigtable"):
        try:
            check_capture(mode, source.capture)
        except UsageError as error:
            # Bigtable has no full rows, so materializing would be rejected too.
            remedy = "" if source.system == "bigtable" else "; or apply MaterializeRows before the format"
            raise UsageError(f"{error}{remedy}") from None


def check_cells(mode: Mode, event: ChangeEvent) -> None:
    """Check that a mode can express the entries of a Bigtable change.

    Raises:
        ValueError: the change deletes cells or changes aggregates, and the mode shows columns.
    """
    # Only a plain cell has a value that a column can show.
    other = next((cell.mod for cell in event.cells if cell.mod != "SET_CELL"), None)
    if other is not None and mode != "KEYS_ONLY":
        raise ValueError(
            f"a change of {event.source.table} has a {other}, which no record of mode {mode} can express: use "
            "KEYS_ONLY or the Bigtable change log"
        )


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    """Raise UsageError if the value of an option is not among those that the format has."""
    if value not in known:
        raise UsageError(f"{name} {value!r} does not exist: use one of {', '.join(known)}")
