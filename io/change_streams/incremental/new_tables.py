"""Tables that join a change stream, or leave it, for services whose stream does not tell it. Pure.

The service is asked now and then which tables there are. The answer before is in the checkpoint, as the position of a
channel, together with the request for the rows of the tables that joined: so their rows are requested once.
"""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from zlib import compress, decompress

import msgspec

from penstock.io.change_streams.frontier import TableMove, moved
from penstock.io.change_streams.incremental.channels import Polled

CHANNEL = "new_tables"
"""The name of the channel."""
LOOK_SECONDS = 60.0


class KnownTables(msgspec.Struct, frozen=True, array_like=True):
    """The tables of a database at one moment, by name.

    Args:
        watched: those whose changes the stream has.
        others: those whose changes it does not have.
        watches_all: the stream has the changes of each new table from its first row on.
        moves: tables that are read and joined or left before.
    """

    watched: frozenset[str]
    others: frozenset[str] = frozenset()
    watches_all: bool = False
    moves: tuple[TableMove, ...] = ()

    def pack(self) -> str:
        """Return a short text, for the checkpoint."""
        names = [
            sorted(self.watched),
            sorted(self.others),
            self.watches_all,
            *([self.moves] if self.moves else ()),
        ]
        return b64encode(compress(msgspec.json.encode(names))).decode("ascii")

    @classmethod
    def unpack(cls, packed: str) -> KnownTables:
        return msgspec.json.decode(decompress(b64decode(packed)), type=cls)

    def joined(self, now: KnownTables) -> list[str]:
        """Return the tables that are watched now and were not, and may have rows from before."""
        new = now.watched - self.watched
        # A table that did not exist has all of its rows in a stream of all tables. Other streams may have got it after
        # its first rows.
        return sorted(new & self.others if now.watches_all and self.watches_all else new)

    def left(self, now: KnownTables) -> list[str]:
        """Return the tables that were watched and are not any more."""
        return sorted(self.watched - now.watched)


class NewTablesChannel:
    """Requests the rows of tables that joined. Its position is the `KnownTables` of the last look, packed."""

    name = CHANNEL

    def __init__(
        self,
        ask: Callable[[], KnownTables],
        reads_table: Callable[[str], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        """`ask`: asks the service. `reads_table`: whether the pipeline reads a table. `now`: nanoseconds since 1970."""
        self._ask, self._reads_table, self._clock, self._now = ask, reads_table, clock, now
        self._next = -float("inf")

    def poll(self, position: str | None) -> Polled | None:
        """Return what joined and left since the last look; None if nothing did, or if the next look is not due."""
        if self._clock() < self._next:
            return None
        # Set before the service is asked: one that fails is asked again only when the next look is due.
        self._next = self._clock() + LOOK_SECONDS
        now = self._ask()
        if position is None:
            return Polled(self.name, (), now.pack())
        before = KnownTables.unpack(position)
        new = filter(self._reads_table, sorted(now.watched - before.watched))
        gone = filter(self._reads_table, before.left(now))
        now = msgspec.structs.replace(now, moves=moved(before.moves, new, gone, self._now()))
        if (packed := now.pack()) == position:
            return None
        joined = {name: "" for name in before.joined(now) if self._reads_table(name)}
        left = [name for name in before.left(now) if self._reads_table(name)]
        return Polled(self.name, (), packed, joined, left)

    def close(self) -> None:
        """Do nothing: the client belongs to the source."""
