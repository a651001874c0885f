"""Change stream queries: their arguments, their checks, and the records that answer them at each moment.

    request = parse_change_query(database, sql, params)      # None: some other statement
    query = open_query(database, request, now)
    while not query.done:
        rows = query.poll(now)                               # records to send now
        …wait until `query.wake` or until the partition has something new…

No clock, no waiting: a caller says what time it is.

Source: Spanner documentation, "Change stream partitions, records, and queries", "Query syntax". Errors have
the messages of Google's emulator, measured, because clients match on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock_emulators.simulated_spanner.column_type import POSTGRESQL
from penstock_emulators.simulated_spanner.database import Database
from penstock_emulators.simulated_spanner.errors import (
    ServiceError,
    invalid,
    not_found,
    out_of_range,
)
from penstock_emulators.simulated_spanner.key_ranges import KeyRanges
from penstock_emulators.simulated_spanner.partition import Partition, Place
from penstock_emulators.simulated_spanner.record import Children, Heartbeat, PartitionStart, Record
from penstock_emulators.simulated_spanner.schema import MUTABLE
from penstock_emulators.simulated_spanner.stream import ChangeStream
from penstock_emulators.simulated_spanner.timestamp import SECOND, format_timestamp, parse_timestamp
from penstock_emulators.simulated_spanner.tokens import Reader, Token, tokenize

_ARGUMENTS = ("start_timestamp", "end_timestamp", "partition_token", "heartbeat_milliseconds", "read_options")
_MAX_IN_FUTURE = 10 * 60 * SECOND
_MAX_MUTABLE = 30 * 60 * SECOND
_HEARTBEATS_MS = range(100, 300_001)
"""The documentation says 1,000 to 300,000; the service takes less, as the emulator does."""
_MAX_ROWS = 1_000
"""Records of one poll, so that a long backlog is sent in parts."""
_BEFORE_ALL: Place = (-(1 << 80), 0)
_AFTER_ALL = 1 << 40
"""A sequence above all at one timestamp."""


@dataclass(frozen=True, slots=True)
class ChangeQuery:
    """The arguments of a change stream query; timestamps in nanoseconds, None for NULL."""

    stream: ChangeStream
    placement: str
    function: str
    start: int
    end: int | None
    token: str | None
    heartbeat: int

    @property
    def ranges(self) -> KeyRanges:
        """The key ranges of the function that is read."""
        return self.stream.functions[self.placement]


def parse_change_query(database: Database, sql: str, params: Mapping[str, Any]) -> ChangeQuery | None:
    """Return what a statement asks of a change stream; None if it is no change stream query.

    Raises:
        ServiceError: it is one, but not of the form that the service takes, or an argument is wrong.
    """
    dialect = database.schema.dialect
    if "read_" not in sql.lower():
        return None
    reader = Reader(tokenize(sql, dialect), dialect)
    # Most statements do not name a read function, so this look-up is the common way out.
    named = _function(database, reader)
    # No stream has that function: the statement is an ordinary one, and fails there if it must.
    if named is None:
        return None
    stream, placement, function, is_plain = named
    arguments = _arguments(reader, params) if is_plain else None
    reader.accept(";")
    if arguments is None or reader.next.kind != "end":
        raise _not_alone(function, dialect)
    return _checked(stream, placement, function, arguments)


def _function(database: Database, reader: Reader) -> tuple[ChangeStream, str, str, bool] | None:
    """Find the function in FROM; the last value says whether the SELECT before it is the documented one."""
    names = {
        stream.function_name(placement, reader.dialect): (stream, placement)
        for stream in database.streams.values()
        for placement in stream.functions
    }
    folded = {name.lower(): name for name in names}
    plain = reader.accept("SELECT CHANGERECORD FROM") or reader.accept("SELECT * FROM")
    while reader.next.kind != "end":
        token = reader.take()
        wanted = token.text if reader.dialect == POSTGRESQL and token.kind == "name" else token.text.lower()
        name = wanted if wanted in names else folded.get(wanted)
        if token.kind in ("word", "name") and name is not None and reader.at_words("("):
            return (*names[name], name, plain)
        plain = plain and (token.text == "." or token.text.lower() == "spanner")
    return None


def _arguments(reader: Reader, params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments by name; None if one is no literal or parameter."""
    values: dict[str, Any] = {}
    reader.expect("(")
    while not reader.accept(")"):
        name = _ARGUMENTS[min(len(values), len(_ARGUMENTS) - 1)]
        if reader.ahead(1) == Token("mark", "=>"):
            name = reader.take().text.lower()
            reader.take()
        if name not in _ARGUMENTS:
            raise invalid(f"Named argument {name} not found in signature of the change stream function.")
        values[name] = _argument(reader, params)
        while reader.accept("::"):
            reader.path()  # a cast, as in NULL::text[]
            reader.accept("[ ]")
        if not reader.accept(",") and not reader.at_words(")"):
            return None
    return values


def _argument(reader: Reader, params: Mapping[str, Any]) -> Any:
    if reader.at_words("TIMESTAMP") and reader.ahead(1).kind == "string":
        reader.take()  # TIMESTAMP '…' is a literal
    token = reader.take()
    if token.kind == "parameter":
        if token.text.lower() not in {name.lower() for name in params}:
            raise invalid(f"No parameter found for binding: {token.text}")
        return next(value for name, value in params.items() if name.lower() == token.text.lower())
    if token.kind in ("string", "number"):
        return token.text
    if token.kind == "word" and token.text.upper() == "NULL":
        return None
    raise invalid(
        "Invalid argument of change stream TVF. An argument is not a literal or parameter. Implicit type "
        "conversions are not supported."
    )


def _checked(stream: ChangeStream, placement: str, function: str, arguments: dict[str, Any]) -> ChangeQuery:
    start, end = (_moment(name, arguments.get(name)) for name in _ARGUMENTS[:2])
    heartbeat = arguments.get("heartbeat_milliseconds")
    if start is None:
        raise invalid("start_timestamp must not be null.")
    if heartbeat is None:
        raise invalid("heartbeat_milliseconds must not be null.")
    if int(heartbeat) not in _HEARTBEATS_MS:
        raise out_of_range(
            f"heartbeat_milliseconds must be within min {_HEARTBEATS_MS[0]} and max {_HEARTBEATS_MS[-1]}. "
            f"Received heartbeat_milliseconds: {heartbeat}."
        )
    if arguments.get("read_options") is not None:
        raise ServiceError("UNIMPLEMENTED", "read_options must be null.")
    if end is not None and end < start:
        raise invalid(
            "If end_timestamp is specified, start_timestamp must be <= end_timestamp. Received "
            f"start_timestamp: {format_timestamp(start)}, end_timestamp: {format_timestamp(end)}."
        )
    token = arguments.get("partition_token")
    return ChangeQuery(stream, placement, function, start, end, token, int(heartbeat) * 1_000_000)


def _moment(name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        return parse_timestamp(value)
    except (ValueError, TypeError):
        raise invalid(f"{name} is not a timestamp.") from None


def _not_alone(function: str, dialect: str) -> ServiceError:
    form = f'select * from "spanner"."{function}"(<args>)'
    if dialect != POSTGRESQL:
        form = f"SELECT ChangeRecord FROM {function}(<args>)"
    return ServiceError(
        "UNIMPLEMENTED",
        "Change stream TVF must not be combined with any other SQL statements. Change stream records should "
        f"be read using `{form}`.",
    )


class RunningQuery:
    """A change stream query that is being answered.

    After each `poll`, `wake` is the moment at which there is something to do although nothing new happened;
    `done` says that the answer is complete. `place` is the last record that was sent: the resume token.
    """

    def __init__(self, database: Database, query: ChangeQuery, place: Place | None) -> None:
        self.query = query
        self.done = False
        self.wake = 0
        self.place = place or _BEFORE_ALL
        self.partition: Partition | None = None
        self._database = database
        self._anything_sent = place is not None
        self._last_sent: int | None = None

    def poll(self, now: int) -> list[tuple[Record, Partition | None, int]]:
        """Return the records to send at `now`, each with its partition and index there (for its encoding).

        Raises:
            ServiceError: the stream is gone, or the start is out of range, perhaps only by now.
        """
        self._check_stream()
        # Nothing later can commit at or below the last commit, so it counts as past even if the clock lags.
        safe = max(now, self._database.last)
        if self.query.start > safe:
            self.wake = self.query.start
            return []
        if self.query.token is None:
            self.done = True
            return [(each, None, 0) for each in _initial_records(self.query)]
        return self._partition_records(now, safe)

    def _check_stream(self) -> None:
        """Fail if the stream was dropped; one of the same name made since then has other tokens."""
        stream = self.query.stream
        present = self._database.streams.get(stream.definition.name)
        if present is None:
            raise not_found(f"Change Stream not found: {stream.definition.name}")
        if present is not stream:
            raise _foreign_token(self.query.token)

    def _partition_records(self, now: int, safe: int) -> list[tuple[Record, Partition | None, int]]:
        partition = self.partition = self.partition or _partition(self.query)
        self._check_retention(now, partition)
        query = self.query
        until = safe if query.end is None else min(query.end, safe)
        after = max(self.place, (query.start, -1))
        # Records are found by place, not by index: retention drops records from the front of the log.
        found = partition.between(after, until)
        indexes = found[:_MAX_ROWS]
        rows: list[tuple[Record, Partition | None, int]] = [
            (partition.records[index], partition, index) for index in indexes
        ]
        if indexes:
            self.place = partition.places[indexes[-1]]
        self.wake = now  # there is more
        if len(indexes) == len(found):
            self._finish_or_wait(partition, rows, now, safe)
        if rows:
            self._anything_sent = True
            self._last_sent = now
        return rows

    def _finish_or_wait(
        self, partition: Partition, rows: list[tuple[Record, Partition | None, int]], now: int, safe: int
    ) -> None:
        end = self.query.end
        if partition.end is not None and (end is None or partition.end <= end) and partition.end <= safe:
            self.done = True
        elif end is not None and end <= safe:
            self.done = True
            self._database.close(end)
            if not rows and not self._anything_sent:
                rows.append((Heartbeat(end), None, 0))
        else:
            self._wait(rows, now, safe, end)

    def _wait(
        self, rows: list[tuple[Record, Partition | None, int]], now: int, safe: int, end: int | None
    ) -> None:
        """Set when to look again; add a heartbeat if nothing was sent for as long as the query says."""
        if self._last_sent is None:
            self._last_sent = now
        idle = now - self._last_sent >= self.query.heartbeat
        # A heartbeat never has the timestamp of another record of its partition (change_stream.proto).
        if not rows and idle and safe > self.place[0]:
            rows.append((Heartbeat(safe), None, 0))
            self._database.close(safe)
            self.place = (safe, _AFTER_ALL)
        base = now if rows else self._last_sent
        self.wake = base + self.query.heartbeat if end is None else min(end, base + self.query.heartbeat)

    def _check_retention(self, now: int, partition: Partition) -> None:
        """Fail if the query needs records that are older than the retention, also in mid-query."""
        oldest = now - self.query.stream.retention
        if max(self.query.start, self.place[0]) >= oldest:
            return
        if partition.end is not None and partition.end < oldest:
            raise out_of_range(
                "This partition is no longer valid. All Change Stream records associated with this partition "
                "have expired and have been deleted, as specified by the Change Stream retention period."
            )
        raise _too_old(oldest, self.query.start)


def open_query(database: Database, query: ChangeQuery, now: int, resume: Place | None = None) -> RunningQuery:
    """Return a query that can be polled; `resume` is the place after which a broken answer continues.

    Raises:
        ServiceError: the times are not allowed, or the token is not one of this function.
    """
    stream = query.stream
    oldest = max(now - stream.retention, stream.created)
    if query.start < oldest:
        raise _too_old(oldest, query.start)
    if query.start > now + _MAX_IN_FUTURE:
        raise out_of_range(
            "Specified start_timestamp is too far in the future. Please specify a start_timestamp within the "
            f"earliest read timestamp: {format_timestamp(oldest)}, and the current maximum start timestamp: "
            f"{format_timestamp(now + _MAX_IN_FUTURE)}. Received start_timestamp: "
            f"{format_timestamp(query.start)}."
        )
    if stream.definition.partition_mode == MUTABLE:
        _check_mutable_end(query, now)
    if query.token is not None:
        partition = _partition(query)
        partition.queries += 1
        if query.start < partition.start or (partition.end is not None and query.start > partition.end):
            raise out_of_range(
                "Specified start_timestamp is invalid for the partition. Please specify a start_timestamp "
                f"within {format_timestamp(partition.start)} and "
                f"{format_timestamp(partition.end) if partition.end is not None else 'infinite-future'}. "
                f"Received start_timestamp: {format_timestamp(query.start)}."
            )
    return RunningQuery(database, query, resume)


def _check_mutable_end(query: ChangeQuery, now: int) -> None:
    """Source: apache/beam#34967 and #37459: the end must be given and near."""
    if query.end is None:
        raise invalid("end_timestamp must not be null for MUTABLE_KEY_RANGE change streams.")
    latest = max(now, query.start) + _MAX_MUTABLE
    if query.end > latest:
        raise out_of_range(
            "Specified end_timestamp is too far in the future. Please specify an end_timestamp at most 30 "
            f"minutes ahead: {format_timestamp(latest)}. Received end_timestamp: "
            f"{format_timestamp(query.end)}."
        )


def _partition(query: ChangeQuery) -> Partition:
    found = query.ranges.partitions.get(query.token or "")
    if found is None:
        raise _foreign_token(query.token)
    return found


def _foreign_token(token: str | None) -> ServiceError:
    return invalid(
        "Specified partition_token is invalid, as it does not belong to the Change Stream associated with the "
        f"TVF. Received partition_token: {token}."
    )


def _initial_records(query: ChangeQuery) -> list[Record]:
    """Return the answer to a query without a token: the partitions that live at its start.

    It is empty before the placement of the function was created.
    """
    tokens = query.ranges.live_at(query.start)
    if tokens and query.stream.definition.partition_mode == MUTABLE:
        return [PartitionStart(query.start, 0, tuple(tokens))]
    return [Children(query.start, number, ((token, ()),)) for number, token in enumerate(tokens)]


def _too_old(oldest: int, start: int) -> ServiceError:
    return out_of_range(
        "Specified start_timestamp is too far in the past. Please specify a start_timestamp within the "
        f"earliest read timestamp: {format_timestamp(oldest)}. Received start_timestamp: "
        f"{format_timestamp(start)}."
    )
