"""Reading while partitions change, with a client that follows only the documentation."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from penstock_emulators.bigtable import BigtableEmulator, Control
from penstock_emulators.bigtable.layout import KeyRange, Layout, random_change
from tests.integration.emulators.bigtable.client import (
    Client,
    FollowingReader,
    delete_column,
    delete_family,
    delete_row,
    now_us,
    replayed,
    set_cell,
)
from tests.support.waiting import join, wait_until

pytestmark = [pytest.mark.emulator, pytest.mark.slow]


def write_randomly(client: Client, writes: int, seed: int, done: threading.Event) -> None:
    rng = random.Random(seed)
    for _ in range(writes // 10):
        entries = []
        for _ in range(10):
            key, qualifier = b"%03d" % rng.randrange(200), b"%d" % rng.randrange(3)
            mutation = set_cell(rng.choice("fg"), qualifier, b"%d" % rng.randrange(999), 0)
            deletes = [delete_family("f"), delete_column("g", qualifier), delete_row()]
            entries.append((key, [mutation if rng.random() < 0.9 else rng.choice(deletes)]))
        client.write_many(entries)
        time.sleep(0.004)
    done.set()


def change_layout_slowly(client: Client, control: Control, changes: int, seed: int) -> None:
    """Change the layout, and wait until each current partition is being read before the next change."""
    rng = random.Random(seed)
    for _ in range(changes):
        layout = Layout.whole().with_boundaries(start for start, _ in control.layout(client.table) if start)
        keys = [b"%03d" % rng.randrange(1, 200) for _ in range(5)]
        control.set_layout(client.table, random_change(layout, rng, keys, most=6).boundaries)
        settled(client, control)


def settled(client: Client, control: Control) -> None:
    def read() -> list[Any]:
        return sorted((stream["start"], stream["end"]) for stream in control.streams(client.table))

    wait_until(lambda: read() == control.layout(client.table), "some partition is not being read")


@pytest.mark.long(seconds=5)
def test_five_thousand_writes_over_twenty_layout_changes_read_equal_to_the_table(
    client: Client, control: Control
) -> None:
    reader = FollowingReader(client, start_us=now_us())
    done = threading.Event()
    writer = threading.Thread(target=write_randomly, args=(client, 5000, 5, done), daemon=True)
    writer.start()
    change_layout_slowly(client, control, 20, seed=3)
    join(writer)
    records = control.statistics(client.table)["records"]
    wait_until(lambda: len(reader.changes) >= records, lambda: f"{len(reader.changes)} of {records} came")
    reader.stop()
    assert control.statistics(client.table)["layout_changes"] == 20
    assert len(reader.changes) == records > 4000
    assert len({(change.key, change.commit_us) for change in reader.changes}) == records
    last: dict[bytes, int] = {}
    for change in reader.changes:
        assert change.commit_us > last.get(change.key, 0), "order per row"
        last[change.key] = change.commit_us
    assert replayed(reader.changes) == client.cells()


@pytest.mark.long(seconds=5)
def test_sixteen_changes_a_second_stall_a_client_that_only_follows_the_documentation(
    client: Client, control: Control
) -> None:
    reader = FollowingReader(client, start_us=now_us(), pause_s=0.1)
    written, changes, seconds, stalled = 0, 0, 0.0, False
    while not stalled and changes < 400:
        begun, before = time.monotonic(), control.statistics(client.table)["layout_changes"]
        control.churn(1 / 16, seed=written, table=client.table)
        for _ in range(500):
            client.write(b"%03d" % (written * 37 % 200), set_cell("f", b"q", b"1"))
            written += 1
            time.sleep(0.003)
        changes += control.statistics(client.table)["layout_changes"] - before
        seconds += time.monotonic() - begun
        control.churn(0)
        stalled = has_stalled(reader)
    reader.stop()
    assert changes / seconds < 20
    assert stalled, "some partition waits for tokens that will never be sent"
    assert len(reader.changes) < written


def has_stalled(reader: FollowingReader) -> bool:
    """Return whether partitions wait for tokens and still wait when the layout no longer changes."""
    time.sleep(0.5)
    waiting = reader.waiting
    time.sleep(0.5)
    return bool(waiting) and reader.waiting == waiting


def test_reopening_waiting_parts_as_separate_partitions_always_succeeds(
    client: Client, control: Control
) -> None:
    control.set_layout(client.table, [b"g", b"p"])
    start = now_us()
    for key in (b"a", b"h", b"z"):
        client.write(key, set_cell("f", b"q", key))
    part = (b"g", b"p")
    control.merge(client.table, b"p")
    close = client.read(part, start_us=start, end_us=now_us() + 10**9).close
    (token,) = close.continuation_tokens
    control.set_layout(client.table, [b"b", b"k"])  # (g, "") never opens
    close = client.read(part, tokens=[(part, token.token)], end_us=now_us() + 10**9).close
    ranges = [KeyRange(*part).overlap(KeyRange(*keys)) for keys in control.layout(client.table)]
    parts = [(keys.start, keys.end) for keys in ranges if keys is not None]
    assert [
        (part.partition.row_range.start_key_closed, part.partition.row_range.end_key_open)
        for part in close.continuation_tokens
    ] == parts


def test_churn_from_the_command_line_changes_every_table_with_a_stream() -> None:
    with BigtableEmulator.start(churn_seconds=0.02, seed=4) as emulator:
        clients = [Client(emulator.host, name) for name in ("one", "two")]
        for client in clients:
            client.create()
            client.write(b"a", set_cell("f", b"q", b"1"))
        statistics = emulator.control.statistics
        wait_until(lambda: all(statistics(client.table)["layout_changes"] for client in clients))
        for client in clients:
            client.close()
