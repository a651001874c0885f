"""One StreamRead call: which messages of which partitions the server sends next.

    session = ReadSession(find_topic, send)
    session.receive(message_of_the_client)
    session.pump()                          # sends what credit and positions allow

Rules of a session, from ydb_topic.proto (StreamReadMessage) and `read_session_actor.ipp`:

- Without a consumer the client names the partitions, unless it supports auto-partitioning. It cannot commit.
- With a consumer a partition is read in one session at a time. A child is read when its parents are committed to
  their ends, if the session supports auto-partitioning.
- Messages are sent within the credit that ReadRequests gave. The first message is sent if any credit is left.
- Reading starts at the highest of the committed offset, `read_offset`, and the first message that is retained. So an
  offset that retention has deleted is no error: the client sees a gap.
- `partition_offsets.start` of the server's messages is the committed offset, not the first retained one.
- After the last message of an inactive partition comes EndPartitionSession, if the client supports auto-partitioning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ydb._grpc.common.protos import ydb_status_codes_pb2, ydb_topic_pb2

from penstock_emulators.ydb.faults import StatusError
from penstock_emulators.ydb.topic import Message, Partition, Topic, TopicError

_SUCCESS = ydb_status_codes_pb2.StatusIds.SUCCESS
_Read = ydb_topic_pb2.StreamReadMessage
_MAX_MESSAGES = 1000
"""In one ReadResponse."""


@dataclass(slots=True)
class _Session:
    """The session of one partition. `offset` None: the client has not answered yet."""

    number: int
    topic: Topic
    partition: Partition
    read_from: int
    offset: int | None = None
    ended: bool = False


class ReadSession:
    """The state of one call. `owners` says which call reads a partition for a consumer."""

    def __init__(
        self,
        session_id: str,
        find_topic: Callable[[str], Topic],
        send: Callable[[Any], None],
        owners: dict[tuple[str, str, int], ReadSession],
        clock: Callable[[], int],
    ) -> None:
        self._id, self._find_topic, self._send, self._owners = session_id, find_topic, send, owners
        self._clock = clock
        self._consumer = ""
        self._wanted: list[tuple[Topic, frozenset[int], int]] = []
        self._auto_partitioning = False
        self._begun = False
        self._sessions: dict[int, _Session] = {}
        self._credit = 0
        self.sent = 0
        """Messages that were sent."""

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that are read."""
        return frozenset(session.partition.number for session in self._sessions.values())

    def receive(self, message: Any) -> None:
        """Take a message of the client.

        Raises:
            StatusError: it ends the call.
        """
        kind = message.WhichOneof("client_message")
        if (kind == "init_request") is self._begun:
            raise StatusError("BAD_REQUEST", f"unexpected {kind}")
        match kind:
            case "init_request":
                self._begin(message.init_request)
            case "read_request":
                if message.read_request.bytes_size <= 0:
                    raise StatusError("BAD_REQUEST", "bytes_size must be positive")
                self._credit += message.read_request.bytes_size
            case "start_partition_session_response":
                self._started(message.start_partition_session_response)
            case "commit_offset_request":
                self._commit(message.commit_offset_request)
            case "partition_session_status_request":
                self._status(message.partition_session_status_request.partition_session_id)
            case "update_token_request":
                self._answer(update_token_response=ydb_topic_pb2.UpdateTokenResponse())
            case "stop_partition_session_response":
                self._sessions.pop(message.stop_partition_session_response.partition_session_id, None)

    def close(self) -> None:
        """Give the partitions up."""
        for place in [place for place, owner in self._owners.items() if owner is self]:
            del self._owners[place]

    def stop_partition(self, number: int, graceful: bool) -> None:
        """Take a partition away from the client, as a balancer does."""
        for session in list(self._sessions.values()):
            if session.partition.number == number:
                stop = _Read.StopPartitionSessionRequest(
                    partition_session_id=session.number, graceful=graceful, committed_offset=0
                )
                session.offset = None
                if not graceful:
                    del self._sessions[session.number]
                self._answer(stop_partition_session_request=stop)

    def pump(self, most: int | None = None) -> None:
        """Start sessions of partitions that became readable, and send messages; at most `most` of them."""
        if not self._begun:
            return
        self._start_sessions()
        for session in self._sessions.values():
            if session.offset is None or session.ended:
                continue
            while self._credit > 0 and (most is None or self.sent < most):
                if not self._send_messages(session, most):
                    break
            partition = session.partition
            if not partition.active and session.offset >= partition.end and self._auto_partitioning:
                session.ended = True
                self._answer(
                    end_partition_session=_Read.EndPartitionSession(
                        partition_session_id=session.number,
                        adjacent_partition_ids=session.topic.adjacent(partition.number),
                        child_partition_ids=partition.children,
                    )
                )

    def _begin(self, request: Any) -> None:
        self._consumer, self._auto_partitioning = request.consumer, request.auto_partitioning_support
        for settings in request.topics_read_settings:
            topic, numbers = self._find_topic(settings.path), frozenset(settings.partition_ids)
            if self._consumer and self._consumer not in topic.consumers:
                raise StatusError(
                    "BAD_REQUEST", f"no read rule provided for consumer '{self._consumer}' in topic"
                )
            if not self._consumer and not numbers and not self._auto_partitioning:
                raise StatusError(
                    "BAD_REQUEST",
                    "explicitly specify the partitions: non-autoscale aware client without consumer",
                )
            missing = sorted(numbers - topic.partitions.keys())
            if missing:
                raise StatusError("BAD_REQUEST", f"no partition {missing[0]} in topic {topic.path}")
            read_from = settings.read_from.ToNanoseconds()
            if settings.HasField("max_lag") and settings.max_lag.ToNanoseconds():
                read_from = max(read_from, self._clock() - settings.max_lag.ToNanoseconds())
            self._wanted.append((topic, numbers, read_from))
        self._begun = True
        self._answer(init_response=_Read.InitResponse(session_id=self._id))

    def _start_sessions(self) -> None:
        read = {(session.topic.path, session.partition.number) for session in self._sessions.values()}
        for topic, numbers, read_from in self._wanted:
            for partition in list(topic.partitions.values()):
                if (numbers and partition.number not in numbers) or (topic.path, partition.number) in read:
                    continue
                if self._consumer and not self._may_own(topic, partition):
                    continue
                self._start(topic, partition, read_from)

    def _may_own(self, topic: Topic, partition: Partition) -> bool:
        """Whether this session may read a partition for its consumer."""
        place = self._consumer, topic.path, partition.number
        if self._owners.setdefault(place, self) is not self:
            return False
        ended = (topic.partitions[parent] for parent in partition.parents)
        return all(topic.committed(self._consumer, parent.number) >= parent.end for parent in ended)

    def _start(self, topic: Topic, partition: Partition, read_from: int) -> None:
        number = max(self._sessions, default=0) + 1
        self._sessions[number] = _Session(number, topic, partition, read_from)
        committed = topic.committed(self._consumer, partition.number)
        start = _Read.StartPartitionSessionRequest(committed_offset=committed)
        start.partition_session.partition_session_id = number
        start.partition_session.path = topic.path
        start.partition_session.partition_id = partition.number
        start.partition_offsets.start, start.partition_offsets.end = committed, partition.end
        self._answer(start_partition_session_request=start)

    def _started(self, response: Any) -> None:
        session = self._session(response.partition_session_id)
        committed = session.topic.committed(self._consumer, session.partition.number)
        if response.HasField("read_offset") and response.read_offset < committed:
            raise StatusError("BAD_REQUEST", "read_offset is lower than the committed offset")
        if response.HasField("commit_offset") and self._consumer:
            session.topic.commit(self._consumer, session.partition.number, response.commit_offset)
        if response.HasField("read_offset") and response.read_offset > session.partition.end:
            raise StatusError("BAD_REQUEST", "read_offset is after the end of the partition")
        session.offset = max(committed, response.read_offset)

    def _session(self, number: int) -> _Session:
        if number not in self._sessions:
            raise StatusError("BAD_REQUEST", f"unknown partition_session_id {number}")
        return self._sessions[number]

    def _send_messages(self, session: _Session, most: int | None) -> bool:
        """Send one response of a partition; False: there is nothing to send."""
        partition = session.partition
        offset = max(session.offset or 0, partition.first)
        chosen: list[tuple[int, Message]] = []
        size, allowed = 0, _MAX_MESSAGES if most is None else min(_MAX_MESSAGES, most - self.sent)
        while offset < partition.end and len(chosen) < allowed:
            message = partition.message(offset)
            if message.written_at >= session.read_from:
                needed = len(message.data) + 40
                if chosen and size + needed > self._credit:
                    break
                size += needed
                chosen.append((offset, message))
            offset += 1
        session.offset = offset
        if not chosen:
            return False
        self._credit -= size
        self.sent += len(chosen)
        data = _Read.ReadResponse.PartitionData(partition_session_id=session.number)
        for place, message in chosen:
            self._add(data, place, message)
        self._answer(read_response=_Read.ReadResponse(partition_data=[data], bytes_size=size))
        return True

    def _add(self, data: Any, offset: int, message: Message) -> None:
        last = data.batches[-1] if data.batches else None
        if (
            last is None
            or last.producer_id != message.producer
            or last.written_at.ToNanoseconds() != message.written_at
        ):
            last = data.batches.add(producer_id=message.producer, codec=ydb_topic_pb2.CODEC_RAW)
            last.written_at.FromNanoseconds(message.written_at)
        added = last.message_data.add(
            offset=offset,
            seq_no=message.seq_no,
            data=message.data,
            uncompressed_size=len(message.data),
        )
        added.created_at.FromNanoseconds(message.created_at)
        for key, value in message.metadata:
            added.metadata_items.add(key=key, value=value)

    def _commit(self, request: Any) -> None:
        if not self._consumer:
            raise StatusError("BAD_REQUEST", "can't commit when reading without a consumer")
        response = _Read.CommitOffsetResponse()
        for each in request.commit_offsets:
            session = self._session(each.partition_session_id)
            offset = max(offsets.end for offsets in each.offsets)
            try:
                session.topic.commit(self._consumer, session.partition.number, offset)
            except TopicError as error:
                raise StatusError("BAD_REQUEST", str(error)) from None
            response.partitions_committed_offsets.add(
                partition_session_id=session.number, committed_offset=offset
            )
        self._answer(commit_offset_response=response)

    def _status(self, number: int) -> None:
        # Messages before this answer in the stream: a client that has all messages before the end of the partition
        # knows that later ones have at least this write time.
        session = self._session(number)
        committed = session.topic.committed(self._consumer, session.partition.number)
        status = _Read.PartitionSessionStatusResponse(
            partition_session_id=number, committed_offset=committed, read_offset=session.offset or 0
        )
        status.partition_offsets.start, status.partition_offsets.end = committed, session.partition.end
        status.write_time_high_watermark.FromMilliseconds(self._clock() // 1_000_000)
        self._answer(partition_session_status_response=status)

    def _answer(self, **message: Any) -> None:
        self._send(_Read.FromServer(status=_SUCCESS, **message))
