"""A local output: the effects of failures and repetitions, and the files that clean-up may delete."""

import errno
import os
import resource
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from penstock.attempt import Attempt
from penstock.io.staging import local, names
from penstock.io.staging.errors import OutputError
from penstock.io.staging.local import LocalStore
from penstock.io.staging.operations import clean_up, publish, sync_published
from penstock.io.staging.operations import stage as stage_content
from penstock.io.staging.staged_file import StagedFile

JOB, SINK = "job-1", "5a5a"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "out"))


def staged_name(
    generation: int = 1, epoch: int = 1, nonce: str = "n", sink: str = SINK, job: str = JOB
) -> str:
    return names.staged_name(sink, Attempt(job, generation, epoch, nonce), 0)


def stage(store: LocalStore, final: str = "t/h/00-of-01_a.jsonl", **name: object) -> StagedFile:
    """Stage two lines and return the publication that would publish them."""
    staged = staged_name(**name)  # type: ignore[arg-type]
    content = stage_content(store, staged, [b"one\n", b"two\n"])
    return StagedFile(store.output, staged, final, content.length, content.crc32, 2)


def files(store: LocalStore) -> set[str]:
    """All files but the markers of staging folders."""
    found = [path for path in Path(store.output).rglob("*") if path.is_file()]
    return {str(path.relative_to(store.output)) for path in found if not path.name.startswith("since_")}


def failing(code: int):
    def fail(*_args: object, **_kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


# --- staging


def test_staging_returns_length_and_checksum_of_what_it_wrote(store):
    content = stage_content(store, staged_name(), [b"one\n", b"", b"t", b"wo\n"])
    assert (content.length, content.crc32) == (8, zlib.crc32(b"one\ntwo\n"))
    assert Path(store.output, staged_name()).read_bytes() == b"one\ntwo\n"


def test_staged_files_are_where_no_reader_looks(store):
    stage(store)
    assert files(store)
    assert all(name.startswith(".") for name in files(store))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failed_write_leaves_no_staged_file_and_names_the_remedy(store, monkeypatch, code):
    monkeypatch.setattr(local.os, "fsync", failing(code))
    Path(store.output, names.staging_folder(JOB, SINK)).mkdir(parents=True)
    with pytest.raises(OutputError, match="then start the same command again"):
        stage(store)
    assert files(store) == set()


def test_a_failing_source_of_content_leaves_no_staged_file(store):
    def content():
        yield b"one\n"
        raise LookupError("state is gone")

    with pytest.raises(LookupError):
        stage_content(store, staged_name(), content())
    assert files(store) == set()


def test_a_real_limit_on_file_size_leaves_no_staged_file_and_names_the_remedy(tmp_path):
    """The kernel refuses the write here, as it does on a full disk."""
    code = (
        "import sys; from penstock.io.staging.local import LocalStore, OutputError\n"
        "try: LocalStore(sys.argv[1]).create(sys.argv[2], [b'x' * 10_000] * 100)\n"
        "except OutputError as error: print(error)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), staged_name()],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    assert "File too large. Lower roll_bytes" in run.stdout
    assert files(LocalStore(str(tmp_path))) == set()


def test_a_crash_never_leaves_a_staging_folder_without_its_marker(store, monkeypatch):
    real = os.open

    def open_until_the_marker(path, *arguments):
        if os.path.basename(path).startswith("since_"):
            raise KeyboardInterrupt
        return real(path, *arguments)

    monkeypatch.setattr(local.os, "open", open_until_the_marker)
    with pytest.raises(KeyboardInterrupt):
        stage(store)
    assert not Path(store.output, names.staging_folder(JOB, SINK)).exists()


def test_a_task_that_is_second_to_create_the_staging_folder_keeps_the_first_marker(store, monkeypatch):
    real, first = os.rename, []

    def rename_after_another_task(source, target):
        if not first:
            first.append(target)
            stage(store, epoch=3, nonce="first")
        real(source, target)

    monkeypatch.setattr(local.os, "rename", rename_after_another_task)
    stage(store, epoch=8, nonce="second")
    (folder,) = Path(store.output, names.STAGING, JOB).iterdir()
    assert names.created_in(os.listdir(folder)) == (1, 3)
    assert len(files(store)) == 2


def test_a_folder_without_a_marker_is_never_replaced_by_the_folder_of_another_task(store, monkeypatch):
    """It is empty until the other task has created its file in it."""
    monkeypatch.setattr(local.os, "rename", None)
    store.create("table/penstock-1.parquet", [b"rows"])
    assert store.read("table/penstock-1.parquet") == b"rows"


# --- publishing


def test_publishing_moves_the_whole_file(store):
    publication = stage(store)
    assert publish(store, publication)
    assert files(store) == {publication.final}
    assert Path(store.output, publication.final).read_bytes() == b"one\ntwo\n"


def test_publishing_again_changes_nothing(store):
    publication = stage(store)
    publish(store, publication)
    before = os.stat(Path(store.output, publication.final))
    assert not publish(store, publication)
    after = os.stat(Path(store.output, publication.final))
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_published_file_that_a_consumer_removed_does_not_appear_again(store):
    publication = stage(store)
    publish(store, publication)
    os.unlink(Path(store.output, publication.final))
    os.rmdir(Path(store.output, "t/h"))
    assert not publish(store, publication)
    assert files(store) == set()


def test_published_files_and_folders_follow_the_umask(store):
    before = os.umask(0o027)
    try:
        publication = stage(store)
        publish(store, publication)
    finally:
        os.umask(before)
    final = Path(store.output, publication.final)
    modes = [path.stat().st_mode & 0o777 for path in (final, final.parent, Path(store.output, names.STAGING))]
    assert modes == [0o640, 0o750, 0o750]


def test_an_existing_final_file_is_never_overwritten(store):
    publication = stage(store)
    foreign = Path(store.output, publication.final)
    foreign.parent.mkdir(parents=True)
    foreign.write_text("foreign")
    with pytest.raises(OutputError, match=r"will not overwrite .*move it away"):
        publish(store, publication)
    assert foreign.read_text() == "foreign"


def test_a_staged_file_that_something_changed_is_not_published(store):
    publication = stage(store)
    Path(store.output, publication.staged).write_bytes(b"on")
    with pytest.raises(OutputError, match=r"has 2 bytes, its publication says 8.*Restore the file"):
        publish(store, publication)
    assert files(store) == {publication.staged}


def test_a_file_in_an_output_that_is_not_mounted_does_not_count_as_published(store):
    publication = stage(store)
    os.rename(store.output, store.output + ".elsewhere")
    os.mkdir(store.output)
    with pytest.raises(OutputError, match=r"cannot tell whether .* mount it"):
        publish(store, publication)


def test_publishing_survives_a_consumer_that_removes_empty_folders(store, monkeypatch):
    publication = stage(store)
    real, removed = os.rename, []

    def rename_after_a_consumer(source, target):
        if not removed:
            removed.append(target)
            os.rmdir(os.path.dirname(target))
        return real(source, target)

    monkeypatch.setattr(local.os, "rename", rename_after_a_consumer)
    assert publish(store, publication)
    assert removed
    assert files(store) == {publication.final}


def test_a_file_that_another_publisher_moves_in_between_is_not_mistaken_for_a_foreign_file(
    store, monkeypatch
):
    publication = stage(store)
    real, other = os.path.lexists, []

    def lexists_after_another_publisher(path):
        if not other:
            other.append(path)
            os.rename(Path(store.output, publication.staged), Path(store.output, publication.final))
        return real(path)

    monkeypatch.setattr(local.os.path, "lexists", lexists_after_another_publisher)
    assert not publish(store, publication)
    assert files(store) == {publication.final}


@pytest.mark.parametrize("moved_before", [False, True])
def test_a_published_file_is_made_durable_whichever_try_moved_it(store, monkeypatch, moved_before):
    """If a try is killed between move and fsync, a loss of power could still undo the move. So the next try syncs."""
    publication = stage(store)
    if moved_before:
        publish(store, publication)
    synced: list[str] = []
    monkeypatch.setattr(local, "_sync_folder", synced.append)
    publish(store, publication)
    sync_published(store, [publication])
    for part in (publication.final, publication.staged):
        assert os.path.dirname(os.path.join(store.output, part)) in synced
    assert os.path.join(store.output, "") in synced


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.EACCES, "write access"), (errno.EROFS, "Remount"), (errno.EXDEV, "mount the output as a whole")],
)
def test_a_refused_move_keeps_the_staged_file_and_names_the_remedy(store, monkeypatch, code, remedy):
    publication = stage(store)
    monkeypatch.setattr(local.os, "rename", failing(code))
    with pytest.raises(OutputError, match=remedy):
        publish(store, publication)
    assert files(store) == {publication.staged}


def test_a_staging_folder_that_is_younger_than_the_file_proves_no_publication(store):
    """The output was moved away, or its disk is not mounted, and a later epoch has staged more in its place."""
    lost = stage(store, epoch=7)
    Path(store.output).rename(store.output + "-moved")
    later = stage(store, final="t/h/00-of-01_b.jsonl", epoch=8)
    with pytest.raises(OutputError, match=r"cannot tell whether t/h/00-of-01_a.jsonl was published"):
        publish(store, lost)
    assert publish(store, later)
    assert not publish(store, later), "published by the try before"


def test_a_staging_folder_without_a_marker_proves_no_publication(store):
    lost = stage(store)
    Path(store.output).rename(store.output + "-moved")
    Path(store.output, names.staging_folder(JOB, SINK)).mkdir(parents=True)
    with pytest.raises(OutputError, match="cannot tell whether"):
        publish(store, lost)


def test_an_operator_can_confirm_what_was_published_before_the_staging_folder_was_deleted(store):
    """The commands are those of docs/files.md."""
    publication = stage(store)
    publish(store, publication)
    shutil.rmtree(Path(store.output, names.STAGING))
    with pytest.raises(OutputError, match=r"is gone\..* 'A deleted staging folder' in docs/files.md"):
        publish(store, publication)
    folder = Path(store.output, publication.staged).parent
    subprocess.run(["sh", "-c", f"mkdir -p '{folder}' && touch '{folder}/since_g0_e0'"], check=True)
    assert not publish(store, publication)


def test_an_output_may_be_a_symbolic_link_to_a_folder(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    linked = LocalStore(str(tmp_path / "out"))
    linked.check_location()
    linked.check_writable()
    publication = stage(linked)
    assert publish(linked, publication)
    assert (tmp_path / "real" / publication.final).is_file()


def test_an_output_that_is_a_dangling_link_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "out").symlink_to(tmp_path / "missing")
    with pytest.raises(OutputError, match="Choose an output that is a folder"):
        LocalStore(str(tmp_path / "out")).check_location()


def test_a_consumer_that_removes_all_empty_folders_leaves_the_proof_of_a_publication(store):
    publication = stage(store)
    publish(store, publication)
    os.unlink(Path(store.output, publication.final))
    subprocess.run(["find", store.output, "-mindepth", "1", "-empty", "-delete"], check=True)
    assert not publish(store, publication)


def test_the_staging_folder_of_a_resumed_job_proves_a_publication(store):
    first, last = stage(store, epoch=2), stage(store, final="t/h/00-of-01_b.jsonl", generation=7, epoch=9)
    assert publish(store, first)
    assert publish(store, last)
    assert not publish(store, first)
    assert not publish(store, last)


# --- clean-up


def test_clean_up_deletes_what_failed_epochs_staged_and_keeps_what_a_record_names(store):
    named, orphan = stage(store, epoch=5, nonce="named"), stage(store, epoch=5, nonce="orphan")
    assert clean_up(store, JOB, SINK, (1, 5), keep={named.staged}) == 1
    assert files(store) == {named.staged}
    assert orphan.staged not in files(store)


def test_clean_up_keeps_what_later_epochs_and_later_generations_stage(store):
    later = {stage(store, generation=1, epoch=6).staged, stage(store, generation=2, epoch=1).staged}
    assert clean_up(store, JOB, SINK, (1, 5), keep=()) == 0
    assert files(store) == later


def test_clean_up_deletes_what_an_older_generation_stages_at_any_later_time(store):
    stage(store, generation=1, epoch=99)
    assert clean_up(store, JOB, SINK, (2, 5), keep=()) == 1


def test_clean_up_keeps_files_of_other_sinks_of_other_jobs_and_of_users(store):
    others = {stage(store, sink="other").staged, stage(store, job="other").staged}
    foreign = Path(store.output, names.staging_folder(JOB, SINK), "notes.txt")
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    clean_up(store, JOB, SINK, (9, 9), keep=())
    assert files(store) == others | {str(foreign.relative_to(store.output))}


def test_a_late_clean_up_keeps_what_a_publication_needs_to_be_repeated(store):
    """Without the folder of the job nothing would tell a published file from one on a disk that is not mounted."""
    publication = stage(store)
    publish(store, publication)
    clean_up(store, JOB, SINK, (1, 1), keep=())
    assert not publish(store, publication)


def test_clean_up_of_a_job_that_never_staged_does_nothing(store):
    assert clean_up(store, JOB, SINK, (1, 1), keep=()) == 0


def test_two_clean_ups_at_the_same_time_do_not_disturb_each_other(store, monkeypatch):
    stage(store)
    real = os.unlink

    def unlink_twice(path):
        real(path)
        real(path)

    monkeypatch.setattr(local.os, "unlink", unlink_twice)
    assert clean_up(store, JOB, SINK, (1, 1), keep=()) == 1


# --- the checks before a start


def test_the_check_of_the_location_creates_nothing(store, tmp_path):
    store.check_location()
    assert list(tmp_path.iterdir()) == []


def test_the_check_before_a_start_creates_the_folder_and_leaves_nothing_in_it(store):
    store.check_writable()
    assert os.listdir(store.output) == []


@pytest.mark.parametrize("check", [LocalStore.check_location, LocalStore.check_writable])
def test_an_output_below_a_file_is_refused_with_the_remedy(tmp_path, check):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write to the output .*file/out: Not a directory\. Choose"):
        check(LocalStore(str(tmp_path / "file" / "out")))


@pytest.mark.parametrize("check", [LocalStore.check_location, LocalStore.check_writable])
def test_an_output_that_is_a_file_is_refused_with_the_remedy(tmp_path, check):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="Choose an output that is a folder"):
        check(LocalStore(str(tmp_path / "file")))


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EACCES, "write access"),
        (errno.EROFS, "Remount"),
        (
            errno.ENOENT,
            "where a folder can be created",
        ),  # /proc: its folders exist, and nothing can be created there
    ],
)
def test_an_output_that_cannot_be_written_is_refused_with_the_remedy(store, monkeypatch, code, remedy):
    monkeypatch.setattr(local.os, "mkdir", failing(code))
    with pytest.raises(OutputError, match=remedy):
        store.check_writable()
