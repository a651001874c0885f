"""Names of staged and published files: the rules on which readers, clean-up and the order of records depend."""

import pytest

from penstock.attempt import Attempt
from penstock.io.staging import names


def attempt(epoch: int = 7, nonce: str = "ab12", job: str = "20261121T1200", generation: int = 3) -> Attempt:
    return Attempt(job=job, generation=generation, epoch=epoch, nonce=nonce)


def test_plain_names_stay_as_they_are():
    assert names.folder_name("Orders") == "Orders"
    assert names.folder_name("sales.orders-2") == "sales.orders-2"


@pytest.mark.parametrize(
    ("name", "folder"),
    [("a/b", "a%2Fb"), ("..", "%2E."), (".hidden", "%2Ehidden"), ("_tmp", "%5Ftmp"), ("é=1", "%C3%A9%3D1")],
)
def test_names_that_leave_the_folder_or_that_readers_skip_are_encoded(name, folder):
    assert names.folder_name(name) == folder


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_names_that_no_file_system_accepts_are_refused_with_the_remedy(name):
    with pytest.raises(ValueError, match=r"1 to 255 bytes.*table function"):
        names.folder_name(name)


def test_a_published_name_is_bucket_job_epoch_index_nonce_and_suffix():
    name = names.final_name("Orders/2026-11-21T12/00-of-01", attempt(), 2, ".parquet")
    assert name == "Orders/2026-11-21T12/00-of-01_20261121T1200_000000000007_00000002_ab12.parquet"


def test_names_of_a_bucket_sort_by_job_then_epoch_then_index():
    in_order = [
        names.final_name("t/h/00-of-01", attempt(job="j1", epoch=99, nonce="ff"), 0, ".x"),
        names.final_name("t/h/00-of-01", attempt(job="j2", epoch=9, nonce="ff"), 10, ".x"),
        names.final_name("t/h/00-of-01", attempt(job="j2", epoch=10, nonce="ff"), 0, ".x"),
        names.final_name("t/h/00-of-01", attempt(job="j2", epoch=10, nonce="00"), 9, ".x"),
        names.final_name("t/h/00-of-01", attempt(job="j2", epoch=10, nonce="00"), 10, ".x"),
    ]
    assert in_order == sorted(in_order)


def test_two_tries_of_an_epoch_share_neither_a_staged_nor_a_final_name():
    one, other = attempt(nonce="aa"), attempt(nonce="bb")
    assert names.staged_name("s", one, 0) != names.staged_name("s", other, 0)
    assert names.final_name("b", one, 0, ".x") != names.final_name("b", other, 0, ".x")


def test_a_staged_name_tells_which_epoch_staged_it():
    name = names.staged_name("sink", attempt(generation=3, epoch=7), 5)
    assert name.startswith(names.staging_folder("20261121T1200", "sink") + "/")
    assert names.staged_in(name) == (3, 7)


@pytest.mark.parametrize("name", ["notes.txt", "g1_e2", "g1_e2_3_n.bak", ".g1_e2_3_n", "since_g1_e2"])
def test_other_files_in_a_staging_folder_have_no_epoch(name):
    assert names.staged_in(name) is None


def test_a_staging_folder_was_created_in_the_epoch_of_its_marker():
    marker = names.marker_name(names.staged_name("sink", attempt(generation=3, epoch=7), 5))
    assert names.created_in([names.staged_name("sink", attempt(epoch=9), 0), str(marker)]) == (3, 7)
    assert names.created_in(["notes.txt"]) is None


def test_sinks_of_one_pipeline_stage_in_different_folders():
    assert names.sink_name("Orders/Write") != names.sink_name("Refunds/Write")
    assert names.sink_name("Orders/Write") == names.sink_name("Orders/Write")
