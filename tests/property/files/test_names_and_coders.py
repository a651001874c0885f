"""Names and encodings, for any input."""

from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.io.files import naming
from penstock.io.files.publication import Publication, PublicationCoder
from penstock.io.files.rolling import OpenFile, OpenFileCoder
from penstock.publish import Attempt

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


@given(tables, tables)
def test_two_tables_never_share_a_folder(one, other):
    assume(one != other)
    assert naming.folder_name(one) != naming.folder_name(other)


@given(tables)
def test_a_tables_folder_is_one_visible_folder(table):
    folder = naming.folder_name(table)
    assert "/" not in folder
    assert folder[0] not in "._"
    assert folder.isascii()
    assert folder.isprintable()


@given(st.integers(-(2**62), 2**62))
def test_every_event_time_has_an_hour_folder_of_a_fixed_form(timestamp_us):
    hour = naming.hour_folder(naming.event_hour(timestamp_us))
    assert hour == naming.NO_EVENT_TIME or (len(hour) == 13 and hour[10] == "T")


@given(keys, st.integers(1, 300))
def test_every_key_has_one_shard(key, shards):
    assert naming.stable_hash(key) == naming.stable_hash(key)
    assert 0 <= naming.stable_hash(key) % shards < shards


@given(keys, keys)
def test_the_bytes_of_a_key_are_its_own(one, other):
    assume(repr(one) != repr(other))
    assert naming._canonical(one) != naming._canonical(other)


@given(attempts, indexes, attempts, indexes)
def test_names_of_a_lane_sort_as_job_epoch_and_index_do(one, i, other, j):
    order = (one.job, one.epoch, i), (other.job, other.epoch, j)
    assume(order[0] != order[1])
    names = naming.final_name("t/h/00-of-01", one, i), naming.final_name("t/h/00-of-01", other, j)
    assert (names[0] < names[1]) == (order[0] < order[1])


@given(attempts, indexes)
def test_a_staged_name_gives_its_origin_back(attempt, index):
    name = naming.staged_name("sink", attempt, index)
    assert naming.staged_in(name) == (attempt.generation, attempt.epoch)


@given(st.builds(Publication, st.text(), st.text(), st.text(), int64, int64, int64))
def test_decoding_an_encoded_publication_gives_it_back(publication):
    coder = PublicationCoder()
    assert coder.decode(coder.encode(publication)) == publication
    assert coder.encode(publication) == coder.encode(coder.decode(coder.encode(publication)))


@given(st.builds(OpenFile, int64, int64, int64))
def test_decoding_an_encoded_open_file_gives_it_back(file):
    assert OpenFileCoder().decode(OpenFileCoder().encode(file)) == file
