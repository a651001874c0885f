"""The names in the arguments of the source."""

from __future__ import annotations

import os

from penstock.errors import UsageError
from penstock.extras import extra_packages


def checked_slot(name: str) -> str:
    """Return the name of a slot.

    Raises:
        UsageError: no slot can have it.
    """
    # The rules of the server, which has a folder of this name for the slot (NAMEDATALEN is 64, with its final zero
    # byte).
    if len(name) > 63 or not set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_"):
        raise UsageError(
            f"slot must consist of lower-case letters, digits and underscores, at most 63 of them, not {name!r}"
        )
    return name


def database_of(dsn: str) -> str:
    """Return the name of the database, which is part of the stream's identity; host and user may change.

    Raises:
        UsageError: the text is no connection string, or names no database.
    """
    with extra_packages("postgres"):
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict

    try:
        parts = conninfo_to_dict(dsn)
    except ProgrammingError:
        # libpq repeats a part of the text in its message, which may be the password.
        raise UsageError(
            "dsn is not a connection string of libpq, such as host=db.example.org dbname=shop user=penstock"
        ) from None
    name = parts.get("dbname") or os.environ.get("PGDATABASE") or parts.get("user")
    if not name:
        raise UsageError("dsn names no database: add dbname=…")
    return str(name)
