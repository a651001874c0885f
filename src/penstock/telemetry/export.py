"""Exporters of measurements: a Prometheus endpoint and OpenTelemetry's protocol. Needs the extra `telemetry`.

with exporters(["prometheus=127.0.0.1:9464", "otlp"]) as export:
    export(measurements)      # after each commit
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from penstock.errors import UsageError
from penstock.extras import extra_packages
from penstock.measurement import Measurement

Export = Callable[[Sequence[Measurement]], None]

LOOPBACK = "127.0.0.1"
PROMETHEUS_PORT = 9464
"""OpenTelemetry's default port for a Prometheus endpoint."""
OTLP_SECONDS = 5.0


@contextmanager
def exporters(wanted: Iterable[str]) -> Iterator[Export | None]:
    """Start exporters; yield a function that gives each of them measurements. None: nothing is wanted.

    A value is ``prometheus``, ``prometheus=HOST:PORT`` or ``otlp``. OTLP's endpoint, headers and the names of the
    service come from the variables OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME….

    Raises:
        UsageError: a value is unknown, or the port is in use.
    """
    with ExitStack() as stack:
        # All of them before the pipeline starts, so that a port in use is a mistake of the command and no failed run.
        exports = [stack.enter_context(_exporter(value)) for value in wanted]

        def export(measurements: Sequence[Measurement]) -> None:
            for export_one in exports:
                export_one(measurements)

        yield export if exports else None


def _exporter(wanted: str) -> Any:
    kind, _, address = wanted.partition("=")
    if kind == "prometheus":
        return _prometheus(*_address(address))
    if kind == "otlp" and not address:
        return _otlp()
    raise UsageError(
        f"metrics are exported to prometheus, prometheus=HOST:PORT or otlp, not {wanted!r}; the endpoint of otlp is in "
        "OTEL_EXPORTER_OTLP_ENDPOINT"
    )


def _address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not address:
        return LOOPBACK, PROMETHEUS_PORT
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"prometheus takes HOST:PORT, such as {LOOPBACK}:{PROMETHEUS_PORT}, not {address!r}")
    return host or LOOPBACK, int(port)


def collector(last: Callable[[], Sequence[Measurement]]) -> Any:
    """Return a collector for a registry of prometheus_client, which gives each scrape the measurements of `last`."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    # A collector and not prometheus_client's own metrics: those only grow from 0, and our counters continue where the
    # last driver of the checkpoint ended.
    class Collector:
        def collect(self) -> Iterator[Any]:
            for name, group in _by_name(last()).items():
                family = CounterMetricFamily if group[0].counts else GaugeMetricFamily
                metric = family(name, group[0].help, labels=[label for label, _ in group[0].labels])
                for measurement in group:
                    metric.add_metric([text for _, text in measurement.labels], measurement.value)
                yield metric

    return Collector()


@contextmanager
def _prometheus(host: str, port: int) -> Iterator[Export]:
    with extra_packages("telemetry"):
        from prometheus_client import CollectorRegistry, start_http_server
    # A list of one, which the export replaces in one assignment: scrapes come in threads of the server.
    last: list[Sequence[Measurement]] = [()]
    registry = CollectorRegistry()
    registry.register(collector(lambda: last[0]))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise UsageError(f"no metrics on {host}:{port}: {error.strerror}; choose another port") from None
    try:
        yield lambda measurements: last.__setitem__(0, tuple(measurements))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Instruments:
    """OpenTelemetry's instruments for measurements; each is made when its name comes first."""

    def __init__(self, meter: Any) -> None:
        self._meter = meter
        self._last: Mapping[str, list[Measurement]] = {}
        self._created: set[str] = set()

    def update(self, measurements: Iterable[Measurement]) -> None:
        """Make these measurements the ones that the next collection reads."""
        self._last = _by_name(measurements)  # one assignment, because a collection may run in another thread
        for name, group in self._last.items():
            # OpenTelemetry warns of an instrument that is created twice, and keeps the first.
            if name not in self._created:
                self._created.add(name)
                first, meter = group[0], self._meter
                make = meter.create_observable_counter if first.counts else meter.create_observable_gauge
                make(_dotted(name), [self._reader(name)], unit=first.unit, description=first.help)

    def _reader(self, name: str) -> Callable[[Any], Iterable[Any]]:
        from opentelemetry.metrics import Observation

        return lambda _: [Observation(m.value, dict(m.labels)) for m in self._last.get(name, ())]


@contextmanager
def _otlp() -> Iterator[Export]:
    with extra_packages("telemetry"):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    # No interval: each commit pushes, so that every point belongs to a commit.
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=math.inf)
    provider = MeterProvider([reader])
    instruments = Instruments(provider.get_meter("penstock"))
    pushing: list[threading.Thread] = []

    def export(measurements: Sequence[Measurement]) -> None:
        instruments.update(measurements)
        # Push in a thread: a collector that does not answer must not delay the driver's progress and signals. While one
        # push waits, no other begins. The push after it has the newest values.
        if not pushing or not pushing[0].is_alive():
            push = threading.Thread(target=provider.force_flush, args=(OTLP_SECONDS * 1000,), daemon=True)
            pushing[:] = [push]
            push.start()

    try:
        yield export
    finally:
        # An interval is needed: without one the reader collects nothing at its end, and the last push may be older than
        # the commit.
        provider.force_flush(OTLP_SECONDS * 1000)
        provider.shutdown(timeout_millis=OTLP_SECONDS * 1000)


def _dotted(name: str) -> str:
    """Return OpenTelemetry's form of a name: dots separate namespaces, and units are not part of it."""
    return name.replace("penstock_", "penstock.", 1)


def _by_name(measurements: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    groups: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        groups.setdefault(measurement.name, []).append(measurement)
    return groups
