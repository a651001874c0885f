"""A valid epoch consists of one attempt of each task, for any set of lost executors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runner.protocol import BlockReceipt, EpochAbortedError, TaskResult, pin_attempts

SHAPES = st.lists(st.integers(1, 3), min_size=1, max_size=3)


@st.composite
def epochs(draw, attempts):
    """Draw an epoch as the driver sees it: each task ran up to `attempts` times, each consumer read any attempt."""
    shape = draw(SHAPES)

    def attempt(level, partition):
        return f"{level}.{partition}.{draw(st.integers(1, attempts))}"

    controls = [TaskResult(level, p, attempt(level, p)) for level, n in enumerate(shape) for p in range(n)]
    nonces = {(c.level, c.partition): c.nonce for c in controls}
    taken = [
        BlockReceipt(level, producer, attempt(level, producer), nonces[level + 1, consumer])
        for level in range(len(shape) - 1)
        for producer in range(shape[level])
        for consumer in range(shape[level + 1])
    ]
    return shape, controls, taken


@given(epochs(attempts=1), st.randoms(use_true_random=False))
def test_an_epoch_of_single_attempts_is_valid_in_any_order(epoch, random):
    shape, controls, taken = epoch
    random.shuffle(controls), random.shuffle(taken)
    assert len(pin_attempts(controls, taken, shape)) == sum(shape)


@given(epochs(attempts=2))
def test_an_epoch_is_valid_exactly_when_every_block_is_of_the_attempt_of_its_control_record(epoch):
    shape, controls, taken = epoch
    nonces = {(c.level, c.partition): c.nonce for c in controls}
    if all(t.nonce == nonces[t.level, t.partition] for t in taken):
        assert pin_attempts(controls, taken, shape) == {(c.level, c.partition): c for c in controls}
    else:
        with pytest.raises(EpochAbortedError):
            pin_attempts(controls, taken, shape)


@given(epochs(attempts=1), st.data())
def test_an_epoch_with_a_missing_block_is_never_valid(epoch, data):
    shape, controls, taken = epoch
    lost = data.draw(st.integers(0, len(controls) + len(taken) - 1))
    kept = [x for index, x in enumerate([*controls, *taken]) if index != lost]
    with pytest.raises(EpochAbortedError):
        pin_attempts(
            [x for x in kept if isinstance(x, TaskResult)],
            [x for x in kept if isinstance(x, BlockReceipt)],
            shape,
        )
