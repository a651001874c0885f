"""Shared by all tests: one Spark session, the requirements of a machine, Hypothesis profiles, campaign sizes.

A test that needs Java *fails* if Java is missing, and tells how to get it. A skipped test would prove nothing and look
green.

A test that needs Google's emulators (marker `emulator`) fails too where PENSTOCK_REQUIRE_EMULATORS=1 or CI=true is set,
and in a campaign. Elsewhere such tests are left out if an emulator is missing, and the last lines of the run tell how
many and how to get the emulators. Tests in a browser (marker `browser`) and with Prometheus (marker `prometheus`) are
left out wherever it is missing.

`make test` keeps one representative of each promise. What shows the same promise once more, such as with another
service, sink, mode, seed, table format or dialect, or takes more than about four seconds of a core has the marker
`long`, except the only quick test of a promise: `make long` runs it, and CI does after `make test`. The marker
`long_cases` makes `long` of those parameters of a test that it names. The marker `campaign` is for what needs more time
than CI has: `make campaign` runs it. A command that names the file of such a test, or the test itself, runs it too.

`make check` runs tests/unit without the marker `slow`, which is for what takes more than a second.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from apache_beam.testing.test_stream import TestStream
from apache_beam.testing.test_stream_service import TestStreamServiceController
from hypothesis import HealthCheck, settings

from tests.support.beam_caches import cache_beam
from tools import browser, prometheus
from tools.evidence import EVIDENCE, commit, folder

CAMPAIGN = os.environ.get("PENSTOCK_CAMPAIGN", "") not in ("", "0")
LONG = os.environ.get("PENSTOCK_LONG", "") not in ("", "0")

# Their names begin with Test, but they are no tests; pytest would warn in each module that imports them.
TestStream.__test__ = False
TestStreamServiceController.__test__ = False

cache_beam()

# Until `pytest_collection` ends. The modules and the tests live as long as this process.
gc.disable()

settings.register_profile(
    "test", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "campaign", settings.get_profile("test"), derandomize=False, max_examples=2_000, print_blob=True
)
settings.load_profile("campaign" if CAMPAIGN else "test")


@dataclass(frozen=True, slots=True)
class Campaign:
    """The size of a test: a small part in `make test`, the full numbers in `make campaign`.

    All pseudo-random choices of a run start from `seed`; PENSTOCK_SEED replays a run.
    """

    full: bool
    seed: int
    evidence: Path

    def size(self, small: int, full: int) -> int:
        """Return the number of rounds."""
        return full if self.full else small

    def random(self, salt: str = "") -> random.Random:
        """Return a generator that depends only on the seed and `salt`."""
        return random.Random(f"{self.seed}/{salt}")

    def record(self, name: str, **figures: Any) -> None:
        """In a campaign, write `name`.json with commit, seed and figures."""
        if self.full:
            facts = {"commit": commit(), "seed": self.seed, "recorded": _now(), "figures": figures}
            self.evidence.mkdir(parents=True, exist_ok=True)
            (self.evidence / f"{name}.json").write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _seed() -> int:
    given = os.environ.get("PENSTOCK_SEED")
    return int(given) if given else (random.SystemRandom().randrange(1 << 31) if CAMPAIGN else 1)


_CAMPAIGN = Campaign(CAMPAIGN, _seed(), folder() if CAMPAIGN else EVIDENCE)


def pytest_report_header() -> str:
    kind = "campaign (full numbers)" if CAMPAIGN else "test"
    return f"penstock: {kind}, PENSTOCK_SEED={_CAMPAIGN.seed}"


@pytest.fixture(scope="session")
def campaign() -> Campaign:
    """The size and the seed of this run, and the folder of its evidence."""
    return _CAMPAIGN


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test as `long` if the marker `long_cases` has one of its parameters, as it is written in the test's id."""
    parameters = f"-{item.callspec.id}-" if hasattr(item, "callspec") else ""
    for marker in item.iter_markers("long_cases"):
        named = {case for case in marker.args if f"-{case}-" in parameters}
        if named:
            item.add_marker(pytest.mark.long(**marker.kwargs))
        key = item.nodeid.partition("[")[0], marker.args
        _MISSING_CASES[key] = _MISSING_CASES.get(key, set(marker.args)) - named


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse a marker `long_cases` that names a parameter which its test does not have."""
    # A command that names one case collects no others.
    is_whole = not any("::" in str(each) for each in session.config.args)
    missing = {test: cases for (test, _), cases in _MISSING_CASES.items() if cases}
    if is_whole and missing:
        raise pytest.UsageError(f"long_cases has parameters that no case has: {missing}")


_MISSING_CASES: dict[tuple[str, tuple[str, ...]], set[str]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Keep what was collected out of later garbage collections, and collect seldom.

    Each full collection would look at Beam's modules and at thousands of tests again: a tenth of the CPU time of a run.
    """
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, 10, 10)
        gc.enable()


_OBJECTS_BETWEEN_COLLECTIONS = 20_000


# Last, so that the count has only tests that the options -m and -k select.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what another target runs and what this machine cannot run, and sort the others."""
    if not CAMPAIGN:
        named = {
            (config.invocation_params.dir / str(each).partition("::")[0]).resolve() for each in config.args
        }
        left_out = [
            item for item in items if _is_of_another_target(item) and item.path.resolve() not in named
        ]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    config.stash[_LEFT_OUT] = {}
    for marker, missing in _SERVERS.items():
        needy = [item for item in items if item.get_closest_marker(marker)]
        # These are packages of the system, which CI may not install.
        required = _emulators_required() and marker not in ("browser", "prometheus")
        if needy and not required and missing():
            config.hook.pytest_deselected(items=needy)
            items[:] = [item for item in items if not item.get_closest_marker(marker)]
            config.stash[_LEFT_OUT][marker] = len(needy)
    items.sort(key=_place_in_the_run)


def _is_of_another_target(item: pytest.Item) -> bool:
    """`make test` runs what has neither marker, `make long` what has `long` alone."""
    return bool(item.get_closest_marker("campaign")) or bool(item.get_closest_marker("long")) != LONG


def _place_in_the_run(item: pytest.Item) -> tuple[int, int]:
    """Quick tests come first, so that failures show early. Of the slow ones the longest come first: one at the end
    would run alone, while the other core has nothing to do.
    """
    slow = item.get_closest_marker("long") or item.get_closest_marker("slow")
    if slow is None:
        return 0, sum(weight for name, weight in _WEIGHTS if item.get_closest_marker(name))
    return 1, -int(slow.kwargs.get("seconds", 0))


_WEIGHTS = (("spark", 1), ("emulator", 2), ("kafka", 2), ("pubsub", 2))
_LEFT_OUT = pytest.StashKey[dict[str, int]]()


def _emulators_required() -> bool:
    """Tell whether a missing emulator is an error."""
    names = ("PENSTOCK_REQUIRE_EMULATORS", "CI")
    return CAMPAIGN or any(os.environ.get(name, "") not in ("", "0", "false") for name in names)


def pytest_sessionfinish(session: pytest.Session) -> None:
    # With xdist only the workers collect, so each sends its count to the process that prints. All counts are equal.
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(_LEFT_OUT, {})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # A worker that crashed has no output.
    if count := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[_LEFT_OUT] = count


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for marker, count in config.stash.get(_LEFT_OUT, {}).items():
        terminalreporter.write_line(f"Left out: {count} tests that need {_REMEDIES[marker]}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, missing in (("spark", _missing_spark), *_SERVERS.items()):
        if item.get_closest_marker(marker) and (remedy := missing()):
            pytest.fail(f"this test needs {marker}: {remedy}", pytrace=False)


def _missing_spark() -> str | None:
    """Set JAVA_HOME and return None, or return how to get Java."""
    from penstock.runner.spark.java import JavaNotFoundError, find_java

    try:
        os.environ["JAVA_HOME"] = find_java().home
    except JavaNotFoundError as error:
        return str(error)
    return None


def _missing_emulator() -> str | None:
    from penstock_emulators import bigtable as bigtable
    from penstock_emulators import spanner as spanner

    try:
        spanner.find_binary()
        bigtable.find_binary()
    except (spanner.EmulatorNotFoundError, bigtable.EmulatorNotFoundError) as error:
        return str(error)
    return None


def _missing_kafka() -> str | None:
    from penstock_emulators import kafka

    try:
        kafka.find_java()
        kafka.find_jars()
    except kafka.EmulatorNotFoundError as error:
        return str(error)
    return None


def _missing_pubsub() -> str | None:
    from penstock_emulators import kafka, pubsub

    try:
        kafka.find_java()
        pubsub.find_jar()
    except kafka.EmulatorNotFoundError as error:
        return str(error)
    return None


def _missing_bigquery() -> str | None:
    from penstock_emulators import bigquery

    try:
        # Half a gigabyte: only where tests of emulators are wanted, they install it.
        bigquery.find_python(install=_emulators_required())
    except bigquery.EmulatorNotFoundError as error:
        return str(error)
    return None


def _missing_browser() -> str | None:
    try:
        browser.find()
    except browser.BrowserNotFoundError as error:
        return str(error)
    return None


def _missing_prometheus() -> str | None:
    try:
        prometheus.find("promtool")
    except prometheus.PrometheusNotFoundError as error:
        return str(error)
    return None


_SERVERS = {
    "browser": _missing_browser,
    "prometheus": _missing_prometheus,
    "emulator": _missing_emulator,
    "kafka": _missing_kafka,
    "pubsub": _missing_pubsub,
    "bigquery": _missing_bigquery,
}
"""Markers of tests that need a program which pip does not bring, and what says how to get it."""

_REMEDIES = {
    "prometheus": "Prometheus. To get it, run `python -m tools.prometheus` (Debian, no root).",
    "browser": "a browser. To run them, install Chromium; on Debian as root `python -m tools.browser` does it.",
    "emulator": "Google's Spanner and Bigtable emulators. To run them, install the Google Cloud SDK and run "
    "`gcloud components install cloud-spanner-emulator bigtable` (docs/install.md).",
    "kafka": "a Kafka broker. To run them, install Maven (`mvn`), which downloads it from Maven Central.",
    "bigquery": "an emulator of BigQuery. To install it, run "
    "`python -c 'from penstock_emulators import bigquery; bigquery.find_python()'` (half a gigabyte).",
    "pubsub": "Google's Pub/Sub emulator. To run them, run `gcloud components install pubsub-emulator`.",
}


SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "penstock.runner.daemon",
    # A loaded machine: a late heartbeat or a slow worker start is no reason to fail a test.
    "spark.network.timeout": "600s",
    "spark.executor.heartbeatInterval": "60s",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Spark session for the whole run: `local[2,4]`, so that Spark tries the task of a killed worker again."""
    from pyspark.sql import SparkSession

    from tests.support.spark_jvm import jvm_options

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2,4]").appName("penstock-tests")
    for name, value in SPARK_SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.driver.extraJavaOptions", jvm_options())
    builder = builder.config("spark.local.dir", str(tmp_path_factory.mktemp("spark")))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
