"""A pipeline with checkpoint and output in an object store, through a proxy of faults, and with SIGKILLs.

The source is generated, so the expected output is known. The proxy and the client of each cloud look from outside.
`make long` runs S3. A campaign also runs Azure's emulator and our stand-in for Google Cloud Storage, with fewer kills.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock_emulators.oracle.kill import POLL_SECONDS, Run, python, session_members
from penstock_emulators.oracle.lines import Line, read_lines
from penstock_emulators.oracle.rules import counted
from tests.conftest import Campaign
from tests.integration.files.counting import PER_SECOND, expected
from tests.support.object_stores.bucket import Bucket, Watcher, bucket_of
from tests.support.object_stores.faults import FaultProxy, Faults
from tests.support.object_stores.servers import AZURITE, GCS, MOTO, VERSITYGW, RunningServer, Server

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=40)]

KEYS = 2
MOMENTS = {
    "at the take-over": ("put", "/checkpoint/records/", 1),
    "while staging": ("put", "/.penstock-staging/", 2),
    "at a commit": ("put", "/checkpoint/records/", 3),
    "while publishing": ("put", "/output/counts/", 2),
    # One request for several objects, so the path names none.
    "after publishing": ("delete", "", 3),
    "while state is sealed": ("put", "/checkpoint/state/", 3),
    "while looking for a newer driver": ("head", "/checkpoint/records/", 3),
}
"""Operation, part of the path, and which such request after the start."""


@dataclass
class Job:
    """The pipeline of a campaign, its server and its proxy."""

    root: Path
    server: RunningServer
    proxy: FaultProxy
    rounds: int = 0
    bucket: Bucket = field(init=False)

    def __post_init__(self) -> None:
        self.bucket = bucket_of(self.server)
        (self.root / "hooks").mkdir()

    def start(self) -> Run:
        self.rounds += 1
        places = [self.server.url(name, self.proxy.port) for name in ("output", "checkpoint")]
        command = python("tests.integration.files.counting", *places, str(self.root / "hooks"), str(KEYS))
        # More tries than usual: the proxy must not be stronger than a pipeline that is set up for such a network.
        return Run(
            [*command, "--epoch_retries=10"], log=self.root / "log", environment=self.server.environment
        )

    def wait_for(self, run: Run, moment: str, seconds: float) -> None:
        """Wait for a request that is sent after this call."""
        operation, part, nth = MOMENTS[moment]
        since, deadline = len(self.proxy.log), time.monotonic() + seconds
        while sum(r.operation == operation and part in r.path for r in self.proxy.log[since:]) < nth:
            assert run.alive(), f"the pipeline ended; {self.story()}"
            assert time.monotonic() < deadline, f"{moment} has not come within {seconds:g} s; {self.story()}"
            time.sleep(POLL_SECONDS)

    def story(self) -> str:
        """Return the last requests and the last lines of the log, for a failure."""
        requests = "\n".join(map(str, self.proxy.log[-12:]))
        return f"the last requests:\n{requests}\nthe log:\n{(self.root / 'log').read_text()[-3000:]}"

    def lines(self) -> list[Line]:
        return list(read_lines(self.bucket.download("output", self.root / "downloaded")))

    def end_soon(self) -> int:
        """Let each key end above every number that was read so far; return that number."""
        count = max((line.content["n"] for line in self.lines()), default=0) + 3 * PER_SECOND
        (self.root / "hooks" / "end.new").write_text(str(count))
        (self.root / "hooks" / "end.new").rename(self.root / "hooks" / "end")
        return count


def kill_a_worker(run: Run) -> int:
    """SIGKILL the newest of Spark's Python workers; return the number of killed processes."""
    workers = [pid for pid in sorted(session_members(run.process.pid)) if _is_worker(pid)]
    if workers:
        os.kill(workers[-1], signal.SIGKILL)
    return min(len(workers), 1)


def _is_worker(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return (
            b"penstock.runner.daemon" in command and b"daemon" in Path(f"/proc/{parent}/cmdline").read_bytes()
        )
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_faults_and_kills_on_s3_lose_nothing_and_double_nothing(tmp_path, campaign):
    run_with_faults(
        tmp_path, campaign, VERSITYGW if campaign.full else MOTO, campaign.size(2, 30), "object-store-faults"
    )


@pytest.mark.campaign
@pytest.mark.parametrize("kind", [AZURITE, GCS], ids=lambda kind: kind.name)
def test_faults_and_kills_on_azure_and_google_lose_nothing_and_double_nothing(tmp_path, campaign, kind):
    run_with_faults(tmp_path, campaign, kind, campaign.size(2, 9), f"object-store-faults-{kind.name}")


def run_with_faults(folder: Path, campaign: Campaign, kind: Server, kills: int, evidence: str) -> None:
    """One of three kills, here the second, hits only a worker; the others hit driver, JVM and workers at once."""
    rng = campaign.random("s3-faults")
    moments = list(MOMENTS)
    seconds = campaign.size(120, 300)
    killed: Counter[str] = Counter()
    share = 0.05 if campaign.full else 0.12
    with (
        kind.start(folder / "server") as server,
        FaultProxy(server.port, faults := Faults(campaign.seed, share)) as proxy,
        Watcher(bucket := bucket_of(server), "output") as watcher,
    ):
        job = Job(folder, server, proxy)
        run = job.start()
        try:
            for number in range(kills):
                moment = moments[(number * 3 + 2) % len(moments)]
                job.wait_for(run, moment, seconds)
                time.sleep(rng.choice([0.0, rng.random() / 5]))
                if number % 3 == 1:
                    killed["worker"] += kill_a_worker(run)
                else:
                    run.kill()
                    killed["all"] += 1
                    run = job.start()
            faults.on = campaign.full
            job.wait_for(run, "while publishing", seconds)
            count = job.end_soon()
            status = run.wait(seconds)
        finally:
            run.kill()
        lines = job.lines()
        uploads = bucket.unfinished_uploads()
        marks = [key for key in bucket.tags("output") if "/_complete/" in key]
    wrong = counted(lines, "key", "n", expected(KEYS, count))
    wrong += [
        f"{line.place}: state differs"
        for line in lines
        if line.content.get("seen", line.content["n"]) != line.content["n"]
    ]
    log = (folder / "log").read_text()
    campaign.record(
        evidence,
        server=kind.name,
        kills=dict(killed),
        starts=job.rounds,
        lines=len(lines),
        requests=dict(proxy.counts()),
        faults=dict(proxy.faults()),
        busiest_second=proxy.busiest_second(),
        wrong=wrong + watcher.wrong,
    )
    assert status == 0, log[-3000:]
    assert wrong == []
    assert watcher.wrong == []
    assert len(marks) == 1, marks  # the newest one, after the end
    assert sum(proxy.faults().values()) > 5
    assert proxy.busiest_second() < 400, "requests were repeated without pauses"
    assert uploads == proxy.counts()["multipart"] == 0
    assert "testsecret" not in log
