"""What every source promises, checked over each source with a service in memory; see `adapters`."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import registry
from apache_beam.utils.timestamp import MAX_TIMESTAMP

from penstock.errors import (
    ChangeStreamError,
    DecodeError,
    PositionLostError,
    SetupError,
    UnavailableError,
    UsageError,
)
from penstock.io.change_streams.frontier import Partitioned
from penstock.io.change_streams.metrics import (
    CHANGES,
    LAG_MS,
    NAMESPACE_PREFIX,
    OPEN_PARTITIONS,
    RECEIVED_BYTES,
    RECORDS,
    REQUESTS,
    RETRIES,
    WAITING_PARTITIONS,
)
from penstock.io.change_streams.undecodable import UndecodableRecord
from penstock.io.change_streams.watermark import beam_watermark
from penstock.table_times import NAMESPACE_PREFIX as TABLES_PREFIX
from tests.conformance.adapters import SECOND, Adapter, adapters
from tests.support.epochs import Epochs
from tests.support.waiting import wait_until


@pytest.fixture(params=adapters(), ids=lambda make: make.name)
def source(request: pytest.FixtureRequest) -> Iterator[Adapter]:
    yield request.param()
    wait_until(lambda: not reader_threads(), "threads of a parked stream do not end")


def reader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-")]


def read(source: Adapter, transform: Any, parts: int = 1) -> Counter[tuple[int, str]]:
    """Read a bounded stream to its end, in epochs; return how often each change came."""
    return Counter(map(source.identity, Epochs(transform, parts).run_to_the_end(0.05)))


# Which part of the stream is read.


def test_start_and_end_are_inclusive(source: Adapter) -> None:
    source.fill()
    (first, _), (last, _) = source.committed[10], source.committed[30]
    assert read(source, source.transform(start=first, end=last)) == Counter(source.committed[10:31])


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_every_change_comes_exactly_once_whatever_the_number_of_slots(source: Adapter, parts: int) -> None:
    end = source.fill()
    assert read(source, source.transform(end=end), parts) == Counter(source.committed)


def test_changes_of_one_partition_come_in_commit_order(source: Adapter) -> None:
    end = source.fill()
    read_once = Epochs(source.transform(end=end)).run_to_the_end(0.05)
    for low in (True, False):
        times = [t for t, key in map(source.identity, read_once) if (key < "n") is low]
        assert times == sorted(times)


def test_a_start_after_the_end_and_a_start_in_the_future_are_refused(source: Adapter) -> None:
    with pytest.raises(UsageError, match="end .* before"):
        source.transform(end=source.start - 1)
    with pytest.raises(UsageError, match="in the future"):
        source.transform(start=time.time_ns() + 3600 * SECOND)


# The output as Beam sees it.


def test_the_output_is_bounded_only_with_an_end_and_has_a_deterministic_coder(source: Adapter) -> None:
    pipeline = beam.Pipeline()
    unbounded = pipeline | "unbounded" >> source.transform()
    bounded = pipeline | "bounded" >> source.transform(end=source.start + 1)
    assert (unbounded.is_bounded, bounded.is_bounded) == (False, True)
    for typed in (unbounded.element_type, type(source.transform().stream)):
        assert registry.get_coder(typed).is_deterministic()


def test_records_survive_their_coder(source: Adapter) -> None:
    end = source.fill(5)
    coder = registry.get_coder(source.transform().record_type)
    for record in Epochs(source.transform(end=end)).run_to_the_end(0.05):
        assert source.identity(coder.decode(coder.encode(record))) == source.identity(record)


def test_display_data_names_the_stream_and_the_limits(source: Adapter) -> None:
    shown = {
        name: item.value for name, item in source.transform(unavailable_seconds=7).display_data().items()
    }
    assert shown["unavailable_seconds"] == 7
    assert shown["identity"] == source.transform().stream.identity
    assert shown.keys() >= {"max_concurrent_partitions", "buffer_bytes", "idle_stream_seconds"}


@pytest.mark.parametrize("parts", [1, 3])
def test_batches_have_the_records_that_come_one_by_one(source: Adapter, parts: int) -> None:
    end = source.fill()
    assert read(source, source.transform(end=end).in_batches(), parts) == Counter(source.committed)


def test_a_split_in_a_batch_loses_nothing_and_emits_nothing_twice(source: Adapter) -> None:
    end = source.fill()
    epochs = Epochs(source.transform(end=end).in_batches())
    while epochs.residuals:
        epochs.run(0.05, steps=7)
    assert Counter(map(source.identity, epochs.committed)) == Counter(source.committed)


# Splits, rebalance and drain.


def test_a_split_leaves_the_rest_to_the_residual_and_emits_nothing_twice(source: Adapter) -> None:
    end = source.fill()
    epochs = Epochs(source.transform(end=end))
    for _ in range(5):
        epochs.run(0.0)  # a split as soon as the reader allows one
    assert Counter(map(source.identity, epochs.run_to_the_end(0.05))) == Counter(source.committed)


def test_a_lost_bundle_is_repeated_from_the_checkpoint(source: Adapter) -> None:
    end = source.fill()
    epochs = Epochs(source.transform(end=end), 2)
    epochs.run(0.01)
    before = len(epochs.committed)
    epochs.run(0.05, crash=True)
    assert len(epochs.committed) == before
    assert Counter(map(source.identity, epochs.run_to_the_end(0.05))) == Counter(source.committed)


def test_rebalance_keeps_the_watermark_and_loses_no_work(source: Adapter) -> None:
    source.fill()
    epochs = Epochs(source.transform())
    epochs.run_until(source.start, 0.05)  # the partitions are known now
    dealt = epochs.fn.rebalance(epochs.stream, epochs.residuals, 2)
    assert len(dealt) == source.partitions
    assert min(state for _, state in dealt) >= epochs.watermark
    (again,) = epochs.fn.rebalance(epochs.stream, dealt, 1)
    assert again[0] == epochs.fn.frontier_type.join([frontier for frontier, _ in epochs.residuals])
    assert epochs.fn.rebalance(epochs.stream, [], 2) == []


def test_drain_lets_a_bounded_read_finish_and_ends_an_unbounded_one(source: Adapter) -> None:
    fn = source.transform().bounded_fn(source.transform()._settings)
    unbounded = Epochs(source.transform()).residuals[0][0]
    bounded = Epochs(source.transform(end=time.time_ns())).residuals[0][0]
    assert fn.truncate(None, bounded) == bounded
    assert fn.truncate(None, unbounded) is None


# The checkpoint.


def test_a_checkpoint_with_a_later_end_or_without_one_is_refused_before_anything_is_read(
    source: Adapter,
) -> None:
    source.fill()
    for later in (source.start + 2 * SECOND, None):
        before = Epochs(source.transform(end=later))
        now = Epochs(source.transform(end=source.start + SECOND))
        now.stream = before.stream
        with pytest.raises(SetupError, match=r"checkpoint .*, but the program reads "):
            now.run(0.01)
        assert now.committed == []
        with pytest.raises(SetupError, match="was made for a later end"):
            now.fn.read_on(before.stream)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("epochs_before_the_kill", [0, 1, 3, 1000])
@pytest.mark.parametrize("unbounded", [False, True])
def test_a_read_with_a_later_end_or_none_continues_after_the_old_end(
    source: Adapter, unbounded: bool, epochs_before_the_kill: int, parts: int
) -> None:
    last = source.fill()
    (old_end, _) = source.committed[20]
    first = Epochs(source.transform(end=old_end), parts)
    for _ in range(epochs_before_the_kill):
        if first.residuals:
            first.run(0.0 if epochs_before_the_kill < 1000 else 0.05)
    program = source.transform(end=None if unbounded else last)
    first.fn = program.bounded_fn(program._settings)
    following = first.fn.read_on(first.stream)
    first.run_to_the_end(0.05)
    assert Counter(map(source.identity, first.committed)) == Counter(source.committed[:21])
    second = Epochs(program, parts, stream=following)
    if unbounded:
        second.run_until(last, 0.05)
    else:
        second.run_to_the_end(0.05)
    assert Counter(map(source.identity, second.committed)) == Counter(source.committed[21:])
    assert first.fn.read_on(following) is None, "the end is not moved a second time"


def test_a_program_with_the_same_end_reads_no_further(source: Adapter) -> None:
    transform = source.transform(end=source.fill())
    assert Epochs(transform).fn.read_on(transform.stream) is None


def test_equal_frontiers_have_equal_bytes_and_a_later_version_is_refused(source: Adapter) -> None:
    source.fill()
    epochs = Epochs(source.transform())
    epochs.run(0.05)
    coder = epochs.fn.restriction_coder()
    for frontier, _ in epochs.residuals:
        assert coder.encode(coder.decode(coder.encode(frontier))) == coder.encode(frontier)
    with pytest.raises(ValueError, match="format version 99"):
        coder.decode(b'{"v":99}')


# The watermark.


def test_the_watermark_of_an_idle_stream_moves(source: Adapter) -> None:
    epochs = Epochs(source.transform())
    epochs.run_until(time.time_ns(), 0.05)


def test_the_watermark_is_at_the_end_of_time_when_no_work_remains(source: Adapter) -> None:
    end = source.fill()
    epochs = Epochs(source.transform(end=end))
    epochs.run_to_the_end(0.05)
    assert epochs.watermark == beam_watermark(None) == MAX_TIMESTAMP


# Errors.


def test_check_refuses_a_stream_that_does_not_exist(source: Adapter) -> None:
    transform = source.transform()
    transform.check()
    source.fail("missing")
    with pytest.raises(SetupError):
        transform.check()


def test_check_says_that_the_service_does_not_answer_after_unavailable_seconds(source: Adapter) -> None:
    source.fail("unavailable")
    with pytest.raises(UnavailableError, match=r"unavailable_seconds"):
        source.transform(unavailable_seconds=0).check()


@pytest.mark.parametrize(
    ("kind", "error"),
    [("position lost", PositionLostError), ("damaged", DecodeError), ("unavailable", UnavailableError)],
)
def test_a_failure_during_the_read_is_raised_in_the_bundle(
    source: Adapter, kind: str, error: type[ChangeStreamError]
) -> None:
    epochs = Epochs(source.transform(end=source.fill(), unavailable_seconds=0))
    source.fail(kind)
    with pytest.raises(ChangeStreamError) as raised:
        epochs.run_to_the_end(0.05)
    assert isinstance(raised.value, error)


# Progress and metrics.


DAMAGED = [make for make in adapters() if make.commit_damaged is not Adapter.commit_damaged]


@pytest.fixture(params=DAMAGED, ids=lambda make: make.name)
def damaged(request: pytest.FixtureRequest) -> Iterator[Adapter]:
    """A source with a change that it cannot decode, between others."""
    source: Adapter = request.param()
    source.commit_damaged(source.fill(10) + 1)
    source.commit(source.start + 10 * SECOND, "a after it")
    yield source
    wait_until(lambda: not reader_threads(), "threads of a parked stream do not end")


def test_a_change_that_cannot_be_decoded_fails_a_read_without_an_error_output(damaged: Adapter) -> None:
    with pytest.raises(DecodeError, match=r"cannot be decoded: .*with_exception_handling\(\)"):
        Epochs(damaged.transform(end=damaged.start + 12 * SECOND)).run_to_the_end(0.05)


def test_with_an_error_output_a_change_that_cannot_be_decoded_comes_once_and_so_do_all_others(
    damaged: Adapter,
) -> None:
    transform = damaged.transform(end=damaged.start + 12 * SECOND).with_exception_handling()
    outputs = Epochs(transform, 2).run_to_the_end(0.05)
    (bad,) = [each for each in outputs if isinstance(each, UndecodableRecord)]
    assert bad.stream == str(transform.stream)
    assert bad.partition
    assert bad.position
    assert bad.reason
    read = Counter(damaged.identity(each) for each in outputs if each is not bad)
    assert read == Counter([*damaged.committed, (damaged.start + 10 * SECOND, "a after it")])


def test_a_frontier_reports_its_partitions_to_telemetry(source: Adapter) -> None:
    epochs = Epochs(source.transform())
    epochs.run_until(source.start, 0.05)
    for frontier, _ in epochs.residuals:
        assert isinstance(frontier, Partitioned)
        assert (len(frontier.readable), len(frontier.waiting)) == (source.partitions, 0)
        assert epochs.fn.restriction_size(None, frontier) == source.partitions


def test_counters_have_the_common_names(source: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: Counter[str] = Counter()
    gauges: set[str] = set()
    tables: dict[str, int] = {}
    tables_namespace = TABLES_PREFIX + source.namespace.removeprefix(NAMESPACE_PREFIX)

    class Metrics:
        @staticmethod
        def counter(namespace: str, name: str) -> Any:
            assert namespace == source.namespace
            return SimpleNamespace(inc=lambda count: counted.update({name: count}))

        @staticmethod
        def gauge(namespace: str, name: str) -> Any:
            if namespace == tables_namespace:
                # Several bundles: the last one may be that of a partition whose changes are older.
                return SimpleNamespace(
                    set=lambda value: tables.update({name: max(value, tables.get(name, 0))})
                )
            assert namespace == source.namespace
            return SimpleNamespace(set=lambda value: gauges.add(name))

        @staticmethod
        def distribution(namespace: str, name: str) -> Any:
            assert (namespace, name) == (source.namespace, LAG_MS)
            return SimpleNamespace(update=lambda value: counted.update({LAG_MS: value >= 0}))

    monkeypatch.setattr("penstock.io.change_streams.read_fn.Metrics", Metrics)
    # An earlier test of this process may have had refusals. They are forgotten after a time, and their end is reported.
    monkeypatch.setattr("penstock.io.change_streams.metrics._LAST_REPORT.refused", False)
    monkeypatch.setattr("penstock.io.change_streams.refusals._OF_PROCESS", set())
    end = source.fill()
    read(source, source.transform(end=end))
    assert source.namespace.startswith(NAMESPACE_PREFIX)
    assert counted[RECORDS] == counted[CHANGES] == len(source.committed)
    assert {REQUESTS, RETRIES} <= counted.keys()
    assert counted[RECEIVED_BYTES] >= len(source.committed)
    assert gauges == {OPEN_PARTITIONS, WAITING_PARTITIONS}
    # A source whose records name their table reports its newest change.
    assert set(tables.values()) <= {end // 1_000_000}
    assert bool(tables) is (source.name in ("spanner", "ydb", "postgres"))
