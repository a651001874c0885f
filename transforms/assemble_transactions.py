"""`AssembleTransactions`: the events of one transaction as one element, in commit order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args

import apache_beam as beam
import msgspec
from apache_beam import coders
from apache_beam.coders import VarIntCoder
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import (
    BagStateSpec,
    ReadModifyWriteStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import TimestampedValue

from penstock.coders import VersionedCoder
from penstock.errors import UsageError
from penstock.event import ChangeEvent, Version
from penstock.event.coder import ChangeEventCoder, decode_event, encode_event
from penstock.transforms.element_transform import StatefulTransform
from penstock.transforms.release import ReleaseInOrderFn, release_time, require_global_window

IfIncomplete = Literal["fail", "output", "emit"]
INCOMPLETE = "incomplete"


class AssembledTransaction(msgspec.Struct, frozen=True):
    """All events of one transaction, in the order of their versions.

    `id`: the source's id of the transaction. `timestamp`: its commit time, in nanoseconds since the epoch. `missing`
    says why the transaction is not complete; it is empty for a complete one.
    """

    id: str
    timestamp: int
    events: tuple[ChangeEvent, ...]
    missing: str = ""

    @property
    def tag(self) -> str:
        """The application's name for the transaction."""
        transaction = self.events[0].transaction
        return transaction.tag if transaction else ""

    def __repr__(self) -> str:  # no events: they are someone's data
        return f"<transaction of {len(self.events)} events at {self.timestamp}>"


class AssembledTransactionCoder(VersionedCoder):
    """Beam's coder of `AssembledTransaction`: a version byte, then a msgpack array."""

    value_type = AssembledTransaction
    what = "an assembled transaction"

    def encode(self, value: AssembledTransaction) -> bytes:
        events = [encode_event(event) for event in value.events]
        return b"\x01" + msgspec.msgpack.encode((value.id, value.timestamp, events, value.missing))

    def decode(self, encoded: bytes) -> AssembledTransaction:
        self.check_version(encoded[0] if encoded else None)
        id_, timestamp, events, missing = _decode(memoryview(encoded)[1:])
        # `id_`, because `id` would hide Python's function.
        return AssembledTransaction(id_, timestamp, tuple(map(decode_event, events)), missing)


coders.registry.register_coder(AssembledTransaction, AssembledTransactionCoder)
_decode = msgspec.msgpack.Decoder(tuple[str, int, list[bytes], str]).decode


class AssembleTransactions(StatefulTransform):
    """Emits one `AssembledTransaction` for each transaction, across partitions and tables.

        transactions = events | AssembleTransactions()
        transactions, incomplete = events | AssembleTransactions(if_incomplete="output")

    - Order: the transactions of one source (system, server, database and change stream) are emitted in the order of
      (commit time, version of the first event). The events in a transaction have the order of their versions. With
      `ordered=False` the transactions have no order, and the last step is not limited to one worker per source.
    - Repeats: a bundle that runs again after a crash gives the same output. An event that comes twice is in its
      transaction once.
    - Watermark: held at the earliest transaction in the buffer. A transaction is emitted when the watermark has passed
      its commit time by `grace_seconds`. Its element's timestamp is that moment, at most 2 milliseconds later.
    - State: the events of the transactions that the watermark has not passed. They are removed when the transaction is
      emitted. A transaction with more than `max_events` events is never held as a whole: it counts as incomplete.

    The watermark says that all events of a transaction have come. The counts that the source sends (records and
    partitions, Spanner) are checked then. They do not match if an earlier step dropped events (`FilterEvents`), or if
    events are late. `if_incomplete` says what happens to such a transaction: "fail" (the default) fails the pipeline,
    "output" sends it to a second output, and "emit" emits it like the others, with `missing` set. A transaction with
    too many events becomes several elements, so it fails the pipeline or goes to the second output, also with "emit".

    Longer `grace_seconds` accept events that are late by less. They delay every transaction, because a transaction that
    waits longer than others would break the commit order.

    Raises ValueError while running for an event without a transaction, such as any event of Bigtable or a snapshot:
    filter such events before, or take the last output of `with_exception_handling`.
    """

    def __init__(
        self,
        *,
        if_incomplete: IfIncomplete = "fail",
        grace_seconds: float = 0,
        max_events: int = 1_000_000,
        ordered: bool = True,
    ) -> None:
        super().__init__()
        if if_incomplete not in get_args(IfIncomplete):
            allowed = ", ".join(get_args(IfIncomplete))
            raise UsageError(f"AssembleTransactions: if_incomplete={if_incomplete!r} is not one of {allowed}")
        if grace_seconds < 0 or max_events < 1:
            raise UsageError(
                "AssembleTransactions needs grace_seconds of at least 0 and max_events of at least 1"
            )
        self._if_incomplete = if_incomplete
        self._grace_seconds, self._max_events, self._ordered = grace_seconds, max_events, ordered

    def expand(self, pcoll: beam.PCollection[ChangeEvent]) -> Any:
        """Apply the transform to events in the global window.

        With "output" the result has a second output, and with exception handling one more.
        """
        require_global_window(self, pcoll)
        first = beam.Map(_with_transaction)
        # Only this step can reject an event, so it alone has exception handling: see `StatefulTransform`.
        keyed, failed = self._enter(pcoll, "TransactionOfEvent", first, tuple[bytes, ChangeEvent])
        assemble = _AssembleFn(self._if_incomplete, round(self._grace_seconds * 1_000_000), self._max_events)
        outputs = keyed | "AssembleFn" >> beam.ParDo(assemble).with_outputs(
            INCOMPLETE, main="transactions"
        ).with_output_types(AssembledTransaction)
        transactions = outputs["transactions"]
        if self._ordered:
            # The first step groups by transaction. The order between transactions needs a second one, by
            # source: one key and so one worker.
            pairs = transactions | "SourceOfTransaction" >> beam.Map(_with_source).with_output_types(
                tuple[bytes, AssembledTransaction]
            )
            release = ReleaseInOrderFn(AssembledTransactionCoder(), in_commit_order)
            transactions = pairs | "CommitOrderFn" >> beam.ParDo(release).with_output_types(
                AssembledTransaction
            )
        # The order of outputs is part of the contract: incomplete ones first, then dead letters.
        further = (outputs[INCOMPLETE], *failed) if self._if_incomplete == "output" else failed
        return (transactions, *further) if further else transactions

    def display_data(self) -> dict[str, Any]:
        return {
            "if_incomplete": self._if_incomplete,
            "grace_seconds": self._grace_seconds,
            "max_events": self._max_events,
            "ordered": self._ordered,
        }


def assemble(events: Iterable[ChangeEvent]) -> AssembledTransaction:
    """Return the transaction of its events, without repeats, in version order. Its counts are checked.

    Raises:
        ValueError: an event has no transaction.
    """
    by_version: dict[Version, ChangeEvent] = {}
    for event in events:
        # The first delivery stays: repeats of an event are equal, so it does not matter which one is kept.
        by_version.setdefault(event.version, event)
    ordered = tuple(by_version[version] for version in sorted(by_version))
    transaction = ordered[0].transaction
    if transaction is None:
        raise ValueError(_NO_TRANSACTION.format(ordered[0].source.system))
    return AssembledTransaction(transaction.id, ordered[0].timestamp, ordered, missing_parts(ordered))


def in_commit_order(transactions: Iterable[AssembledTransaction]) -> list[AssembledTransaction]:
    """Return the transactions of one source in the order of (commit time, version of the first event)."""
    return sorted(transactions, key=_commit_order)


def missing_parts(events: tuple[ChangeEvent, ...]) -> str:
    """Return what the events of one transaction lack by the counts that their source sends, or "".

    The events of one record have one `version.sequence`. Sources that send no counts are always complete.
    """
    # A record of Spanner may have several rows. Its count is in records, and all rows of one record share the
    # sequence.
    records = {event.version.sequence for event in events}
    last = {e.version.sequence for e in events if e.transaction and e.transaction.last_in_partition}
    transaction = events[0].transaction
    if transaction is None:
        return ""
    if transaction.records is not None and len(records) != transaction.records:
        return f"{len(records)} of {transaction.records} records came"
    if transaction.partitions is not None and len(last) != transaction.partitions:
        return f"the last records of {len(last)} of {transaction.partitions} partitions came"
    return ""


_NO_TRANSACTION = "an event of {} has no transaction: filter such events before AssembleTransactions"


def _with_transaction(event: ChangeEvent) -> tuple[bytes, ChangeEvent]:
    if event.transaction is None:
        raise ValueError(_NO_TRANSACTION.format(event.source.system))
    # The key contains the commit position, because PostgreSQL uses the numbers of its transactions again.
    return _key(event, event.version.order, event.transaction.id), event


def _with_source(transaction: AssembledTransaction) -> tuple[bytes, AssembledTransaction]:
    return _key(transaction.events[0]), transaction


def _key(event: ChangeEvent, *parts: Any) -> bytes:
    source = event.source
    return msgspec.msgpack.encode((source.system, source.server, source.database, source.stream, *parts))


def _commit_order(transaction: AssembledTransaction) -> tuple[int, Version]:
    # Not the id: PostgreSQL gives it at the start of a transaction. Its version begins with the place of the commit in
    # the log, Spanner's with the commit timestamp.
    return transaction.timestamp, transaction.events[0].version


class _AssembleFn(beam.DoFn):  # type: ignore[misc, unused-ignore]
    EVENTS = BagStateSpec("events", ChangeEventCoder())
    COUNT = ReadModifyWriteStateSpec("count", VarIntCoder())
    COMMITTED = TimerSpec("committed", TimeDomain.WATERMARK)

    def __init__(self, if_incomplete: IfIncomplete, grace_us: int, max_events: int) -> None:
        super().__init__()
        self._if_incomplete, self._grace_us, self._max_events = if_incomplete, grace_us, max_events

    def process(
        self,
        element: tuple[bytes, ChangeEvent],
        at: Any = beam.DoFn.TimestampParam,
        events: Any = beam.DoFn.StateParam(EVENTS),
        count: Any = beam.DoFn.StateParam(COUNT),
        committed: Any = beam.DoFn.TimerParam(COMMITTED),
    ) -> Iterator[Any]:
        # All events of a transaction have one commit time, so each of them sets the timer to the same time.
        # A later event of the transaction cannot move the timer forward.
        committed.set(release_time(at, self._grace_us))
        events.add(element[1])
        # The count is a separate state, because reading the bag for its length would decode all events for each
        # new one.
        known = (count.read() or 0) + 1
        count.write(known)
        # True for the first event beyond the limit, and again after each further `max_events`. The modulus of
        # the right side makes max_events=1 work, where every remainder is 0.
        if known > self._max_events and known % self._max_events == 1 % self._max_events:
            yield self._overflow(events, at)

    @on_timer(COMMITTED)
    def emit(
        self,
        fired: Any = beam.DoFn.TimestampParam,
        events: Any = beam.DoFn.StateParam(EVENTS),
        count: Any = beam.DoFn.StateParam(COUNT),
    ) -> Iterator[Any]:
        # An overflow has emptied the bag already; the count still tells that the transaction was too large.
        buffered, known = list(events.read()), count.read() or 0
        events.clear()
        count.clear()
        # The parts before this one were emitted by `_overflow`, so the last one is not complete either, however
        # few events it has.
        if known > self._max_events:
            if buffered:
                yield self._part(buffered, fired)
            return
        if buffered:
            yield self._checked(assemble(buffered), fired)

    def _overflow(self, events: Any, at: Any) -> Any:
        part = self._part(list(events.read()), at)
        events.clear()
        return part

    def _part(self, events: list[ChangeEvent], at: Any) -> Any:
        # "emit" raises too: several elements that each look like a transaction would break its atomicity.
        missing = f"it has more than {self._max_events} events (max_events)"
        part = msgspec.structs.replace(assemble(events), missing=missing)
        if self._if_incomplete != "output":
            raise _incomplete(part)
        return TaggedOutput(INCOMPLETE, TimestampedValue(part, at))

    def _checked(self, transaction: AssembledTransaction, at: Any) -> Any:
        if transaction.missing and self._if_incomplete == "fail":
            raise _incomplete(transaction)
        value = TimestampedValue(transaction, at)
        if transaction.missing and self._if_incomplete == "output":
            return TaggedOutput(INCOMPLETE, value)
        return value


def _incomplete(transaction: AssembledTransaction) -> ValueError:
    return ValueError(
        f"transaction {transaction.id} of commit time {transaction.timestamp} is not complete: "
        f'{transaction.missing}; AssembleTransactions(if_incomplete="output") sends it to a second output'
    )
