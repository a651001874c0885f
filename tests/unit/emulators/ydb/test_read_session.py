"""One StreamRead call without gRPC: sessions, credit, consumers and the end of partitions."""

from __future__ import annotations

from typing import Any

import pytest
from ydb._grpc.common.protos import ydb_topic_pb2

from penstock_emulators.ydb.faults import StatusError
from penstock_emulators.ydb.read_session import ReadSession
from penstock_emulators.ydb.topic import Message, Topic

Read = ydb_topic_pb2.StreamReadMessage


class Client:
    """Talks to a session; `received` has the server's messages."""

    owners: dict[Any, Any]

    def __init__(self, topic: Topic, owners: dict[Any, Any] | None = None) -> None:
        self.topic, self.received = topic, []  # type: ignore[var-annotated]
        owners = {} if owners is None else owners
        self.session = ReadSession("s", lambda path: topic, self.received.append, owners, lambda: 7 * 10**9)

    def send(self, **message: Any) -> None:
        self.session.receive(Read.FromClient(**message))
        self.session.pump()

    def init(self, *partitions: int, consumer: str = "", auto: bool = True, read_from: int = 0) -> None:
        settings = Read.InitRequest.TopicReadSettings(path="t", partition_ids=partitions)
        if read_from:
            settings.read_from.FromNanoseconds(read_from)
        self.send(
            init_request=Read.InitRequest(
                topics_read_settings=[settings], consumer=consumer, auto_partitioning_support=auto
            )
        )

    def start(self, session: int = 1, **offsets: int) -> None:
        response = Read.StartPartitionSessionResponse(partition_session_id=session, **offsets)
        self.send(start_partition_session_response=response)

    def grant(self, size: int) -> None:
        self.send(read_request=Read.ReadRequest(bytes_size=size))

    def commit(self, end: int, session: int = 1) -> None:
        request = Read.CommitOffsetRequest()
        request.commit_offsets.add(partition_session_id=session).offsets.add(start=0, end=end)
        self.send(commit_offset_request=request)

    def kinds(self) -> list[str]:
        return [message.WhichOneof("server_message") for message in self.received]

    def offsets(self) -> list[int]:
        return [
            each.offset
            for message in self.received
            for data in message.read_response.partition_data
            for batch in data.batches
            for each in batch.message_data
        ]


@pytest.fixture
def topic() -> Topic:
    made = Topic("/local/t")
    for number in range(6):
        made.append(0, Message(b"x" * 60, number, number * 10**9))
    made.consumers["c"] = {}
    return made


def test_messages_are_sent_within_the_credit_and_from_the_offset_that_was_asked_for(topic: Topic) -> None:
    client = Client(topic)
    client.init(0)
    client.start(read_offset=2)
    client.grant(150)
    assert client.offsets() == [2, 3]
    client.grant(1000)
    assert client.offsets() == [2, 3, 4, 5]
    sizes = sum(message.read_response.bytes_size for message in client.received)
    assert sizes == 4 * 100


def test_deleted_offsets_are_skipped_without_an_error_and_start_of_the_session_is_the_committed_offset(
    topic: Topic,
) -> None:
    topic.trim(0, 4)
    client = Client(topic)
    client.init(0)
    start = client.received[1].start_partition_session_request
    assert (start.partition_offsets.start, start.partition_offsets.end) == (0, 6)
    client.start(read_offset=1)
    client.grant(1000)
    assert client.offsets() == [4, 5]


def test_messages_before_read_from_are_skipped(topic: Topic) -> None:
    client = Client(topic)
    client.init(0, read_from=4 * 10**9)
    client.start()
    client.grant(1000)
    assert client.offsets() == [4, 5]


def test_a_partition_ends_after_its_last_message_and_names_children_and_neighbours(topic: Topic) -> None:
    two = Topic("/local/t", partitions=2)
    two.append(0, Message(b"x", 1, 1))
    child = two.merge(0, 1)
    client = Client(two)
    client.init(0)
    client.start()
    assert "end_partition_session" not in client.kinds()
    client.grant(1000)
    end = client.received[-1].end_partition_session
    assert (list(end.child_partition_ids), list(end.adjacent_partition_ids)) == ([child], [1])
    without = Client(two)
    without.init(0, auto=False)
    without.start()
    without.grant(1000)
    assert "end_partition_session" not in without.kinds()


def test_status_has_the_end_and_the_earliest_time_of_the_next_message(topic: Topic) -> None:
    client = Client(topic)
    client.init(0)
    client.start(read_offset=6)
    client.send(partition_session_status_request=Read.PartitionSessionStatusRequest(partition_session_id=1))
    status = client.received[-1].partition_session_status_response
    assert status.partition_offsets.end == 6
    assert status.write_time_high_watermark.ToNanoseconds() == 7 * 10**9


def test_a_consumer_continues_at_its_commit_and_reads_a_partition_in_one_session_at_a_time(
    topic: Topic,
) -> None:
    owners: dict[Any, Any] = {}
    first, second = Client(topic, owners), Client(topic, owners)
    first.init(consumer="c")
    first.start()
    first.grant(1000)
    first.commit(4)
    second.init(consumer="c")
    assert second.kinds() == ["init_response"]
    first.session.close()
    second.session.pump()
    second.start()
    second.grant(1000)
    assert second.offsets() == [4, 5]


def test_children_are_given_to_a_consumer_when_their_parents_are_committed(topic: Topic) -> None:
    topic.split(0)
    client = Client(topic)
    client.init(consumer="c")
    client.start()
    client.grant(1000)
    assert client.kinds().count("start_partition_session_request") == 1
    client.commit(6)
    assert client.kinds().count("start_partition_session_request") == 3


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda c: c.grant(1), "unexpected"),
        (lambda c: c.init(auto=False), "explicitly specify"),
        (lambda c: c.init(9), "no partition 9"),
        (lambda c: c.init(0, consumer="nobody"), "no read rule"),
        (lambda c: (c.init(0), c.grant(0)), "must be positive"),
        (lambda c: (c.init(0), c.start(5)), "unknown partition_session_id"),
        (lambda c: (c.init(0), c.start(), c.commit(1)), "without a consumer"),
        (lambda c: (c.init(0), c.start(read_offset=99)), "after the end"),
    ],
)
def test_a_request_outside_the_protocol_is_refused(topic: Topic, act: Any, said: str) -> None:
    with pytest.raises(StatusError, match=said):
        act(Client(topic))
