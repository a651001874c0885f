"""The post-commit step, as the runner calls it."""

from pathlib import Path

import pytest

from penstock.attempt import Attempt
from penstock.io.staging.errors import OutputError
from penstock.io.staging.local import LocalStore
from penstock.io.staging.names import staged_name
from penstock.io.staging.operations import stage
from penstock.io.staging.publish import PublishFilesFn
from penstock.io.staging.staged_file import PublishedFile, StagedFile
from penstock.publish import CleansUp, PublishesEarly

SINK = "sink"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "out"))


def staged(store: LocalStore, nonce: str = "n", epoch: int = 1) -> StagedFile:
    name = staged_name(SINK, Attempt("job", 1, epoch, nonce), 0)
    content = stage(store, name, [b"x\n"])
    return StagedFile(store.output, name, f"t/h/{nonce}.jsonl", content.length, content.crc32, 1)


def run(fn: PublishFilesFn, *publications: StagedFile) -> list[PublishedFile]:
    fn.start_bundle()
    published = [file for publication in publications for file in fn.process(publication)]
    published += [output.value for output in fn.finish_bundle()]
    return published


def test_publishing_emits_the_same_file_each_time_even_after_a_consumer_has_removed_it(store):
    fn, publication = PublishFilesFn(store, SINK), staged(store)
    first = run(fn, publication)
    assert first == [PublishedFile(f"{store.output}/t/h/n.jsonl", 2, publication.crc32, 1)]
    assert Path(first[0].path).read_bytes() == b"x\n"
    assert run(fn, publication) == first
    Path(first[0].path).unlink()
    assert run(fn, publication) == first
    assert not Path(first[0].path).exists()


def test_a_failed_publish_raises_and_emits_nothing(store, tmp_path):
    publication = staged(store)
    (tmp_path / "out" / "t").write_text("a file where a folder must be")
    emitted: list[PublishedFile] = []
    with pytest.raises(OutputError):
        emitted.extend(PublishFilesFn(store, SINK).process(publication))
    assert emitted == []


def test_a_file_is_published_in_the_output_where_it_was_staged_even_if_the_output_was_changed_since(
    store, tmp_path
):
    publication = staged(store)
    elsewhere = PublishFilesFn(LocalStore(str(tmp_path / "new")), SINK)
    assert [file.path for file in run(elsewhere, publication)] == [f"{store.output}/t/h/n.jsonl"]
    assert not (tmp_path / "new").exists()


def test_clean_up_deletes_the_staged_files_that_no_publication_names(store):
    fn, named, orphan = PublishFilesFn(store, SINK), staged(store, "named"), staged(store, "orphan")
    later = staged(store, "later", epoch=2)
    assert isinstance(fn, CleansUp)
    fn.clean_up("job", 1, 1, [named])
    exists = [Path(store.output, each.staged).exists() for each in (named, orphan, later)]
    assert exists == [True, False, True]


def test_files_that_are_published_early_are_emitted_by_the_step_all_the_same(store: LocalStore) -> None:
    fn, publications = PublishFilesFn(store, SINK), [staged(store, "n"), staged(store, "m")]
    assert isinstance(fn, PublishesEarly)
    fn.publish_early(publications)
    paths = [Path(store.output, publication.final) for publication in publications]
    assert all(path.exists() for path in paths)
    paths[0].unlink()  # by a consumer
    fn.publish_early(publications)
    assert [file.path for file in run(fn, *publications)] == [str(path) for path in paths]
    assert not paths[0].exists()
