"""Names and encodings, for any input."""

from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.attempt import Attempt
from penstock.io.files import names as buckets
from penstock.io.staging import names
from penstock.io.staging.blocks import RecordBlock, split_at_watermark
from penstock.io.staging.coders import OpenFileCoder, RecordBlockCoder, StagedFileCoder
from penstock.io.staging.rolling import OpenFile
from penstock.io.staging.staged_file import StagedFile

tables = st.text(min_size=1, max_size=40)
int64 = st.integers(-(2**63), 2**63 - 1)
keys = st.recursive(
    st.none() | st.booleans() | int64 | st.text() | st.binary() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=8,
)
attempts = st.builds(
    Attempt,
    job=st.from_regex(r"[0-9]{8}T[0-9]{6}", fullmatch=True),
    generation=st.integers(0, 10**10 - 1),
    epoch=st.integers(0, 10**12 - 1),
    nonce=st.from_regex(r"[0-9a-f]{8}", fullmatch=True),
)
indexes = st.integers(0, 10**8 - 1)
records = st.tuples(int64, st.binary(max_size=20))
blocks = st.lists(records, min_size=1, max_size=8).map(RecordBlock.of)


@given(tables, tables)
def test_two_tables_never_share_a_folder(one, other):
    assume(one != other)
    assert names.folder_name(one) != names.folder_name(other)


@given(tables)
def test_the_folder_of_a_table_is_one_visible_folder(table):
    folder = names.folder_name(table)
    assert "/" not in folder
    assert folder[0] not in "._"
    assert folder.isascii()
    assert folder.isprintable()


@given(st.integers(-(2**62), 2**62))
def test_every_event_time_has_an_hour_folder_of_a_fixed_form(timestamp_us):
    hour = buckets.hour_folder(buckets.event_hour(timestamp_us))
    assert hour == buckets.NO_EVENT_TIME or (len(hour) == 13 and hour[10] == "T")


@given(keys, st.integers(1, 300))
def test_every_key_has_one_shard(key, shards):
    assert buckets.stable_hash(key) == buckets.stable_hash(key)
    assert 0 <= buckets.stable_hash(key) % shards < shards


@given(keys, keys)
def test_different_keys_have_different_bytes(one, other):
    assume(repr(one) != repr(other))
    assert buckets._canonical(one) != buckets._canonical(other)


@given(attempts, indexes, attempts, indexes)
def test_names_of_a_bucket_sort_as_job_epoch_and_index_do(one, i, other, j):
    order = (one.job, one.epoch, i), (other.job, other.epoch, j)
    assume(order[0] != order[1])
    one_name = names.final_name("t/h/00-of-01", one, i, ".jsonl")
    other_name = names.final_name("t/h/00-of-01", other, j, ".jsonl")
    assert (one_name < other_name) == (order[0] < order[1])


@given(attempts, indexes)
def test_a_staged_name_gives_its_epoch_back(attempt, index):
    name = names.staged_name("sink", attempt, index)
    assert names.staged_in(name) == (attempt.generation, attempt.epoch)


@given(st.builds(StagedFile, st.text(), st.text(), st.text(), int64, int64, int64))
def test_a_publication_survives_its_coder(publication):
    coder = StagedFileCoder()
    assert coder.decode(coder.encode(publication)) == publication
    assert coder.encode(publication) == coder.encode(coder.decode(coder.encode(publication)))


@given(st.builds(OpenFile, int64, int64, int64, int64))
def test_an_open_file_survives_its_coder(file):
    assert OpenFileCoder().decode(OpenFileCoder().encode(file)) == file


@given(blocks)
def test_a_block_survives_its_coder(block):
    assert RecordBlockCoder().decode(RecordBlockCoder().encode(block)) == block


@given(st.lists(blocks), int64)
def test_a_split_keeps_every_record_on_its_side_of_the_watermark(some, watermark_us):
    passed, waiting = split_at_watermark(some, watermark_us)
    assert all(time_us < watermark_us for time_us, _ in passed)
    assert all(time_us >= watermark_us for time_us, _ in waiting)
    assert sorted(passed + waiting) == sorted(record for block in some for record in block.records())
