"""Buckets and hashes: the rules on which readers and the order of lines depend."""

import subprocess
import sys
import zlib

import pytest

from penstock.io.files import names

HOUR_US = 3_600_000_000


def test_an_hour_includes_its_start_and_excludes_its_end():
    first = 1_763_740_800_000_000  # 2025-11-21T16:00:00Z
    assert names.hour_folder(names.event_hour(first)) == "2025-11-21T16"
    assert names.hour_folder(names.event_hour(first + HOUR_US - 1)) == "2025-11-21T16"
    assert names.hour_folder(names.event_hour(first + HOUR_US)) == "2025-11-21T17"


def test_hours_before_1970_are_rounded_down():
    assert names.hour_folder(names.event_hour(-1)) == "1969-12-31T23"


def test_timestamps_outside_the_years_1_to_9999_have_their_own_folder():
    from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP

    for far in (MIN_TIMESTAMP, MAX_TIMESTAMP):
        assert names.hour_folder(names.event_hour(far.micros)) == names.NO_EVENT_TIME


def test_the_hash_of_a_key_never_changes():
    """The test spells out the bytes: another hash would break the order of keys across an upgrade."""
    assert names.stable_hash("k") == zlib.crc32(b"s1:k") == 2_192_456_032
    assert names.stable_hash(b"k") == zlib.crc32(b"b1:k")
    assert names.stable_hash(("Orders", 7, None)) == zlib.crc32(b"t20:s6:Ordersv1:7v4:None")


def test_the_hash_of_a_key_is_the_same_in_another_process():
    code = "from penstock.io.files.names import stable_hash; print(stable_hash(('a', b'b', 3, 2.5)))"
    other = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "12345", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(other.stdout) == names.stable_hash(("a", b"b", 3, 2.5))


def test_a_key_without_a_stable_hash_is_refused_and_not_shown():
    with pytest.raises(TypeError, match=r"returned a set.*return str, bytes") as refusal:
        names.stable_hash({"secret"})  # type: ignore[arg-type]
    assert "secret" not in str(refusal.value)


def test_a_bucket_is_table_hour_and_shard():
    assert names.bucket_name("sales/orders", 0, 3, 16) == "sales%2Forders/1970-01-01T00/03-of-16"


def test_shards_sort_as_text_for_any_number_of_shards():
    shards = [names.shard_name(shard, 1000) for shard in range(1000)]
    assert shards == sorted(shards)
    assert shards[7] == "0007-of-1000"
