"""Names of Python 3.11 that Penstock uses, for Python 3.10. Pure.

`typing_extensions` has the same for `typing`. The rest is too little for another package.
"""

from __future__ import annotations

import sys
from datetime import timezone
from enum import Enum

UTC = timezone.utc

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:

    class StrEnum(str, Enum):
        """An enumeration whose members are strings and are formatted as their values."""

        __str__ = str.__str__

        def __format__(self, format_spec: str) -> str:
            return str.__format__(self, format_spec)


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error, as `BaseException.add_note` does. Python 3.10 keeps it and does not print it."""
    error.__dict__.setdefault("__notes__", []).append(note)


__all__ = ["UTC", "StrEnum", "add_note"]
