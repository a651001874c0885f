"""An OpenTelemetry receiver on loopback: OTLP over HTTP, decoded with OpenTelemetry's own protocol package.

with OtlpReceiver() as receiver:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
    ...
    receiver.pushes[-1].values[("penstock.epochs",)]
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from tests.support.http_service import HttpService, SilentHandler

Key = tuple[str, ...]
"""The name of a metric, then the values of its attributes."""


@dataclass(frozen=True)
class Push:
    """One request of an exporter: attributes of the resource, and the value of each point."""

    resource: dict[str, str]
    values: dict[Key, float] = field(default_factory=dict)
    counters: frozenset[str] = frozenset()
    """Names of the metrics that are monotonic, cumulative sums."""


class OtlpReceiver(HttpService):
    """Keeps every push in the order of arrival."""

    def __init__(self) -> None:
        self.pushes: list[Push] = []
        super().__init__(self._handler())

    def _handler(self) -> type[SilentHandler]:
        pushes = self.pushes

        class Handler(SilentHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path != "/v1/metrics" or self.headers["Content-Type"] != "application/x-protobuf":
                    self.send_error(404)
                    return
                pushes.extend(_pushes(ExportMetricsServiceRequest.FromString(body)))
                answer = ExportMetricsServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        return Handler


def _pushes(request: Any) -> Iterator[Push]:
    for of_resource in request.resource_metrics:
        values: dict[Key, float] = {}
        counters = set()
        for metric in (metric for scope in of_resource.scope_metrics for metric in scope.metrics):
            kind = metric.WhichOneof("data")
            data = getattr(metric, kind)
            # 2 is AGGREGATION_TEMPORALITY_CUMULATIVE.
            if kind == "sum" and data.is_monotonic and data.aggregation_temporality == 2:
                counters.add(metric.name)
            for point in data.data_points:
                key = (metric.name, *(each.value.string_value for each in point.attributes))
                values[key] = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
        resource = {each.key: each.value.string_value for each in of_resource.resource.attributes}
        yield Push(resource, values, frozenset(counters))
