"""The readers of one changefeed in one process, and their periodic work.

While there are readers, the pool asks the server about idle partitions, commits the offsets of the consumer, looks for
new columns and sends new tokens.

**Commits**: a position that a bundle begins at is in the checkpoint, so its offset may be committed. A commit never
runs ahead of the checkpoint, and is repeated after a crash. A commit that fails is tried again with the next one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from penstock.errors import PenstockError
from penstock.io.change_streams.partition_pool import PartitionPool
from penstock.io.change_streams.partition_prefetch import PartitionPrefetcher
from penstock.io.change_streams.refusals import Refusals
from penstock.io.change_streams.settings import Limits
from penstock.io.change_streams.status import UnreachableError
from penstock.io.change_streams.stream_reader import StreamReader
from penstock.io.ydb.frontier import Frontier, Position
from penstock.io.ydb.steps import Rules
from penstock.io.ydb.stream import Opener, YdbStream

_LOGGER = logging.getLogger(__name__)
_REFUSALS = Refusals("YDB")
_REFRESH_SECONDS = 60.0
"""How often the table is described again, to learn of new columns."""
_TOKEN_SECONDS = 1800.0
"""How often the token of a stream is sent again. The SDK's reader does it every hour; tokens of IAM live 12 hours."""


class CommittingOpener(Opener, Protocol):
    """YDB, as the pool uses it."""

    def commit(self, consumer: str, partition: int, offset: int) -> None:
        """Commit an offset; raises `UnreachableError` or a PenstockError."""


class StreamPool(PartitionPool):
    """The readers of one changefeed in one process.

    `check` is called once, with the frontier of the first bundle, before anything is read. `refresh` describes the
    table again.
    """

    has_work = True

    def __init__(
        self,
        opener: CommittingOpener,
        rules: Rules,
        limits: Limits,
        heartbeat_seconds: float,
        *,
        consumer: str = "",
        check: Callable[[Frontier], None] = lambda frontier: None,
        refresh: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(_REFUSALS, opener.backoff, limits)
        self._opener, self._rules, self._heartbeat_seconds = opener, rules, heartbeat_seconds
        self._consumer, self._check, self._refresh = consumer, check, refresh
        self._ask_at = 0.0
        self._refresh_at = time.monotonic() + _REFRESH_SECONDS
        self._token_at = time.monotonic() + _TOKEN_SECONDS
        self._checked = False
        self._to_commit: dict[int, int] = {}
        self._committed: dict[int, int] = {}

    def positions(self, frontier: Frontier) -> Mapping[int, Position]:
        return frontier.open

    def make_stream(self, partition: int, position: Position, share_bytes: int) -> YdbStream:
        return YdbStream(partition, position, self._rules, self._opener, share_bytes)

    @contextmanager
    def prefetching(self, frontier: Frontier) -> Iterator[PartitionPrefetcher]:
        # Once: records that are lost later show as a gap in the offsets.
        if not self._checked:
            self._check(frontier)
            self._checked = True
        with super().prefetching(frontier) as prefetcher:
            yield prefetcher

    def begin(self, positions: Mapping[int, Position]) -> None:
        if self._consumer:
            with self.ahead.lock:
                for partition, position in positions.items():
                    # `sought`: the offset is not known yet. The parents were read to their ends before this.
                    ends = [*position.parents, *([] if position.sought else [(partition, position.offset)])]
                    self._to_commit.update({n: end for n, end in ends if end > self._committed.get(n, 0)})
            # The thread of `work` sends commits, so that no bundle waits for one.
            self.wake()
        super().begin(positions)

    def work(self, now: float, readers: Sequence[StreamReader]) -> float:
        self._commit()
        streams = [reader.stream for reader in readers if isinstance(reader.stream, YdbStream)]
        if now >= self._ask_at:
            self._ask_at = now + self._heartbeat_seconds
            for stream in streams:
                stream.ask_status()
        self._describe_again(now)
        self._send_tokens(now, streams)
        # The other work is due far less often, and comes with a question about idle partitions.
        return self._ask_at

    def _commit(self) -> None:
        with self.ahead.lock:
            due, self._to_commit = self._to_commit, {}
        for partition, offset in due.items():
            try:
                self._opener.commit(self._consumer, partition, offset)
            except (PenstockError, UnreachableError) as error:
                # A failed offset commit does not fail the pipeline: a later commit includes this one.
                _LOGGER.warning("offset %d of partition %d was not committed: %s", offset, partition, error)
            else:
                self._committed[partition] = offset

    def _send_tokens(self, now: float, streams: Sequence[YdbStream]) -> None:
        if now < self._token_at:
            return
        self._token_at = now + _TOKEN_SECONDS
        try:
            for stream in streams:
                stream.refresh_token()
        except Exception as error:  # the SDK's credentials raise what their library raises
            _LOGGER.warning("no new token: %s", type(error).__name__)

    def _describe_again(self, now: float) -> None:
        if self._refresh is None or now < self._refresh_at:
            return
        self._refresh_at = now + _REFRESH_SECONDS
        try:
            self._refresh()
        except (PenstockError, UnreachableError) as error:
            _LOGGER.warning("the table was not described again: %s", error)
