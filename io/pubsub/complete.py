"""`CompleteTimes`: until when topics are complete, from the messages that say it. Needs no client and no Beam. Pure."""

from __future__ import annotations

from datetime import datetime

from penstock.io.staging.complete_marks import Mark, complete_times, decode_mark


class CompleteTimes:
    """Until when the jobs have completed their topics, from the messages of `complete_topic`.

        times = CompleteTimes()
        times.add(message.data)             # each message of a subscription to the topic, before it is acknowledged
        times.complete_until()              # {job: datetime}

    Pub/Sub may deliver messages twice and in any order. The mark with the highest record of a sink counts, so neither
    changes the result.

    A time holds for a subscription of the data that has no message left which was published before the mark (before
    its `publish_time`): it then has every change with a commit time below (not at) the time, except dead letters.
    """

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], Mark] = {}

    def add(self, data: bytes) -> None:
        """Take the data of a message.

        Raises:
            ValueError: the message is no mark.
        """
        mark = decode_mark(data)
        known = self._newest.get((mark.job, mark.sink))
        if known is None or known.record < mark.record:
            self._newest[mark.job, mark.sink] = mark

    def complete_until(self) -> dict[str, datetime]:
        """Return by job until when all its sinks that have sent a mark have completed their topics."""
        return complete_times(self._newest.values())
