"""The bytes of staging in checkpoints and between processes: exact, versioned, deterministic."""

import pickle

import pytest
from apache_beam import coders

from penstock.io.staging.blocks import RecordBlock
from penstock.io.staging.coders import (
    OpenFileCoder,
    PublishedFileCoder,
    RecordBlockCoder,
    StagedFileCoder,
)
from penstock.io.staging.rolling import OpenFile
from penstock.io.staging.staged_file import PublishedFile, StagedFile

PUBLICATION = StagedFile("/out", ".penstock-staging/j/s/f", "t/h/00-of-01_x.jsonl", 12, 99, 1)
VALUES = [
    (PUBLICATION, StagedFileCoder()),
    (PublishedFile("/p", 1, 2, 3), PublishedFileCoder()),
    (OpenFile(3, 1, -5, 1 << 60), OpenFileCoder()),
    (RecordBlock.of([(-1, b"one\n"), (2, b""), (1, b"two\n")]), RecordBlockCoder()),
    (RecordBlock((-7,), (), b"", PUBLICATION), RecordBlockCoder()),
]


def test_a_publication_is_a_readable_array_that_begins_with_its_version():
    encoded = StagedFileCoder().encode(PUBLICATION)
    assert encoded == b'[1,"/out",".penstock-staging/j/s/f","t/h/00-of-01_x.jsonl",12,99,1]'


def test_a_published_file_is_found_below_the_output():
    assert PUBLICATION.published() == PublishedFile("/out/t/h/00-of-01_x.jsonl", 12, 99, 1)


def test_a_block_is_its_event_times_then_its_lengths_then_its_payload():
    encoded = RecordBlockCoder().encode(RecordBlock.of([(1, b"ab"), (-1, b"c")]))
    assert encoded == (
        b"\x01\x00\x00\x00\x02"
        b"\x00\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff"
        b"\x00\x00\x00\x02\x00\x00\x00\x01"
        b"abc"
    )


@pytest.mark.parametrize(("value", "coder"), VALUES)
def test_every_value_survives_its_coder(value, coder):
    assert coder.is_deterministic()
    assert coder.decode(coder.encode(value)) == value


@pytest.mark.parametrize(("value", "coder"), [VALUES[0], VALUES[1], VALUES[3]])
def test_the_values_between_steps_have_registered_coders(value, coder):
    assert coders.registry.get_coder(type(value)) == coder


@pytest.mark.parametrize(
    ("newer", "coder"),
    [
        (b"[2]", StagedFileCoder()),
        (b"\x02", OpenFileCoder()),
        (b"\x03", RecordBlockCoder()),
    ],
)
def test_another_version_is_refused_with_the_remedy(newer, coder):
    with pytest.raises(ValueError, match=r"of format version [23] .*resume the checkpoint with the release"):
        coder.decode(newer)


def test_output_paths_that_are_not_utf8_survive():
    odd = PublishedFile(b"/\xff/x".decode("utf-8", "surrogateescape"), 1, 2, 3)
    assert PublishedFileCoder().decode(PublishedFileCoder().encode(odd)) == odd


def test_coders_of_one_kind_are_equal_also_after_pickling():
    assert pickle.loads(pickle.dumps(StagedFileCoder())) == StagedFileCoder()
    assert StagedFileCoder() != PublishedFileCoder()
    assert hash(StagedFileCoder()) == hash(StagedFileCoder())
