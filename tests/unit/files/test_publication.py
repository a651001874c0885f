"""What a commit record holds for the sink: small, readable, versioned."""

import pickle

import pytest
from apache_beam import coders

from penstock.io.files.publication import Publication, PublicationCoder, PublishedFile, PublishedFileCoder

PUBLICATION = Publication("/out", ".penstock-staging/j/s/f", "t/h/00-of-01_x.jsonl", 12, 99, 1)


def test_a_publication_is_a_readable_array_that_begins_with_its_version():
    encoded = PublicationCoder().encode(PUBLICATION)
    assert encoded == b'[1,"/out",".penstock-staging/j/s/f","t/h/00-of-01_x.jsonl",12,99,1]'


@pytest.mark.parametrize(
    ("value", "coder"), [(PUBLICATION, PublicationCoder), (PublishedFile("/p", 1, 2, 3), PublishedFileCoder)]
)
def test_the_values_have_registered_deterministic_coders(value, coder):
    registered = coders.registry.get_coder(type(value))
    assert type(registered) is coder
    assert registered.is_deterministic()
    assert registered.decode(registered.encode(value)) == value


def test_output_paths_that_are_not_utf8_survive():
    odd = PublishedFile(b"/\xff/x".decode("utf-8", "surrogateescape"), 1, 2, 3)
    assert PublishedFileCoder().decode(PublishedFileCoder().encode(odd)) == odd


def test_a_publication_of_another_version_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"Publication of format version 2 .*Resume with the Penstock"):
        PublicationCoder().decode(b"[2]")


def test_coders_of_one_kind_are_equal_also_after_pickling():
    assert pickle.loads(pickle.dumps(PublicationCoder())) == PublicationCoder()
    assert PublicationCoder() != PublishedFileCoder()
    assert hash(PublicationCoder()) == hash(PublicationCoder())
