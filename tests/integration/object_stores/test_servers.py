"""The same claims on each server: S3 from two sources, Azure's emulator, and our stand-in for Google Cloud Storage.

`make test` runs moto, which is a Python package. A campaign runs all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.cli.job_views import WatchedJobs
from penstock.io.staging.errors import OutputError
from penstock.io.staging.names import staged_name
from penstock.io.staging.operations import publish, stage
from penstock.io.staging.staged_file import StagedFile
from penstock.io.staging.store import store_of
from penstock.object_stores import ObjectStore, locate, store_at
from penstock.object_stores.guarantees import UnsuitableStoreError
from penstock.publish import Attempt
from penstock.runner.protocol import CheckpointError, Coordinator, EpochState, RunName, SupersededError
from penstock.runner.store import Checkpoint, StateStore
from penstock.runner.store.runs import RunCache
from tests.conftest import CAMPAIGN
from tests.support.object_stores.faults import BUSY_AFTER, DROP_AFTER, FaultProxy
from tests.support.object_stores.servers import AZURITE, BUCKET, GCS, MOTO, S3RVER, VERSITYGW, RunningServer
from tests.support.played_jobs import play

pytestmark = pytest.mark.slow

KINDS = (MOTO, VERSITYGW, AZURITE, GCS) if CAMPAIGN else (MOTO,)


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.name)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    with request.param.start(tmp_path_factory.mktemp(request.param.name)) as running:
        yield running


@pytest.fixture(autouse=True)
def credentials(server: RunningServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    # Copies of state runs go to a folder of the test.
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return "".join(c if c.isalnum() else "-" for c in request.node.name)


@pytest.fixture
def store(server: RunningServer, prefix: str) -> ObjectStore:
    location = locate(server.url(prefix))
    assert not isinstance(location, str)
    return store_at(location)


def test_of_many_creates_at_one_time_exactly_one_succeeds(store):
    contents = [f"writer {number}".encode() for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda content: store.create("key", content), contents))
    assert won.count(True) == 1
    assert store.read("key") == contents[won.index(True)]


@pytest.mark.parametrize("fault", [DROP_AFTER, BUSY_AFTER])
def test_a_create_whose_answer_is_lost_is_the_own_one(server, prefix, fault):
    faults = {"put": fault}
    with FaultProxy(server.port, lambda operation, path: faults.pop(operation, None)) as proxy:
        store = store_at(locate(server.url(prefix, proxy.port)))
        lost: list[bool] = []
        assert store.create("key", b"mine", lambda: lost.append(True))
        assert lost == [True], "the library repeated the request"
        assert not store.create("key", b"theirs")
        assert proxy.counts()["put"] == 3


def test_keys_with_special_characters_are_kept(store):
    for name in ("a b", "50%25", "ü", "x=1+1", "t%2Fx"):
        store.create(f"d/{name}", name.encode())
    assert {each.name for each in store.list_objects("d")} == {"a b", "50%25", "ü", "x=1+1", "t%2Fx"}
    assert store.read("d/50%25") == b"50%25"


@pytest.mark.long(seconds=5)
def test_a_listing_of_more_than_a_page_is_complete_and_its_deletion_too(store):
    names = [f"{number:04d}" for number in range(1003)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: store.create(f"d/{name}", b"x"), names))
    assert [each.name for each in store.list_objects("d")] == names
    assert store.list_children("") == ["d"]
    store.delete(f"d/{name}" for name in names)
    store.delete(["d/0000"])
    assert store.list_objects("d") == []


def test_a_checkpoint_is_created_committed_taken_over_and_swept(server, prefix):
    url = server.url(prefix)
    first = Coordinator(Checkpoint.open(url, fresh=True, key_groups=8))
    first.take_over()
    for _ in range(12):
        first.commit(first.begin(), EpochState())
    checkpoint = Checkpoint.open(url)
    assert checkpoint.key_groups == 8
    second = Coordinator(checkpoint)
    assert second.take_over().number == 14
    with pytest.raises(SupersededError):
        first.commit(first.begin(), EpochState())
    assert second.sweep().records == 6
    assert checkpoint.record_numbers() == list(range(7, 15))
    second.check_superseded()


def test_jobs_in_a_bucket_are_found_one_level_down_and_a_look_costs_few_requests(server, prefix):
    with FaultProxy(server.port) as proxy:
        url, options = server.url(prefix, proxy.port).split("?")
        for name in ("orders", "users"):
            play(f"{url}/{name}?{options}")
        jobs = WatchedJobs([f"{url}?{options}"])
        found = jobs.all()
        assert sorted(each.name for each in found) == ["orders", "users"]
        assert all(each.condition.runs for each in found)
        before = len(proxy.log)
        jobs.one(found[0].key)
        assert sum(proxy.counts(before).values()) <= 8
        assert set(proxy.counts(before)) == {"get", "list"}


def test_an_epoch_costs_one_put_and_two_looks_and_an_idle_driver_only_the_looks_every_two_seconds(
    server, prefix
):
    with FaultProxy(server.port) as proxy:
        driver = Coordinator(Checkpoint.open(server.url(prefix, proxy.port)), clock=lambda: 10**15)
        driver.take_over()
        before = len(proxy.log)
        for _ in range(10):
            driver.commit(driver.begin(), EpochState())
        assert proxy.counts(before) == {"put": 10, "head": 10, "get": 10}
        before = len(proxy.log)
        for _ in range(20):
            driver.check_superseded_while_idle()
        assert proxy.counts(before) == {"head": 1, "get": 1}


def test_an_emptied_checkpoint_stops_its_driver(server, prefix, store):
    driver = Coordinator(Checkpoint.open(server.url(prefix)))
    driver.take_over()
    driver.commit(driver.begin(), EpochState())
    store.delete(f"records/{each.name}" for each in store.list_objects("records"))
    with pytest.raises(CheckpointError, match="no longer contains record 2"):
        driver.commit(driver.begin(), EpochState())


def test_state_is_sealed_and_read_by_another_process_of_the_machine_without_a_request(server, prefix):
    with FaultProxy(server.port) as proxy:
        checkpoint = Checkpoint.open(server.url(prefix, proxy.port))
        state = StateStore.open(checkpoint.filesystem, checkpoint.state_folder, (), 0, 7, cache=RunCache())
        state.put(3, b"key", b"value" * 1000)
        runs = state.seal(RunName(1, 2, "nonce", "stage"))
        checkpoint.check_runs(runs)
        before = len(proxy.log)
        again = StateStore.open(checkpoint.filesystem, checkpoint.state_folder, runs, 0, 7, cache=RunCache())
        assert again.get(3, b"key") == b"value" * 1000
        assert len(proxy.log) == before
        checkpoint.filesystem.discard_copy(f"{checkpoint.state_folder}/{runs[0].name}")
        far = StateStore.open(checkpoint.filesystem, checkpoint.state_folder, runs, 0, 7, cache=RunCache())
        assert far.get(3, b"key") == b"value" * 1000
        assert proxy.counts(before) == {"get": 1}


def test_a_file_is_published_once_and_never_overwrites(server, prefix):
    output = store_of(server.url(prefix))
    output.check_writable()
    name = staged_name("sink", Attempt("job", 1, 2, "n"), 0)
    content = stage(output, name, [b"one\n", b"two\n"])
    publication = StagedFile(output.output, name, "t/h/file.jsonl", content.length, content.crc32, 2)
    assert publication.published().path == f"{server.kind.scheme}://{BUCKET}/{prefix}/t/h/file.jsonl"
    assert publish(output, publication)
    assert not publish(output, publication), "the second try finds it done"
    assert output.length("t/h/file.jsonl") == 8
    other = staged_name("sink", Attempt("job", 1, 3, "n"), 0)
    stage(output, other, [b"another\n"])
    with pytest.raises(OutputError, match="will not overwrite"):
        output.move(other, "t/h/file.jsonl")


def test_a_missing_bucket_is_not_taken_for_a_new_checkpoint_or_a_published_file(server, prefix):
    url = server.url(prefix).replace(f"//{BUCKET}/", "//no-such-bucket/")
    with pytest.raises(CheckpointError, match="404 Not Found, so the bucket is missing"):
        Checkpoint.open(url)
    name = staged_name("sink", Attempt("job", 1, 2, "n"), 0)
    with pytest.raises(OutputError):
        publish(store_of(url), StagedFile(url, name, "t/h/file.jsonl", 8, 0, 2))


def test_a_forked_child_gets_an_error_and_does_not_hang(server, prefix):
    program = f"""
import os, sys
from penstock.object_stores import locate, store_at
store = store_at(locate({server.url(prefix)!r}))
assert store.create("key", b"x")
if os.fork() == 0:
    try:
        store.read("key")
    except Exception as error:
        print(type(error).__name__, flush=True)
    os._exit(0)
os.wait()
assert store.read("key") == b"x"
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **server.environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout == "InvariantError\n"


def test_a_store_that_ignores_the_condition_of_a_put_is_refused(tmp_path, monkeypatch):
    for name, value in MOTO.environment.items():
        monkeypatch.setenv(name, value)
    # moto, because it does not check signatures: the proxy removes a header that is signed.
    with (
        MOTO.start(tmp_path) as running,
        FaultProxy(running.port, without_headers=("if-none-match",)) as proxy,
    ):
        refuses_to_overwrite(running.url("checkpoint", proxy.port))


if CAMPAIGN:

    def test_s3rver_which_ignores_the_condition_is_refused(tmp_path, monkeypatch):
        with S3RVER.start(tmp_path) as running:
            for name, value in running.environment.items():
                monkeypatch.setenv(name, value)
            refuses_to_overwrite(running.url("checkpoint"))


def refuses_to_overwrite(url: str) -> None:
    with pytest.raises(UnsuitableStoreError, match="it overwrote the object"):
        Checkpoint.open(url)
    with pytest.raises(UnsuitableStoreError, match="it overwrote the object"):
        store_of(url).check_writable()
