"""The responses of one ReadChangeStream call, step by step. No gRPC, no waiting: a step returns responses and the time
of the next step.

    session = Session.open(stream, request, now_us)
    step = session.step(now_us)             # step.responses, step.end, step.idle_until_us

A stream ends when its partition was replaced (CloseStream with the new partitions), when every record up to its end
time was sent (CloseStream OK), when its position has expired, or by a fault. After a change of the partitions the rest
of the records is not sent first: the tokens hold the position of each part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from penstock_emulators.bigtable import tokens, wire
from penstock_emulators.bigtable.damage import damaged
from penstock_emulators.bigtable.faults import Armed, Fault
from penstock_emulators.bigtable.layout import KeyRange, LayoutError
from penstock_emulators.bigtable.log import Record
from penstock_emulators.bigtable.table import ChangeStream, Reader
from penstock_emulators.bigtable.tokens import Mint, Part, Token, TokenError

OK, INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION, OUT_OF_RANGE, INTERNAL = 0, 3, 5, 9, 11, 13

DEFAULT_HEARTBEAT_US = 5_000_000
SHORTEST_HEARTBEAT_US = 50_000
"""The shortest interval between heartbeats; shorter ones are treated as this one. The service documents no bound."""

_RECORDS_A_STEP = 64
"""Number of records after which a session lets others run."""
_SCANNED_A_STEP = 2_000

_EXPIRED = "the position is older than the change stream's retention; its changes are gone"
_SWITCHED_OFF = "the table has no change stream (any more); set change_stream_config on it"


@dataclass(frozen=True, slots=True)
class Status:
    """The status with which the call ends: a gRPC status code and its message."""

    code: int
    message: str = ""


class RequestError(ValueError):
    """A ReadChangeStream request that is refused with `status`."""

    def __init__(self, code: int, message: str) -> None:
        """Refuse the request with this status."""
        super().__init__(message)
        self.status = Status(code, message)


@dataclass(frozen=True, slots=True)
class Step:
    """Responses to send now; then the end of the call, or a pause.

    With `end` None, the next step is due at `idle_until_us`, or as soon as the stream's reader is woken.
    """

    responses: list[bytes]
    end: Status | None = None
    idle_until_us: int = 0


class Session:
    """One open change stream of one partition."""

    def __init__(
        self, stream: ChangeStream, start: Token, end_us: int | None, heartbeat_us: int, now_us: int
    ) -> None:
        """Start at the position of `start`, whose range is the partition; use `open` for a request."""
        self.reader = Reader(start.keys)
        self._stream = stream
        self._mint: Mint | None = None
        # A token may have parts at different positions, after a merge of parents that were read unequally.
        self._stand_at(start.parts)
        # The scan begins at the earliest part; the others skip what they have.
        self._position = min(part.sequence for part in start.parts)
        self._as_of_us = start.as_of_us
        self._incarnation = stream.layout.incarnation(start.keys)
        self._end_us = end_us
        self._heartbeat_us = heartbeat_us
        self._next_heartbeat_us = now_us + heartbeat_us
        self._close_at_us: int | None = None if self._incarnation is not None else now_us
        stream.opened += 1

    @classmethod
    def open(cls, stream: ChangeStream | None, request: Any, now_us: int) -> Session:
        """Return the session for a ReadChangeStreamRequest.

        Raises:
            RequestError: the request is refused, for a reason that the service documents.
        """
        if stream is None:
            raise RequestError(FAILED_PRECONDITION, _SWITCHED_OFF)
        start = _start(stream, request, _partition(request), now_us)
        end_us = _microseconds(request, "end_time") if request.HasField("end_time") else None
        heartbeat_us = request.heartbeat_duration.ToMicroseconds() or DEFAULT_HEARTBEAT_US
        if heartbeat_us < 0:
            raise RequestError(INVALID_ARGUMENT, "heartbeat_duration must be positive")
        return cls(stream, start, end_us, max(heartbeat_us, SHORTEST_HEARTBEAT_US), now_us)

    def step(self, now_us: int) -> Step:
        """Return what to do now."""
        # The order matters: a call that has to end must not send one more record, and an armed fault must come before
        # the records that a test expects after it.
        ended = self._ended(now_us)
        if ended is not None:
            return ended
        armed = self._due_fault()
        if armed is not None and not armed.fault.damages_record:
            self._stream.faults.remove(armed)
            return _ended_by(armed.fault)
        # The end time is passed if it is below the watermark of *before* the scan: later writes are above that.
        passed = self._end_us is not None and self._stream.clock.watermark_us() > self._end_us
        responses, spoilt = self._scan(armed, now_us)
        if spoilt:
            return Step(responses, Status(14, "the connection broke, as a test wished"))
        caught_up = self._position == self._stream.log.end
        if caught_up and passed:
            return Step([*responses, wire.close(OK, "")], Status(OK))
        if now_us >= self._next_heartbeat_us:
            self._next_heartbeat_us = now_us + self._heartbeat_us
            responses.append(self._heartbeat(now_us))
        idle = caught_up and not self._is_to_fail()
        return Step(responses, None, self._idle_until_us(now_us) if idle else 0)

    def _ended(self, now_us: int) -> Step | None:
        """Return the last step if the call ends now, otherwise None."""
        stream = self._stream
        if stream.deleted:
            return Step([], Status(NOT_FOUND, "the table was deleted"))
        if not stream.on:
            return Step([], Status(FAILED_PRECONDITION, _SWITCHED_OFF))
        # Deletes what has expired, before the position is compared.
        stream.horizon_us()
        if self._position < stream.log.first:
            return Step([], Status(OUT_OF_RANGE, _EXPIRED))
        return Step([self._close()], Status(OK)) if self._notices_close(now_us) else None

    def _notices_close(self, now_us: int) -> bool:
        """Return whether the partition was replaced and this stream has noticed it."""
        # The time is drawn once, when the change is first seen, so that each stream has one delay for each change.
        if self._close_at_us is None and (
            self._stream.layout.incarnation(self.reader.keys) != self._incarnation
        ):
            self._close_at_us = now_us + self._stream.close_delay_us()
        return self._close_at_us is not None and now_us >= self._close_at_us

    def _close(self) -> bytes:
        ways = self._stream.layout.close(self.reader.keys)
        parts = tokens.advanced(self._parts, self._position)
        uid, wide = self._stream.uid, self._stream.wide_tokens
        given = []
        for part, target in ways:
            token = Token(uid, self._as_of_us, tokens.cut(parts, part))
            if wide:
                # The service's bug: the token covers more than was asked for.
                token = Token(uid, self._as_of_us, _widened(token.parts, target), loose=True)
            given.append((target if wide else part, token.encode()))
        message = "the partition was split, merged or moved; read the new partitions from these tokens"
        return wire.close(OUT_OF_RANGE, message, given, [target for _, target in ways])

    # Records

    def _scan(self, armed: Armed | None, now_us: int) -> tuple[list[bytes], bool]:
        """Return the responses of the next records, and whether a fault ended the call after them."""
        responses: list[bytes] = []
        sent = 0
        for record in self._stream.log.read(self._position, _SCANNED_A_STEP):
            wanted = self._wants(self._position, record)
            self._position += 1
            if not wanted:
                continue
            # Later records in the log are not older, except injected records, and these are late data.
            self._as_of_us = max(self._as_of_us, min(record.commit_us, now_us))
            answer = self._responses(record)
            if armed is not None:
                hurt = damaged(answer, armed.fault, self._heartbeat(now_us))
                if hurt is not None:
                    self._stream.faults.remove(armed)
                    return [*responses, *hurt], True
            responses += answer
            sent += 1
            if sent == _RECORDS_A_STEP:
                break
        self.reader.records += sent
        if len(self._parts) > 1:
            # Parts that have reached the same position become one, and one part has the cheap token.
            self._stand_at(tokens.advanced(self._parts, self._position))
        return responses, False

    def _stand_at(self, parts: tuple[Part, ...]) -> None:
        self._parts = parts
        self._mint = Mint(self._stream.uid, parts[0]) if len(parts) == 1 else None

    def _wants(self, sequence: int, record: Record) -> bool:
        part = self._parts[0] if self._mint is not None else tokens.part_for(self._parts, record.key)
        return part.wants(sequence, record.key, record.commit_us) and (
            self._end_us is None or record.commit_us <= self._end_us
        )

    def _responses(self, record: Record) -> list[bytes]:
        *first, last = record.messages
        watermark_us = self._stream.low_watermark_us(self._as_of_us)
        ending = wire.finished(last, self._token(), watermark_us)
        return [*map(wire.data_change, first), ending] if first else [ending]

    def _heartbeat(self, now_us: int) -> bytes:
        """Return a heartbeat. Records that were not sent yet are not older than the next record in the log."""
        log = self._stream.log
        # A heartbeat must not promise more than the next record allows: its commit time is still to be sent.
        reached_us = self._stream.clock.watermark_us()
        if self._position < log.end:
            reached_us = min(now_us, log.read(self._position, 1)[0].commit_us - 1)
        self._as_of_us = max(self._as_of_us, reached_us)
        watermark_us = self._stream.low_watermark_us(self._as_of_us)
        return wire.heartbeat(self.reader.keys, self._token(), watermark_us)

    def _token(self) -> str:
        if self._mint is not None:
            return self._mint.token(self._as_of_us, self._position)
        parts = tokens.advanced(self._parts, self._position)
        return Token(self._stream.uid, self._as_of_us, parts).encode()

    def _idle_until_us(self, now_us: int) -> int:
        # The first of three times: a heartbeat, the end, the close.
        due = [self._next_heartbeat_us]
        if self._end_us is not None and self._end_us >= now_us:
            due.append(self._end_us + 1)
        if self._close_at_us is not None:
            due.append(self._close_at_us)
        return min(due)

    def _is_to_fail(self) -> bool:
        """Return whether a fault that needs no record ends the stream in the next step."""
        armed = self._due_fault()
        return armed is not None and not armed.fault.damages_record

    def _due_fault(self) -> Armed | None:
        """Return the first fault that this stream can have."""
        return next(
            (armed for armed in self._stream.faults if self.reader.records >= armed.after_records), None
        )


def _ended_by(fault: Fault) -> Step:
    if fault is Fault.END_WITHOUT_CLOSE:
        return Step([], Status(OK))
    if fault is Fault.CLOSE_INTERNAL:
        return Step([wire.close(INTERNAL, "closed by a test")], Status(OK))
    if fault is Fault.CLOSE_WITHOUT_TOKENS:
        return Step([wire.close(OUT_OF_RANGE, "closed by a test")], Status(OK))
    codes = {Fault.UNAVAILABLE: 14, Fault.ABORTED: 10, Fault.INTERNAL: INTERNAL}
    return Step([], Status(codes[fault], "the call failed, as a test wished"))


def _widened(parts: tuple[Part, ...], target: KeyRange) -> tuple[Part, ...]:
    """Return `parts` extended to `target`: exact in their keys, repeating records of others in the rest."""
    first, last = parts[0].keys.start, parts[-1].keys.end
    # The rest of the target was read by others, up to the same or a later position: their records come again.
    low = Part(target, min(part.sequence for part in parts), min(part.since_us for part in parts))
    before = [replace(low, keys=KeyRange(target.start, first))] if target.start != first else []
    after = [replace(low, keys=KeyRange(last, target.end))] if target.end != last else []
    return tokens.joined([*before, *parts, *after])


def _partition(request: Any) -> KeyRange:
    """Return the partition asked for: a closed start and an open end, either of which may be missing."""
    keys = request.partition.row_range
    if keys.WhichOneof("start_key") == "start_key_open" or keys.WhichOneof("end_key") == "end_key_closed":
        raise RequestError(INVALID_ARGUMENT, "a partition has a start_key_closed and an end_key_open")
    try:
        return KeyRange(keys.start_key_closed, keys.end_key_open)
    except LayoutError as error:
        raise RequestError(INVALID_ARGUMENT, f"the partition is empty: {error}") from None


def _microseconds(request: Any, field: str) -> int:
    """Return a time of the request in µs. The wire format allows times that Python cannot represent."""
    try:
        return int(getattr(request, field).ToMicroseconds())
    except ValueError:
        raise RequestError(INVALID_ARGUMENT, f"{field} lies outside the years 1 to 9999") from None


def _start(stream: ChangeStream, request: Any, keys: KeyRange, now_us: int) -> Token:
    """Return where to start: at the tokens, at the start time, or now if neither is given."""
    if request.WhichOneof("start_from") == "continuation_tokens":
        return _resumed(stream, request, keys)
    if request.WhichOneof("start_from") == "start_time":
        return _started_at(stream, _microseconds(request, "start_time"), keys, now_us)
    return Token(stream.uid, stream.clock.watermark_us(), (Part(keys, stream.log.end),))


def _resumed(stream: ChangeStream, request: Any, keys: KeyRange) -> Token:
    given = []
    for token in request.continuation_tokens.tokens:
        row_range = token.partition.row_range
        try:
            given.append((KeyRange(row_range.start_key_closed, row_range.end_key_open), token.token))
        except LayoutError:
            raise RequestError(INVALID_ARGUMENT, "the partition of a token is empty") from None
    try:
        start = tokens.opened_with(keys, stream.uid, given)
    except TokenError as error:
        raise RequestError(INVALID_ARGUMENT, str(error)) from None
    # Either the token or a record of it has expired.
    if start.as_of_us < stream.horizon_us() or min(p.sequence for p in start.parts) < stream.log.first:
        raise RequestError(OUT_OF_RANGE, _EXPIRED)
    return start


def _started_at(stream: ChangeStream, start_us: int, keys: KeyRange, now_us: int) -> Token:
    if start_us > now_us:
        raise RequestError(INVALID_ARGUMENT, "start_time lies in the future; pass now or earlier")
    if start_us < stream.horizon_us():
        raise RequestError(
            OUT_OF_RANGE,
            "start_time lies before the change stream's creation or its retention period; pass a later one",
        )
    # The first record at or after the start; older ones of the log are skipped by `since_us`.
    sequence = max(stream.log.first, stream.log.sequence_at(start_us))
    return Token(stream.uid, start_us, (Part(keys, sequence, start_us),))
