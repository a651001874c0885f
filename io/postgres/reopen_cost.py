"""Decides how long a bundle holds a new connection, so that bundles do not repeat more log than they read. Pure.

A bundle in another worker opens a new connection. The log that this one has received is then lost, and the server
decodes it again: a transaction from its first record, and everything from `restart_lsn` of the slot on. That position
can be far before the reader's, and it moves only every 15 seconds or when a long transaction ends. If bundles that
alternate between two workers ended soon after the first step, they would receive the same log again and again for a few
changes each, and on a busy machine the pipeline would fall behind further and further. So a bundle pays for its
connection in two ways before it may end:

- **In records**: a bundle that begins inside of a transaction claims twice as many records as were claimed before. All
  repeats together then cost half as much as reading the transaction once.
- **In time**: it reads ten times as long as its first step needed, up to two seconds and one buffer. If the first step
  needed longer than that, it reads for as long as the step needed.
"""

from __future__ import annotations

import math

MIN_CLAIMED = 50_000
"""How many records of a repeated transaction a bundle claims at least. For fewer, the server would have to decode it
several times more."""
_OPENING_SHARE = 10
_MAX_SECONDS = 2.0


class ReopenCost:
    """The cost of one reader's connections. Times are seconds of the caller's clock, sizes are bytes of steps."""

    def __init__(self, claimed_before: int, buffer_bytes: int) -> None:
        """`claimed_before`: records of the transaction at the reader's position that earlier bundles have claimed."""
        self.min_claims = max(2 * claimed_before, MIN_CLAIMED) if claimed_before else 0
        """How many more records must be claimed before the bundle may end, unless their transaction ends before."""
        self._buffer_bytes = buffer_bytes
        self._opening_since: float | None = None
        self._paid_at = 0.0
        self._claimed_bytes, self._paid_bytes = 0, 0.0

    def opening(self, now: float) -> None:
        """Record that a connection is being opened."""
        self._opening_since = now

    def answered(self, now: float) -> None:
        """Record that steps have arrived. Only the first arrival of a connection counts."""
        if self._opening_since is None:
            return
        needed = now - self._opening_since
        self._paid_at = now + max(needed, min(_OPENING_SHARE * needed, _MAX_SECONDS))
        # One buffer at most: rows of a megabyte would make the bundle hundreds of them longer. After a slow first step
        # there is no such limit, because to decode the log again costs more than a long bundle.
        self._paid_bytes = self._claimed_bytes + (math.inf if needed > _MAX_SECONDS else self._buffer_bytes)
        self._opening_since = None

    def claimed(self, records: int, size: int, *, transaction_ended: bool) -> None:
        """Count claimed steps. `transaction_ended`: one of them is between two transactions, so nothing is repeated."""
        self.min_claims = 0 if transaction_ended else max(0, self.min_claims - records)
        self._claimed_bytes += size

    def is_paying(self, now: float) -> bool:
        """Whether the bundle has read for too short a time from a new connection."""
        return now < self._paid_at and self._claimed_bytes < self._paid_bytes
