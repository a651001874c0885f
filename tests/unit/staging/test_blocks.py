"""Blocks of records, and the split at the watermark."""

from penstock.io.staging.blocks import (
    BLOCK_RECORDS,
    RecordBlock,
    blocks_of,
    by_event_time,
    split_at_watermark,
)


def test_a_block_joins_its_records_and_gives_them_back():
    records = [(7, b"one"), (5, b""), (7, b"two")]
    block = RecordBlock.of(records)
    assert block.payload == b"onetwo"
    assert list(block.records()) == records
    assert block.earliest_us == 5


def test_records_below_the_watermark_are_sorted_by_event_time_and_the_others_keep_their_order():
    blocks = [
        RecordBlock.of([(30, b"c"), (10, b"a"), (90, b"z")]),
        RecordBlock.of([(20, b"b"), (80, b"y"), (50, b"m")]),
    ]
    passed, waiting = split_at_watermark(blocks, 50)
    assert passed == [(10, b"a"), (20, b"b"), (30, b"c")]
    assert waiting == [(90, b"z"), (80, b"y"), (50, b"m")]


def test_records_with_the_same_event_time_keep_the_order_in_which_they_arrived():
    blocks = [RecordBlock.of([(2, b"first"), (1, b"x")]), RecordBlock.of([(2, b"second"), (2, b"a")])]
    assert by_event_time(blocks) == [(1, b"x"), (2, b"first"), (2, b"second"), (2, b"a")]


def test_many_records_become_blocks_of_a_limited_size_in_the_same_order():
    records = [(number, b"%d" % number) for number in range(BLOCK_RECORDS + 1)]
    blocks = list(blocks_of(records))
    assert [len(block.lengths) for block in blocks] == [BLOCK_RECORDS, 1]
    assert [record for block in blocks for record in block.records()] == records
