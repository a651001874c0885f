"""A pipeline on a standalone cluster, with checkpoint and output on an S3 server, started by `penstock package`.

Driver and executors share no folder: the executors cannot see the driver's. The source is generated, so the expected
output is known, and Amazon's own client reads it.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.object_stores import locate, store_at
from penstock_emulators.oracle.kill import POLL_SECONDS, Run
from penstock_emulators.oracle.lines import read_lines
from penstock_emulators.oracle.rules import counted
from tests.conftest import CAMPAIGN
from tests.support.cluster.counting import PER_SECOND
from tests.support.cluster.standalone import CORES, StandaloneCluster, can_hide
from tests.support.object_stores.bucket import Bucket, Watcher
from tests.support.object_stores.faults import FaultProxy
from tests.support.object_stores.servers import MOTO, VERSITYGW, RunningServer
from tests.support.waiting import PATIENCE_SECONDS
from tools.environments import VERSIONS, install_command
from tools.matrix.__main__ import interpreter

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=45)]

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "tests" / "support" / "cluster" / "counting.py"
KEYS = 2
MOMENTS = {
    "while state is sealed": ("put", "/checkpoint/state/", 3),
    "while staging": ("put", "/.penstock-staging/", 2),
    "at a commit": ("put", "/checkpoint/records/", 3),
    "while publishing": ("put", "/output/counts/", 2),
}
"""Operation, part of the path, and which such request after the start."""

UNPACKED_STARTS = 10
"""One of so many starts in the campaign ships the packed environment; the others use it where it was made."""

SMALL = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    # A lost executor is noticed by its closed connection; this is for one that is only silent.
    "spark.network.timeout": "60s",
}
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.executorIdleTimeout": "3s",
    "spark.executor.cores": "1",
}


@dataclass
class Job:
    """The pipeline, its cluster, its server and the proxy that sees its requests."""

    root: Path
    cluster: StandaloneCluster
    server: RunningServer
    proxy: FaultProxy
    environment: Path | None = None
    settings: dict[str, str] = field(default_factory=dict)
    starts: int = 0

    def package(self, arguments: Sequence[str] = (), **settings: str) -> Path:
        """Make a bundle with `penstock package`; return the script with the command that it printed."""
        bundle = self.root / "driver" / f"bundle-{self.starts}"
        chosen = {**SMALL, **self.settings, **settings}
        if self.environment is None:  # every machine has this Python, with the checkout on its path
            place = ["--python", sys.executable]
            chosen = {"spark.executorEnv.PYTHONPATH": str(ROOT / "src"), **chosen}
        else:
            place = ["--environment", str(self.environment)]
            if self.starts % UNPACKED_STARTS:  # each executor needs half a minute to unpack the archive
                place = ["--python", str(self.environment / "bin" / "python")]
        for name in self.server.environment:
            # A reference: `penstock package` refuses a secret in clear. The shell of the submission has the value.
            chosen[f"spark.executorEnv.{name}"] = f"${{env:{name}}}"
        confs = [word for name, value in chosen.items() for word in ("--conf", f"{name}={value}")]
        places = [self.server.url(name, self.proxy.port) for name in ("output", "checkpoint", "control")]
        command = [sys.executable, "-m", "penstock.cli.main", "package", str(PROGRAM), "--into", str(bundle)]
        command += [
            *place,
            "--master",
            self.cluster.url,
            *confs,
            "--",
            *places,
            str(KEYS),
            "--epoch_retries=10",
        ]
        subprocess.run([*command, *arguments], check=True, capture_output=True, timeout=300)
        return bundle / "submit.sh"

    def start(self, arguments: Sequence[str] = (), **settings: str) -> Run:
        script = self.package(arguments, **settings)
        self.starts += 1
        return self.cluster.submit(["sh", str(script)], self.root / "driver" / "log", self.server.environment)

    def wait_for(self, run: Run, moment: str, seconds: float = 120.0) -> None:
        """Wait for a request that is sent after this call."""
        operation, part, nth = MOMENTS[moment]
        since, deadline = len(self.proxy.log), time.monotonic() + seconds
        while sum(r.operation == operation and part in r.path for r in self.proxy.log[since:]) < nth:
            assert run.alive(), f"the pipeline ended; {self.story()}"
            assert time.monotonic() < deadline, f"{moment} has not come within {seconds:g} s; {self.story()}"
            time.sleep(POLL_SECONDS)

    def story(self) -> str:
        return (self.root / "driver" / "log").read_text()[-4000:]

    def end_soon(self) -> int:
        """Let each key end above every number that was read so far; return that number."""
        lines = list(read_lines(Bucket(self.server.port).download("output", self.root / "early")))
        count = max((line.content["n"] for line in lines), default=0) + 3 * PER_SECOND
        location = locate(self.server.url("control"))
        assert not isinstance(location, str)
        store_at(location).create("end", str(count).encode())
        return count

    def wrong(self, count: int) -> list[str]:
        """Return every number that is lost, doubled or out of order, and every wrong state."""
        lines = list(read_lines(Bucket(self.server.port).download("output", self.root / "downloaded")))
        found: list[str] = counted(lines, "key", "n", {f"k{number}": count for number in range(KEYS)})
        return found + [f"{line.place}: state" for line in lines if line.content["seen"] != line.content["n"]]


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in MOTO.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with Penstock as a wheel, as users make one for `penstock package`."""
    folder = tmp_path_factory.mktemp("packed") / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=300)
    install = install_command(folder / "bin" / "python", *VERSIONS, f"{ROOT}[runner,s3]")
    subprocess.run(install, check=True, timeout=600)
    return folder


@pytest.fixture
def other_python(tmp_path: Path) -> Path:
    """An empty virtual environment of another version of Python; its name is the version."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = {version: interpreter(version) for version in ("3.12", "3.13", "3.11", "3.10") if version != own}
    version, program = next(((v, each) for v, each in found.items() if each), ("", None))
    assert program, (
        f"this test needs a Python of another version than {own}, as pythonX.Y on PATH or in pyenv"
    )
    subprocess.run([program, "-m", "venv", str(tmp_path / version)], check=True, timeout=300)
    return tmp_path / version


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    (tmp_path / "driver").mkdir()
    hidden = [tmp_path / "driver"]
    kind = VERSITYGW if CAMPAIGN else MOTO
    with (
        kind.start(tmp_path / "server") as server,
        FaultProxy(server.port) as proxy,
        StandaloneCluster(tmp_path / "cluster", hidden) as cluster,
    ):
        cluster.add_worker()
        cluster.add_worker()
        yield Job(tmp_path, cluster, server, proxy)


def test_a_worker_that_dies_in_an_epoch_is_replaced_and_nothing_is_lost_or_doubled(job: Job) -> None:
    assert can_hide(), (
        "this machine lets no process hide folders, so the driver's folder is not proven unshared"
    )
    run = job.start(**DYNAMIC)
    try:
        job.wait_for(run, "while state is sealed")
        assert job.cluster.kill_worker(job.cluster.workers[-1]) >= 2, "the worker had no executor"
        job.cluster.add_worker()
        job.wait_for(run, "while publishing")
        count = job.end_soon()
        assert run.wait(120) == 0, job.story()
    finally:
        run.kill()
    assert job.wrong(count) == []
    assert "testsecret" not in job.story()


if CAMPAIGN:

    def test_executors_with_other_packages_are_named_and_nothing_starts(job: Job) -> None:
        other = job.root / "other"
        (other / "penstock-9.9.dist-info").mkdir(parents=True)
        (other / "penstock-9.9.dist-info" / "METADATA").write_text("Name: penstock\nVersion: 9.9\n")
        path = f"{other}{os.pathsep}{ROOT / 'src'}"
        run = job.start(**{"spark.executorEnv.PYTHONPATH": path})
        assert run.wait(PATIENCE_SECONDS) != 0
        assert "has penstock 9.9, not " in job.story()
        assert "`penstock package` packs this environment" in job.story()
        assert not any("/records/" in request.path for request in job.proxy.log if request.operation == "put")

    def test_executors_without_penstock_are_named(job: Job) -> None:
        bare = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
        run = job.start(**{"spark.pyspark.python": str(bare), "spark.executorEnv.PYTHONPATH": str(job.root)})
        assert run.wait(PATIENCE_SECONDS) != 0
        assert "No module named" in job.story()
        assert "`penstock package` packs this environment" in job.story()

    @pytest.mark.parametrize("installed", [True, False], ids=["with penstock", "without penstock"])
    def test_executors_with_another_version_of_python_are_named(
        job: Job, other_python: Path, installed: bool
    ) -> None:
        """Installed or not, the driver says what is wrong and how to ship it, and commits nothing."""
        program = other_python / "bin" / "python"
        if installed:
            install = install_command(program, *VERSIONS, f"{ROOT}[runner,s3]")
            subprocess.run(install, check=True, timeout=600)
        # The folder has nothing that Python could import.
        run = job.start(
            **{"spark.pyspark.python": str(program), "spark.executorEnv.PYTHONPATH": str(job.root)}
        )
        assert run.wait(PATIENCE_SECONDS) != 0
        if installed:
            own, other = (f"{sys.version_info[0]}.{sys.version_info[1]}", other_python.name)
            assert f"run different Python versions ({other}, {own})" in job.story()
        else:
            assert "the workers' Python says \"No module named 'penstock'" in job.story()
        assert "`penstock package` packs this environment" in job.story()
        assert not any("/records/" in request.path for request in job.proxy.log if request.operation == "put")

    def test_of_two_drivers_on_one_prefix_the_newer_one_continues(job: Job, campaign) -> None:
        half = {"spark.cores.max": str(CORES)}  # the cluster has room for both
        older = job.start(**half)
        newer = None
        try:
            job.wait_for(older, "while publishing")
            newer = job.start(["--take_over"], **half)
            assert older.wait(120) == 1
            assert "another driver has taken over" in (job.root / "driver" / "log").read_text()
            job.wait_for(newer, "while publishing")
            count = job.end_soon()
            assert newer.wait(120) == 0, job.story()
        finally:
            older.kill()
            if newer is not None:
                newer.kill()
        wrong = job.wrong(count)
        campaign.record(
            "cluster-two-drivers",
            server=job.server.kind.name,
            lines=count * KEYS,
            starts=job.starts,
            wrong=wrong,
        )
        assert wrong == []

    def test_kills_of_every_process_of_a_cluster_lose_nothing_and_double_nothing(
        job: Job, packed: Path, campaign
    ) -> None:
        """Executors run a packed environment or the installed one; some starts have dynamic allocation."""
        job.environment = packed
        rng, kills, seconds = campaign.random("cluster-kills"), campaign.size(4, 30), 240.0
        victims = itertools.cycle(["executor", "driver", "worker", "all", "Python worker"])
        moments = list(MOMENTS)
        killed: Counter[str] = Counter()
        with Watcher(Bucket(job.server.port), "output") as watcher:
            run = job.start()
            try:
                for number, victim in zip(range(kills), victims, strict=False):
                    moment = moments[(number * 3) % len(moments)]
                    job.wait_for(run, moment, seconds)
                    time.sleep(rng.choice([0.0, rng.random() / 2]))
                    if victim in ("worker", "all"):
                        assert job.cluster.kill_worker(job.cluster.workers[0])
                        job.cluster.add_worker()
                        killed["worker"] += 1
                    elif victim == "executor":
                        killed[victim] += job.cluster.kill_executor()
                    elif victim == "Python worker":
                        killed[victim] += job.cluster.kill_python_worker()
                    if victim in ("driver", "all"):
                        run.kill()
                        killed["driver"] += 1
                        run = job.start(**(DYNAMIC if number % 3 == 0 else {}))
                job.wait_for(run, "while publishing", seconds)
                count = job.end_soon()
                status = run.wait(seconds)
            finally:
                run.kill()
        wrong = job.wrong(count)
        campaign.record(
            "cluster-kills",
            server=job.server.kind.name,
            kills=dict(killed),
            starts=job.starts,
            lines=count * KEYS,
            hidden_folders=can_hide(),
            python=str(packed.name),
            wrong=wrong + watcher.wrong,
        )
        assert status == 0, job.story()
        assert wrong == []
        assert watcher.wrong == []
        assert sum(killed.values()) >= kills
