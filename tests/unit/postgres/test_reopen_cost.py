"""A bundle pays for its connection before it ends, in records and in time."""

from __future__ import annotations

from penstock.io.postgres.reopen_cost import MIN_CLAIMED, ReopenCost


def test_a_bundle_inside_a_transaction_claims_twice_what_was_claimed_before() -> None:
    cost = ReopenCost(2 * MIN_CLAIMED, buffer_bytes=100)
    assert cost.min_claims == 4 * MIN_CLAIMED
    cost.claimed(MIN_CLAIMED, 1, transaction_ended=False)
    assert cost.min_claims == 3 * MIN_CLAIMED


def test_nothing_is_owed_between_transactions() -> None:
    assert ReopenCost(0, buffer_bytes=100).min_claims == 0
    cost = ReopenCost(1, buffer_bytes=100)
    cost.claimed(1, 1, transaction_ended=True)
    assert cost.min_claims == 0


def test_a_bundle_reads_ten_times_as_long_as_its_first_step_needed_and_two_seconds_at_most() -> None:
    for needed, paid in ((0.1, 1.0), (1.0, 2.0), (5.0, 5.0)):
        cost = ReopenCost(0, buffer_bytes=100)
        cost.opening(10.0)
        cost.answered(10.0 + needed)
        assert cost.is_paying(10.0 + needed + paid - 0.01)
        assert not cost.is_paying(10.0 + needed + paid + 0.01)


def test_one_buffer_ends_the_payment_unless_the_first_step_was_slow() -> None:
    for needed, is_paying in ((1.0, False), (3.0, True)):
        cost = ReopenCost(0, buffer_bytes=100)
        cost.opening(0.0)
        cost.answered(needed)
        cost.claimed(5, 100, transaction_ended=False)
        assert cost.is_paying(needed + 0.1) is is_paying


def test_only_the_first_arrival_of_a_connection_counts() -> None:
    cost = ReopenCost(0, buffer_bytes=100)
    cost.opening(0.0)
    cost.answered(0.1)
    cost.answered(50.0)
    assert not cost.is_paying(50.0)
