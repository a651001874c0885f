"""Names: what they promise to readers, to clean-up and to the order of lines."""

import subprocess
import sys
import zlib

import pytest

from penstock.io.files import naming
from penstock.publish import Attempt

HOUR_US = 3_600_000_000


def attempt(epoch: int = 7, nonce: str = "ab12", job: str = "20261121T1200", generation: int = 3) -> Attempt:
    return Attempt(job=job, generation=generation, epoch=epoch, nonce=nonce)


def test_plain_table_names_stay_as_they_are():
    assert naming.folder_name("Orders") == "Orders"
    assert naming.folder_name("sales.orders-2") == "sales.orders-2"


@pytest.mark.parametrize(
    ("name", "folder"),
    [("a/b", "a%2Fb"), ("..", "%2E."), (".hidden", "%2Ehidden"), ("_tmp", "%5Ftmp"), ("é=1", "%C3%A9%3D1")],
)
def test_names_that_would_escape_or_be_overlooked_are_encoded(name, folder):
    assert naming.folder_name(name) == folder


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_names_that_no_file_system_takes_are_refused_with_the_remedy(name):
    with pytest.raises(ValueError, match=r"1 to 255 bytes.*table function"):
        naming.folder_name(name)


def test_an_hour_starts_inclusive_and_ends_exclusive():
    first = 1_763_740_800_000_000  # 2025-11-21T16:00:00Z
    assert naming.hour_folder(naming.event_hour(first)) == "2025-11-21T16"
    assert naming.hour_folder(naming.event_hour(first + HOUR_US - 1)) == "2025-11-21T16"
    assert naming.hour_folder(naming.event_hour(first + HOUR_US)) == "2025-11-21T17"


def test_hours_before_1970_are_rounded_down():
    assert naming.hour_folder(naming.event_hour(-1)) == "1969-12-31T23"


def test_beams_minimum_timestamp_has_a_folder_that_says_so():
    from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP

    for far in (MIN_TIMESTAMP, MAX_TIMESTAMP):
        assert naming.hour_folder(naming.event_hour(far.micros)) == naming.NO_EVENT_TIME


def test_the_hash_of_a_key_never_changes():
    """The bytes are spelled out: a Penstock that hashed otherwise would break the order of keys."""
    assert naming.stable_hash("k") == zlib.crc32(b"s1:k") == 2_192_456_032
    assert naming.stable_hash(b"k") == zlib.crc32(b"b1:k")
    assert naming.stable_hash(("Orders", 7, None)) == zlib.crc32(b"t20:s6:Ordersv1:7v4:None")


def test_the_hash_of_a_key_is_the_same_in_another_process():
    code = "from penstock.io.files.naming import stable_hash; print(stable_hash(('a', b'b', 3, 2.5)))"
    other = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(other.stdout) == naming.stable_hash(("a", b"b", 3, 2.5))


def test_a_key_without_a_stable_hash_is_refused_without_showing_it():
    with pytest.raises(TypeError, match=r"gave a set.*return str, bytes") as refusal:
        naming.stable_hash({"secret"})  # type: ignore[arg-type]
    assert "secret" not in str(refusal.value)


def test_a_lane_is_the_path_that_its_files_names_begin_with():
    lane = naming.lane("sales/orders", 0, 3, 16)
    assert lane == "sales%2Forders/1970-01-01T00/03-of-16"
    assert naming.final_name(lane, attempt(), 2) == f"{lane}_20261121T1200_000000000007_00000002_ab12.jsonl"


def test_shards_sort_as_text_however_many_there_are():
    names = [naming.shard_name(shard, 1000) for shard in range(1000)]
    assert names == sorted(names)
    assert names[7] == "0007-of-1000"


def test_names_of_a_lane_sort_by_job_then_epoch_then_index():
    lane = naming.lane("t", 0, 0, 1)
    in_order = [
        naming.final_name(lane, attempt(job="j1", epoch=99, nonce="ff"), 0),
        naming.final_name(lane, attempt(job="j2", epoch=9, nonce="ff"), 10),
        naming.final_name(lane, attempt(job="j2", epoch=10, nonce="ff"), 0),
        naming.final_name(lane, attempt(job="j2", epoch=10, nonce="00"), 9),
        naming.final_name(lane, attempt(job="j2", epoch=10, nonce="00"), 10),
    ]
    assert in_order == sorted(in_order)


def test_two_tries_of_an_epoch_share_neither_a_staged_nor_a_final_name():
    one, other = attempt(nonce="aa"), attempt(nonce="bb")
    assert naming.staged_name("s", one, 0) != naming.staged_name("s", other, 0)
    assert naming.final_name("lane", one, 0) != naming.final_name("lane", other, 0)


def test_a_staged_name_says_which_epoch_staged_it():
    name = naming.staged_name("sink", attempt(generation=3, epoch=7), 5)
    assert name.startswith(naming.staging_folder("20261121T1200", "sink") + "/")
    assert naming.staged_in(name) == (3, 7)


@pytest.mark.parametrize("name", ["notes.txt", "g1_e2.jsonl", "g1_e2_3_n.jsonl.bak", ".g1_e2_3_n.jsonl"])
def test_what_is_not_a_staged_file_has_no_epoch(name):
    assert naming.staged_in(name) is None


def test_sinks_of_one_pipeline_stage_in_folders_of_their_own():
    assert naming.sink_name("Orders/Write") != naming.sink_name("Refunds/Write")
    assert naming.sink_name("Orders/Write") == naming.sink_name("Orders/Write")
