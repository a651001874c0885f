"""A shard is a function of table and key, however it is computed."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from penstock.event.column_types import Interval
from penstock.event.model import Source
from penstock.event.sharding import ShardOfKey, shard_of_row

VALUES = st.one_of(
    st.integers(-(2**70), 2**70),  # beyond 64 bits too: such a key has other bytes
    st.text(max_size=40),
    st.binary(max_size=40),
    st.decimals(allow_nan=False),
    st.just(Interval(1, 2, 3)),
    st.none(),
)
KEYS = st.one_of(st.none(), st.dictionaries(st.text(max_size=5), VALUES, max_size=3))
SOURCES = st.builds(Source, st.text(), st.text(), st.text(), st.text(), st.text())


@given(SOURCES, KEYS, st.integers(1, 200))
def test_the_shards_of_one_source_are_those_of_its_rows(source, key, shards):
    assert ShardOfKey(source, shards)(key) == shard_of_row(source, key, shards)


def test_shards_of_recorded_keys_stay():
    # Events that wait in a checkpoint must have the same shard as later ones of their row.
    source = Source("postgresql", "", "shop", "public", "orders")
    keys = [None, {}, {"id": 1}, {"id": 2**64}, {"id": "a", "at": Decimal("1.50")}]
    assert [ShardOfKey(source, 100)(key) for key in keys] == [47, 3, 29, 62, 67]
