"""Each alert fires in its time: by promtool with a clock of its own, and by Prometheus on what we export."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import yaml

from penstock.telemetry.export import exporters
from penstock_emulators.server_process import ServerProcess, free_port
from tests.support.sick_pipeline import export_sick_pipeline
from tests.support.waiting import wait_until
from tools import prometheus

pytestmark = [pytest.mark.prometheus, pytest.mark.long(seconds=5)]

RULES = Path(__file__).resolve().parents[3] / "docs" / "telemetry" / "alerts.yml"
OURS = {"job": "penstock", "instance": "orders:9464"}
SLOT = {**OURS, "slot": "s"}


def alert_names() -> set[str]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"] for rule in group["rules"]}


class Case(NamedTuple):
    """Series of one sample a minute. At `quiet_at` minutes no alert fires, at `fires_at` this one does.

    `keeps`: the labels of the alert beside job and instance.
    """

    alert: str
    series: dict[str, str]
    quiet_at: int
    fires_at: int
    severity: str = "warning"
    keeps: Mapping[str, str] = MappingProxyType({})


CASES = [
    Case("PenstockNotCommitting", {"last_commit_timestamp_seconds": "0x60"}, 6, 7, "critical"),
    Case("PenstockGone", {"last_commit_timestamp_seconds": "0+60x5 stale"}, 10, 11, "critical"),
    Case("PenstockRestarting", {"start_timestamp_seconds": "0+60x60"}, 3, 4),
    Case("PenstockBehind", {"watermark_timestamp_seconds": "0x60"}, 20, 21),
    Case(
        "PenstockTargetIncomplete",
        {'complete_until_timestamp_seconds{sink="Write"}': "0x60"},
        35,
        36,
        keeps={"sink": "Write"},
    ),
    Case("PenstockTableParked", {"parked_tables": "0 0 1x60"}, 1, 2),
    Case("PenstockTableBehind", {'table_lag_seconds{table="t"}': "900 901x60"}, 10, 11, keeps={"table": "t"}),
    Case("PenstockPartitionsRefused", {"longest_refusal_seconds": "0+60x60"}, 6, 7),
    Case(
        "PenstockSlotGrows",
        {'slot_retained_bytes{slot="s"}': "9000000000+1000000000x60"},
        11,
        12,
        keeps={"slot": "s"},
    ),
    # It fell below the limit, and does not rise: a snapshot that has ended.
    Case(
        "PenstockSlotNearLoss",
        {'slot_retained_bytes{slot="s"}': "3000x60", 'slot_safe_bytes{slot="s"}': "1000 1000 999x60"},
        2,
        3,
        "critical",
        {"slot": "s"},
    ),
    Case("PenstockSlotLost", {'slot_lost{slot="s"}': "0 0 1x60"}, 1, 2, "critical", {"slot": "s"}),
    Case(
        "PenstockNearRetention",
        {
            "watermark_timestamp_seconds": "0x60",
            'retention_seconds{stream="short"}': "1200x60",
            'retention_seconds{stream="long"}': "604800x60",
        },
        15,
        16,
        "critical",
    ),
    Case("PenstockDeadLetters", {"dead_letter_files": "0 0 1x60"}, 1, 2),
    Case("PenstockDeadLetters", {'dead_letters_total{component="staging"}': "5 5 6x60"}, 1, 2),
    Case(
        "PenstockDeadLettersOld",
        {"oldest_dead_letter_timestamp_seconds": "0x1500"},
        1440,
        1441,
        "critical",
    ),
]


def test_the_rules_are_valid() -> None:
    found = subprocess.run(
        [prometheus.find("promtool"), "check", "rules", "--lint=all", "--lint-fatal", str(RULES)],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_there_is_a_case_for_each_alert() -> None:
    assert {case.alert for case in CASES} == alert_names()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_each_alert_fires_after_its_time_and_not_before(case: Case, tmp_path: Path) -> None:
    expected = {"__name__": "ALERTS", "alertname": case.alert, "alertstate": "firing"}
    expected |= {"severity": case.severity, **OURS, **case.keeps}
    firing = f'ALERTS{{alertstate="firing", alertname="{case.alert}"}}'
    check(
        case.series,
        tmp_path,
        (firing, case.quiet_at, []),
        (firing, case.fires_at, [{"labels": _series("ALERTS", expected), "value": 1}]),
    )


def test_no_alert_is_pending_or_fires_for_a_pipeline_in_good_health(tmp_path: Path) -> None:
    health = {
        # A minute behind, and one start.
        **dict.fromkeys(("last_commit_timestamp_seconds", "watermark_timestamp_seconds"), "0 0+60x180"),
        'complete_until_timestamp_seconds{sink="Write"}': "0 0+60x180",
        "start_timestamp_seconds": "0x180",
        'table_lag_seconds{table="t"}': "1x180",
        "longest_refusal_seconds": "0x180",
        'slot_retained_bytes{slot="s"}': "1000000+1000000x180",
        'slot_safe_bytes{slot="s"}': "1000000000x180",
        'slot_lost{slot="s"}': "0x180",
        'retention_seconds{stream="s"}': "86400x180",
        "dead_letter_files": "0x180",
        'dead_letters_total{component="staging"}': "3x180",
    }
    check(health, tmp_path, *(("ALERTS", minute, []) for minute in (1, 30, 60, 180)))


def check(series: Mapping[str, str], folder: Path, *queries: tuple[str, int, list[Any]]) -> None:
    """Let promtool check queries (text, minute, samples) over series, whose names have no prefix here."""
    test = {
        "interval": "1m",
        "input_series": [
            {"series": _series(name, OURS), "values": values} for name, values in series.items()
        ],
        "promql_expr_test": [
            {"expr": text, "eval_time": f"{minute}m", "exp_samples": samples}
            for text, minute, samples in queries
        ],
    }
    file = folder / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [test]}))
    found = subprocess.run(
        [prometheus.find("promtool"), "test", "rules", str(file)], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout + found.stderr


def _series(name: str, labels: dict[str, str]) -> str:
    name, _, more = name.partition("{")
    texts = [f'{key}="{value}"' for key, value in labels.items() if key != "__name__"]
    prefix = "" if name == "ALERTS" else "penstock_"
    return f"{prefix}{name}{{{','.join([*filter(None, [more.rstrip('}')]), *texts])}}}"


# Prometheus itself, with what a sick pipeline exports.


@pytest.fixture
def rules_without_delay(tmp_path: Path) -> Path:
    """The rules without `for`, which the tests with promtool look at."""
    rules = yaml.safe_load(RULES.read_text())
    for rule in rules["groups"][0]["rules"]:
        rule.pop("for", None)
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump(rules))
    return file


def is_ready(port: int) -> bool:
    # It listens before it answers queries.
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=10):
            return True
    except urllib.error.URLError:
        return False


def test_each_alert_fires_on_what_a_sick_pipeline_exports(rules_without_delay: Path, tmp_path: Path) -> None:
    scraped, web = free_port(), free_port()
    config = {
        "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
        "rule_files": [str(rules_without_delay)],
        "scrape_configs": [
            {"job_name": "penstock", "static_configs": [{"targets": [f"127.0.0.1:{scraped}"]}]}
        ],
    }
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    command = [
        prometheus.find("prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{web}",
    ]
    log = tmp_path / "prometheus.log"
    server = ServerProcess(command, log)
    fired: dict[str, str] = {}

    def missing() -> set[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{web}/api/v1/alerts", timeout=10) as answer:
            alerts = json.load(answer)["data"]["alerts"]
        firing = [each for each in alerts if each["state"] == "firing"]
        fired.update({each["labels"]["alertname"]: " ".join(each["annotations"].values()) for each in firing})
        return alert_names() - fired.keys()

    try:
        wait_until(lambda: is_ready(web), lambda: f"Prometheus is not ready: {log.read_text()}")
        with exporters([f"prometheus={scraped}"]) as export:
            assert export is not None
            numbers = iter(range(1, 1_000_000))

            def while_it_runs() -> bool:
                export_sick_pipeline(export, next(numbers))
                return missing() <= {"PenstockGone"}

            wait_until(while_it_runs, lambda: f"{missing()} do not fire: {log.read_text()}", every=0.2)
            assert "PenstockGone" not in fired
        wait_until(lambda: not missing(), lambda: f"{missing()} do not fire: {log.read_text()}", every=0.2)
    finally:
        server.stop()
    # A template that cannot be expanded gives an error as its text.
    assert [text for text in fired.values() if "<error" in text] == []
