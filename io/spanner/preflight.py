"""The checks before a read, that the database answers and the stream exists, and the facts that the reader needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.errors import SetupError, SeveralProblemsError
from penstock.io.spanner.query import (
    DIALECT,
    GOOGLESQL,
    POSTGRESQL,
    ROOT,
    ROUTINES,
    STREAMS,
    TABLES,
    Query,
    list_of_placements,
    partition_key,
    read_functions,
    stream_options_query,
)
from penstock.io.spanner.source import ChangeStream
from penstock.tables import EVERY_TABLE, SourceTable, TableSelection, Unmatched, unmatched_selection

_MODES = {"IMMUTABLE_KEY_RANGE": False, "MUTABLE_KEY_RANGE": True}


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """The properties of a change stream, as the service names them.

    - `dialect`: of its database.
    - `functions`: its read functions: one, or one for each placement with per_placement_tvf.
    - `options`: those that are set, such as value_capture_type.
    - `placements_of`: with per_placement_tvf, the beginning of the names of the functions; otherwise None.
    """

    dialect: str
    functions: tuple[str, ...]
    options: Mapping[str, str]
    placements_of: str | None = None

    @property
    def mutable(self) -> bool:
        """Whether key ranges move between partitions (partition_mode MUTABLE_KEY_RANGE)."""
        return _MODES[self.options.get("partition_mode", "IMMUTABLE_KEY_RANGE")]

    @property
    def capture_type(self) -> str:
        """The value capture type of the change stream, such as ``NEW_ROW``: it says which values the stream sends."""
        return self.options.get("value_capture_type", "OLD_AND_NEW_VALUES")

    def roots(self, change_stream: str) -> tuple[str, ...]:
        """Return the keys of the root partitions, one for each function, and of the list of placements, if any."""
        usual = f"READ_{change_stream}"
        roots = [partition_key("" if function == usual else function, ROOT) for function in self.functions]
        if self.placements_of is not None:
            roots.append(list_of_placements(self.placements_of, self.functions))
        return tuple(roots)


def check_source(
    stream: ChangeStream, rows: Callable[[Query], list[list[str]]], dialect: str | None = None
) -> StreamFacts:
    """Return the facts about the change stream.

    `rows` runs a query and returns its rows as lists of text. `dialect` of the database; None: the service is asked.
    Only a read tells whether the start is within the retention period. The first query reports that, before a record is
    emitted.

    Raises:
        SetupError: no such stream, or one of a kind that this release does not know; the message names the fix.
    """
    dialect = dialect or _dialect(stream, rows(Query(DIALECT)))
    names = [name for (name,) in rows(Query(STREAMS))]
    name = _existing(stream, names, dialect)
    options = dict(rows(stream_options_query(name, dialect)))
    mode = options.get("partition_mode", "IMMUTABLE_KEY_RANGE")
    if mode not in _MODES:
        raise SetupError(
            f"{stream} has partition_mode {mode}, which this release does not know. Use one of {', '.join(_MODES)}"
        )
    # GoogleSQL names are compared without case, so the function has the name that the user wrote.
    name = name if dialect == POSTGRESQL else stream.change_stream
    function = read_functions(name, dialect, mutable=_MODES[mode])
    if options.get("per_placement_tvf", "false").lower() != "true":
        return StreamFacts(dialect, (function,), options)
    return StreamFacts(
        dialect, placement_functions(stream, function, names, rows), options, placements_of=function
    )


def placement_functions(
    stream: ChangeStream, function: str, streams: list[str], rows: Callable[[Query], list[list[str]]]
) -> tuple[str, ...]:
    """Return the read functions of all placements, whose names begin with `function`. `streams`: all of the database.

    Raises:
        SetupError: there is none that the credentials can see.
    """
    kind = function[: -len(stream.change_stream)]
    others = [kind + each for each in streams if each.lower() != function.removeprefix(kind).lower()]
    return _of_placements(stream, function, others, [each for (each,) in rows(Query(ROUTINES))])


def unmatched_tables(
    stream: ChangeStream, rows: Callable[[Query], list[list[str]]], selection: TableSelection
) -> Unmatched:
    """Return texts about the patterns of tables that match none of the database, and about a selection of no table.

    Tables that these credentials cannot see are not known.
    """
    # Tables of the default schema have no schema in change records: it is "public" in PostgreSQL databases.
    tables = [
        SourceTable("" if schema == "public" else schema, name, ()) for schema, name in rows(Query(TABLES))
    ]
    return unmatched_selection(selection, tables, stream.database_path)


def check_tables(
    stream: ChangeStream, rows: Callable[[Query], list[list[str]]], selection: TableSelection
) -> None:
    """Check that the database has the tables that the selection names, and one that it selects.

    Raises:
        SetupError: it does not. A name that the database does not have would silently select nothing.
    """
    if selection != EVERY_TABLE and (problems := unmatched_tables(stream, rows, selection).names):
        raise SeveralProblemsError.of([SetupError(text) for text in problems], stream.database_path)


def _dialect(stream: ChangeStream, rows: list[list[str]]) -> str:
    dialect = rows[0][0] if rows else GOOGLESQL
    if dialect not in (GOOGLESQL, POSTGRESQL):
        raise SetupError(
            f"{stream.database_path} has the dialect {dialect}, which this release does not know. Nothing was read"
        )
    return dialect


def _existing(stream: ChangeStream, names: list[str], dialect: str) -> str:
    """Return the name of the stream as the database spells it."""
    asked = stream.change_stream
    if asked in names:
        return asked
    same = [name for name in names if name.lower() == asked.lower()]
    if len(same) == 1:
        return same[0]
    known = ", ".join(sorted(names)) or "none"
    options = "WITH (value_capture_type = 'OLD_AND_NEW_VALUES')"
    if dialect != POSTGRESQL:
        options = options.replace("WITH", "OPTIONS")
    raise SetupError(
        f"{stream.database_path} has no change stream {asked!r} that these credentials can see (there are: {known}). "
        f"Check the name, or create it: CREATE CHANGE STREAM {asked} FOR ALL {options}"
    )


def _of_placements(
    stream: ChangeStream, function: str, others: list[str], routines: list[str]
) -> tuple[str, ...]:
    """Return the functions of all placements, without those that belong to a stream with a longer name."""
    # The functions of a stream whose name continues this one's begin with the same text.
    longer = tuple(f"{other}_" for other in others if other.lower().startswith(f"{function}_".lower()))
    found = [
        routine
        for routine in routines
        if routine.lower().startswith(f"{function}_".lower())
        and routine.lower() not in {other.lower() for other in others}
        and not routine.lower().startswith(tuple(each.lower() for each in longer))
    ]
    if not found:
        raise SetupError(
            f"{stream} is read by one function for each placement (per_placement_tvf), but these credentials see none "
            f"whose name begins with {function}_. With fine-grained access control, grant EXECUTE on them to the "
            "database_role that you pass"
        )
    return tuple(found)
