"""Messages, ends and refused requests of change streams, as the comments in the API's proto files require."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

import grpc
import pytest

from penstock_emulators.bigtable import BigtableEmulator, Control, Fault
from penstock_emulators.bigtable.control import ControlError
from tests.integration.emulators.bigtable.client import (
    Change,
    Client,
    delete_row,
    events,
    now_us,
    range_of,
    replayed,
    set_cell,
)

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

WHOLE = (b"", b"")


def status(call: Callable[[], object]) -> str:
    """Return the name of the status that `call` fails with."""
    with pytest.raises(grpc.RpcError) as failed:
        call()
    return str(failed.value.code().name)


def written(client: Client, *keys: bytes) -> int:
    """Write a cell to each row; return a time before the writes."""
    start = now_us()
    for key in keys:
        client.write(key, set_cell("f", b"q", key))
    return start


def test_both_times_are_inclusive(client: Client) -> None:
    start = written(client, b"a", b"b", b"c")
    first, second, third = client.read(start_us=start).changes
    between = client.read(start_us=second.commit_us, end_us=second.commit_us).changes
    assert [change.key for change in between] == [b"b"]
    assert [c.key for c in client.read(start_us=first.commit_us, end_us=third.commit_us - 1).changes] == [
        b"a",
        b"b",
    ]


def test_the_end_time_is_answered_with_a_close_that_is_ok_and_empty(client: Client) -> None:
    close = client.read(start_us=now_us()).close
    assert close.status.code == 0
    assert not close.continuation_tokens
    assert not close.new_partitions


def test_an_end_time_in_the_future_is_waited_for(client: Client) -> None:
    start = now_us()
    call = client.open(start_us=start, end_us=start + 400_000)
    client.write(b"row", set_cell("f", b"q", b"1"))
    assert [event.key for event in events(call) if isinstance(event, Change)] == [b"row"]
    assert now_us() > start + 400_000


def test_a_stream_continues_after_the_token_of_any_record(client: Client) -> None:
    start = written(client, *(b"%d" % number for number in range(9)))
    changes = client.read(start_us=start).changes
    for place, change in enumerate(changes):
        rest = client.read(tokens=[(WHOLE, change.token)]).changes
        assert [other.key for other in rest] == [other.key for other in changes[place + 1 :]]


def test_heartbeats_arrive_at_the_requested_interval_with_a_token_and_an_advancing_watermark(
    client: Client,
) -> None:
    start = written(client, b"a")
    beats = []
    for event in events(call := client.open(start_us=start, heartbeat_s=0.1)):
        if not isinstance(event, Change):
            beats.append((time.monotonic(), event))
        if len(beats) == 4:
            break
    call.cancel()
    # 0.3 s on an idle machine. Without the interval of the request, the service's own of 5 s would be used.
    assert 0.2 < beats[-1][0] - beats[0][0] < 10
    watermarks = [beat.estimated_low_watermark.ToMicroseconds() for _, beat in beats]
    assert watermarks == sorted(set(watermarks))
    token = beats[-1][1].continuation_token
    assert range_of(token.partition) == WHOLE
    written(client, b"b")
    assert [change.key for change in client.read(tokens=[(WHOLE, token.token)]).changes] == [b"b"]


def test_no_record_is_below_a_watermark_sent_before_it(client: Client, control: Control) -> None:
    call = client.open(start_us=now_us(), heartbeat_s=0.05)
    low_us, seen = 0, 0
    for event in events(call):
        if isinstance(event, Change):
            assert event.commit_us >= low_us
            low_us, seen = event.watermark_us, seen + 1
        else:
            low_us = event.estimated_low_watermark.ToMicroseconds()
            written(client, b"a", b"b")
        if seen >= 8:
            break
    call.cancel()


def test_a_long_value_is_sent_in_chunks_between_whole_mutations(client: Client, control: Control) -> None:
    start, long = now_us(), bytes(range(256)) * 10_000
    client.write(
        b"row", set_cell("f", b"a", b"1", 0), set_cell("f", b"b", long, 0), set_cell("g", b"c", b"2", 0)
    )
    (change,) = client.read(start_us=start).changes
    assert change.messages == 3
    assert replayed([change]) == client.cells()
    control.chunk_bytes(client.table, 7)
    start = written(client, b"a longer key than seven bytes")
    (change,) = client.read(start_us=start).changes
    assert change.messages == 5
    assert change.mutations[0].set_cell.value == change.key


def test_a_record_of_thousands_of_mutations_is_one_record(client: Client) -> None:
    start = now_us()
    client.write(b"row", *(set_cell("f", b"%d" % number, b"x" * 500, 0) for number in range(5000)))
    (change,) = client.read(start_us=start).changes
    assert len(change.mutations) == 5000
    assert change.messages > 2
    assert replayed([change]) == client.cells()


def test_a_split_closes_the_stream_with_a_token_and_a_partition_for_each_part(
    client: Client, control: Control
) -> None:
    call = client.open(start_us=written(client, b"a", b"z"))
    control.split(client.table, b"m")
    *_, close = events(call)
    assert close.status.code == grpc.StatusCode.OUT_OF_RANGE.value[0]
    assert [range_of(token.partition) for token in close.continuation_tokens] == [(b"", b"m"), (b"m", b"")]
    assert [range_of(new) for new in close.new_partitions] == [(b"", b"m"), (b"m", b"")]
    written(client, b"b", b"y")
    left, right = [[(range_of(t.partition), t.token)] for t in close.continuation_tokens]
    assert [change.key for change in client.read((b"", b"m"), tokens=left).changes][-1] == b"b"
    assert [change.key for change in client.read((b"m", b""), tokens=right).changes][-1] == b"y"


def test_merged_partitions_continue_from_unequal_positions(client: Client, control: Control) -> None:
    control.set_layout(client.table, [b"m"])
    start = written(client, b"a", b"z", b"b", b"y")
    (left, _) = client.read((b"", b"m"), start_us=start).changes
    (_, right) = client.read((b"m", b""), start_us=start).changes
    control.merge(client.table, b"m")
    tokens = [((b"m", b""), right.token), ((b"", b"m"), left.token)]
    written(client, b"c", b"x")
    answer = client.read(tokens=tokens)
    assert [change.key for change in answer.changes] == [b"b", b"c", b"x"]
    between = [client.read(tokens=[(WHOLE, change.token)]).changes for change in answer.changes]
    assert [[change.key for change in rest] for rest in between] == [[b"c", b"x"], [b"x"], []]


def test_a_read_of_a_replaced_partition_returns_the_current_partitions(
    client: Client, control: Control
) -> None:
    start = written(client, b"a")
    control.set_layout(client.table, [b"g", b"p"])
    control.cross(client.table, b"p", b"m")
    close = client.read((b"g", b"p"), start_us=start, end_us=now_us() + 10**9).close
    assert [range_of(token.partition) for token in close.continuation_tokens] == [(b"g", b"m"), (b"m", b"p")]
    assert [range_of(new) for new in close.new_partitions] == [(b"g", b"m"), (b"m", b"")]


def test_a_split_that_is_merged_back_and_a_move_close_streams_too(client: Client, control: Control) -> None:
    for change in (
        lambda: (control.split(client.table, b"m"), control.merge(client.table, b"m")),
        lambda: control.move(client.table, b"m"),
    ):
        call = client.open(start_us=now_us())
        while not control.streams(client.table):
            time.sleep(0.01)
        change()
        *_, close = events(call)
        assert {range_of(new) for new in close.new_partitions} <= {WHOLE, (b"", b"m"), (b"m", b"")}
        assert close.continuation_tokens


def test_partitions_tile_the_key_space_after_the_first_splits(new_client: Callable[[], Client]) -> None:
    client = new_client()
    client.create(splits=[b"d", b"m\x00"])
    assert client.partitions() == [(b"", b"d"), (b"d", b"m\x00"), (b"m\x00", b"")]


def test_tokens_that_do_not_make_up_the_partition_are_refused(client: Client, control: Control) -> None:
    control.set_layout(client.table, [b"g", b"p"])
    start = written(client, b"a", b"h", b"z")
    parts = {}
    for keys in client.partitions():
        parts[keys] = client.read(keys, start_us=start).changes[-1].token
    (low, middle, high) = parts.items()
    for keys, tokens in [
        (WHOLE, [low, middle]),
        (WHOLE, [low, high]),
        (WHOLE, [low, middle, middle, high]),
        ((b"", b"g"), [middle]),
        ((b"", b"g"), [((b"", b"g"), middle[1])]),
        ((b"", b"a"), [((b"", b"a"), low[1])]),
        ((b"", b"g"), [((b"", b"g"), "nonsense")]),
    ]:
        assert status(lambda k=keys, t=tokens: client.read(k, tokens=t)) == "INVALID_ARGUMENT"
    assert len(client.read(tokens=[low, middle, high]).close.new_partitions) == 3


def test_start_times_outside_the_readable_range_are_refused(client: Client, control: Control) -> None:
    assert status(lambda: client.read(start_us=now_us() - 60_000_000)) == "OUT_OF_RANGE"
    assert status(lambda: client.read(start_us=now_us() + 60_000_000)) == "INVALID_ARGUMENT"


def test_expired_records_and_tokens_are_out_of_range(client: Client, control: Control) -> None:
    start = written(client, b"a", b"b")
    token = client.read(start_us=start).changes[0].token
    assert control.expire(client.table) == 2
    assert status(lambda: client.read(tokens=[(WHOLE, token)])) == "OUT_OF_RANGE"
    assert status(lambda: client.read(start_us=start)) == "OUT_OF_RANGE"
    assert client.read(start_us=now_us()).changes == []


def test_a_disabled_stream_cannot_be_read_and_is_empty_when_enabled_again(client: Client) -> None:
    start = written(client, b"a")
    token = client.read(start_us=start).changes[0].token
    call = client.open(start_us=start, heartbeat_s=60)
    next(call)
    client.configure(days=0)
    assert status(lambda: list(call)) == "FAILED_PRECONDITION"
    assert status(lambda: client.read(start_us=start)) == "FAILED_PRECONDITION"
    assert status(client.partitions) == "FAILED_PRECONDITION"
    written(client, b"unseen")
    client.configure(days=7)
    assert status(lambda: client.read(tokens=[(WHOLE, token)])) == "INVALID_ARGUMENT"
    start = written(client, b"b")
    assert [change.key for change in client.read(start_us=start).changes] == [b"b"]


def test_a_recreated_table_does_not_know_its_old_tokens(client: Client) -> None:
    start = written(client, b"a")
    token = client.read(start_us=start).changes[0].token
    call = client.open(start_us=start, heartbeat_s=60)
    next(call)
    client.delete()
    assert status(lambda: list(call)) == "NOT_FOUND"
    assert status(lambda: client.read(start_us=start)) == "NOT_FOUND"
    client.create()
    assert status(lambda: client.read(tokens=[(WHOLE, token)])) == "INVALID_ARGUMENT"


def test_only_a_single_cluster_profile_reads_changes(client: Client) -> None:
    client.create_profile("any-cluster", None)
    assert status(lambda: client.read(start_us=now_us(), profile="any-cluster")) == "FAILED_PRECONDITION"
    assert status(lambda: client.partitions("any-cluster")) == "FAILED_PRECONDITION"
    assert status(lambda: client.partitions("no-such-profile")) == "NOT_FOUND"


def test_injected_records_have_the_cluster_time_and_tiebreaker_given(
    client: Client, control: Control
) -> None:
    start = written(client, b"a")
    (own,) = client.read(start_us=start).changes
    cell = set_cell("f", b"q", b"1", 0).SerializeToString()
    unknown = b"\xfa\x3e\x03new"
    control.inject(
        client.table, b"a", [cell, unknown], cluster="cluster-2", commit_us=own.commit_us, tiebreaker=9
    )
    control.inject(client.table, b"b", [cell], commit_us=own.commit_us - 1, apply=True)
    same, late = client.read(start_us=start, end_us=now_us()).changes[1:]
    assert (same.cluster, same.commit_us, same.tiebreaker) == ("cluster-2", own.commit_us, 9)
    assert same.mutations[1].SerializeToString() == unknown
    assert late.commit_us < own.commit_us
    assert b"b" in client.cells()


def test_watermarks_lag_and_freeze_as_asked(client: Client, control: Control) -> None:
    control.watermark_lag(client.table, 60)
    (change,) = client.read(start_us=written(client, b"a")).changes
    assert change.watermark_us == change.commit_us - 60_000_000
    control.watermark_lag(client.table, 0)
    control.freeze_watermark(client.table)
    frozen_us = now_us()
    (change,) = client.read(start_us=written(client, b"b")).changes
    assert change.watermark_us <= frozen_us
    control.freeze_watermark(client.table, False)
    (change,) = client.read(start_us=written(client, b"c")).changes
    assert change.watermark_us == change.commit_us


def test_each_fault_that_ends_a_stream_occurs_once(client: Client, control: Control) -> None:
    start = written(client, b"a", b"b", b"c")
    for fault in (Fault.UNAVAILABLE, Fault.ABORTED, Fault.INTERNAL):
        control.fault(client.table, fault)
        assert status(lambda: client.read(start_us=start)) == fault.value
    control.fault(client.table, Fault.END_WITHOUT_CLOSE, after_records=3)
    answer = client.read(start_us=start, end_us=now_us() + 10**9)
    assert (len(answer.changes), answer.close) == (3, None)
    for fault, code in ((Fault.CLOSE_INTERNAL, 13), (Fault.CLOSE_WITHOUT_TOKENS, 11)):
        control.fault(client.table, fault)
        close = client.read(start_us=start).close
        assert (close.status.code, len(close.continuation_tokens)) == (code, 0)
    assert control.statistics(client.table)["faults_pending"] == 0
    assert len(client.read(start_us=start).changes) == 3


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault.damages_record])
def test_damaged_records_break_the_documented_rules(client: Client, control: Control, fault: Fault) -> None:
    control.chunk_bytes(client.table, 10)
    start = written(client, b"row")
    client.write(b"chunked", set_cell("f", b"q", b"0123456789" * 3))
    control.fault(client.table, fault)
    with pytest.raises((AssertionError, grpc.RpcError)) as failed:
        client.read(start_us=start)
    # The damage, not only the broken connection behind it, is what a careful client sees first.
    assert failed.type is AssertionError or fault is Fault.HALF_RECORD
    assert len(client.read(start_us=start).changes) == 2, "damaged once"


def test_wide_close_tokens_name_the_new_partition_and_are_valid_for_every_part(
    client: Client, control: Control
) -> None:
    control.set_layout(client.table, [b"m"])
    control.wide_tokens(client.table)
    start = written(client, b"a", b"z")
    control.merge(client.table, b"m")
    close = client.read((b"", b"m"), start_us=start, end_us=now_us() + 10**9).close
    (token,) = close.continuation_tokens
    assert range_of(token.partition) == range_of(close.new_partitions[0]) == WHOLE
    assert len(client.read(tokens=[(WHOLE, token.token)]).changes) == 2
    own = [((b"", b"m"), token.token)]
    close = client.read((b"", b"m"), tokens=own, end_us=now_us() + 10**9).close
    assert range_of(close.new_partitions[0]) == WHOLE


def test_open_streams_end_without_a_close_when_requested(client: Client, control: Control) -> None:
    call = client.open(start_us=written(client, b"a"), heartbeat_s=60)
    next(call)
    assert control.end_streams_without_close(client.table) == 1
    assert list(call) == []


def test_clients_reconnect_after_dropped_connections_and_find_all_data(
    client: Client, control: Control
) -> None:
    start = written(client, b"a")
    call = client.open(start_us=start, heartbeat_s=60)
    next(call)
    control.drop_connections()
    assert status(lambda: list(call)) in ("UNAVAILABLE", "CANCELLED")
    assert [change.key for change in client.read(start_us=start, timeout=20).changes] == [b"a"]


def test_a_cancelled_idle_stream_ends_at_once(client: Client, control: Control) -> None:
    call = client.open(start_us=now_us(), heartbeat_s=60)
    while not control.streams(client.table):
        time.sleep(0.01)
    call.cancel()
    begun = time.monotonic()
    while control.streams(client.table):
        assert time.monotonic() < begun + 30, "the stream lives until its heartbeat"
        time.sleep(0.01)


def test_a_write_reaches_an_idle_stream_at_once(client: Client) -> None:
    call = client.open(start_us=now_us(), heartbeat_s=60)
    times = []
    for number in range(5):
        begun = time.monotonic()
        client.write(b"%d" % number, set_cell("f", b"q", b"1"), delete_row())
        next(call)
        times.append(time.monotonic() - begun)
    call.cancel()
    assert min(times) < 5, "the write waits for the next heartbeat"


def test_a_silent_stream_outlives_the_pings_of_a_connection_that_is_kept_alive(
    client: Client, emulator: BigtableEmulator
) -> None:
    options = {"grpc.keepalive_time_ms": 1000, "grpc.http2.max_pings_without_data": 0}
    with closing(Client(emulator.host, client.table.rpartition("/")[2], **options)) as pinging:
        call = pinging.open(start_us=now_us(), heartbeat_s=7, timeout=20)
        assert next(events(call)), "a heartbeat after some pings"
        call.cancel()


def test_invalid_control_calls_are_refused_with_the_reason(client: Client, control: Control) -> None:
    for call, said in (
        (lambda: control.merge(client.table, b"m"), "no two partitions meet at this key"),
        (lambda: control.split(client.table, b""), "pass a key inside a partition"),
        (lambda: control.chunk_bytes(client.table, 0), "pass 1 or more"),
        (lambda: control.layout("no-table"), "no-table"),
        (lambda: control._call("dance"), "there is no operation 'dance'"),
    ):
        with pytest.raises(ControlError, match=said):
            call()
