"""`AssembleTransactions`: transfers between accounts in several partitions and tables."""

from __future__ import annotations

import random
from typing import Any

import apache_beam as beam
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.event import ChangeEvent, Transaction
from penstock.transforms import AssembledTransaction, AssembleTransactions
from penstock.transforms.assemble_transactions import AssembledTransactionCoder, assemble
from tests.simulation.stream import run_stream
from tests.simulation.transforms.scripts import (
    NoteFn,
    emitted,
    emitted_in_batch,
    event,
    live_cells,
    script,
    seen,
    shuffled_with_lag,
)


def transfer(number: int, at_us: int, amounts: tuple[int, ...]) -> list[ChangeEvent]:
    """Return the events of a transaction: one record for each amount, in two partitions and two tables."""
    events = []
    for n, amount in enumerate(amounts):
        base = event(n, at_us, f"transfer-{number}", n, Amount=amount)
        transaction = Transaction(f"transfer-{number}", len(amounts), 2, n >= len(amounts) - 2)
        source = msgspec.structs.replace(base.source, table="AB"[n % 2])
        events.append(msgspec.structs.replace(base, transaction=transaction, source=source))
    return events


def transfers(rng: random.Random, count: int) -> list[ChangeEvent]:
    """Return events of transfers that sum to zero; two of them may have one commit time."""
    events = []
    for number in range(count):
        amounts = [rng.randrange(-50, 50) for _ in range(rng.randrange(1, 5))]
        events += transfer(number, 1_000_000 + number // 2 * 400, (*amounts, -sum(amounts)))
    return events


def total(transaction: AssembledTransaction) -> int:
    return sum(each.after["Amount"] for each in transaction.events if each.after)


@pytest.mark.long_cases("2", "3", "4", seconds=5)
@pytest.mark.parametrize("seed", range(5))
def test_each_transfer_is_whole_once_and_in_commit_order(seed: int) -> None:
    rng = random.Random(seed)
    events = transfers(rng, 25)
    found = [each for each, _ in emitted(AssembleTransactions(), shuffled_with_lag(events, rng, lag_ms=6))]
    assert [total(each) for each in found] == [0] * 25
    assert len({each.id for each in found}) == 25
    order = [(each.timestamp, each.id) for each in found]
    assert order == sorted(order)


def test_transactions_in_a_batch_are_whole_on_beams_own_runner() -> None:
    rng = random.Random(7)
    events = transfers(rng, 20)
    rng.shuffle(events)
    found = [each for each, _ in emitted_in_batch(AssembleTransactions(), events)]
    assert [total(each) for each in found] == [0] * 20
    order = [(each.timestamp, each.id) for each in found]
    assert order == sorted(order)


def test_a_transaction_waits_for_the_watermark_behind_its_commit_time() -> None:
    first, second = transfer(1, 5_000_300, (5, -5))
    (one,) = emitted(AssembleTransactions(), [[second], 5_000, [first], 5_010])
    assert [each.version.sequence for each in one[0].events] == ["00000000", "00000001"]
    assert 5_000_300 < one[1] <= 5_002_300


def test_repeats_are_in_a_transaction_once() -> None:
    events = transfer(1, 1_000_000, (3, -3))
    (one,) = emitted(AssembleTransactions(), [events, events])
    assert len(one[0].events) == 2


def test_an_incomplete_transaction_fails_the_pipeline() -> None:
    with pytest.raises(Exception, match="1 of 2 records came"):
        emitted(AssembleTransactions(), [transfer(1, 1_000_000, (3, -3))[:1]])


def test_an_incomplete_transaction_is_emitted_with_the_reason() -> None:
    (one,) = emitted(AssembleTransactions(if_incomplete="emit"), [transfer(1, 1_000_000, (3, -3))[:1]])
    assert one[0].missing == "1 of 2 records came"


def both_outputs(transform: AssembleTransactions, steps: Any) -> tuple[list[Any], list[Any]]:
    """Return the complete and the incomplete transactions."""

    def build(pipeline: beam.Pipeline) -> None:
        complete, incomplete = pipeline | script(steps) | transform
        _ = complete | "Complete" >> beam.ParDo(NoteFn())
        _ = incomplete | "Incomplete" >> beam.ParDo(NoteFn())

    seen.clear()
    run_stream(build)
    found = [each for each, _ in seen]
    return [each for each in found if not each.missing], [each for each in found if each.missing]


def test_incomplete_transactions_go_to_the_second_output() -> None:
    steps = [transfer(1, 1_000_000, (3, -3))[:1] + transfer(2, 2_000_000, (4, -4))]
    complete, incomplete = both_outputs(AssembleTransactions(if_incomplete="output"), steps)
    assert [each.id for each in complete] == ["transfer-2"]
    assert [each.id for each in incomplete] == ["transfer-1"]


def test_a_transaction_with_too_many_events_leaves_in_parts_and_loses_none() -> None:
    steps = [transfer(1, 1_000_000, (1,) * 10), transfer(2, 1_000_000, (1, 1, -2))]
    transform = AssembleTransactions(if_incomplete="output", max_events=3)
    complete, incomplete = both_outputs(transform, steps)
    assert [each.id for each in complete] == ["transfer-2"]
    assert max(len(each.events) for each in incomplete) <= 4
    assert sum(len(each.events) for each in incomplete) == 10


def test_a_late_event_completes_its_transaction_within_the_grace_period() -> None:
    first, second = transfer(1, 1_000_000, (3, -3))
    (one,) = emitted(AssembleTransactions(grace_seconds=2), [[first], 2_000, [second], 4_000])
    assert len(one[0].events) == 2


def test_the_state_is_empty_when_the_watermark_has_passed_the_transactions() -> None:
    steps = [transfer(n, 1_000_000, (1, -1)) for n in range(5)]
    cells = live_cells(AssembleTransactions(), [*steps, 2_000, 3_000, 4_000])
    assert max(cells) > 0
    assert cells[-1] == 0


def test_an_event_without_a_transaction_is_refused() -> None:
    lonely = msgspec.structs.replace(event(1, 5), transaction=None)
    with pytest.raises(Exception, match="filter such events before"):
        emitted(AssembleTransactions(), [[lonely]])


def test_arguments_are_checked() -> None:
    with pytest.raises(UsageError, match="fail, output, emit"):
        AssembleTransactions(if_incomplete="drop")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="max_events"):
        AssembleTransactions(max_events=0)


@settings(max_examples=50, deadline=None)
@given(st.permutations(transfer(1, 9_000_000, (1, 2, 3, -6))), st.integers(0, 3))
def test_assembly_does_not_depend_on_the_order_or_on_repeats(events: list[ChangeEvent], repeats: int) -> None:
    whole = assemble([*events, *events[:repeats]])
    assert whole == assemble(sorted(events, key=lambda each: each.version))
    assert whole.missing == ""
    coder = AssembledTransactionCoder()
    assert coder.decode(coder.encode(whole)) == whole


@given(st.sets(st.integers(0, 3), max_size=3).filter(bool))
def test_a_transaction_without_some_records_is_never_complete(kept: set[int]) -> None:
    events = transfer(1, 9_000_000, (1, 2, 3, -6))
    assert assemble(events[n] for n in kept).missing
