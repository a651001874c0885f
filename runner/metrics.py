"""Beam metrics: at each commit the monitoring infos of the tasks are merged into the pipeline's.

Metrics of a failed epoch are discarded with it. Users' metrics are stored in the commit record, so that they continue
after a restart. Beam's own metrics (element counts and times of PCollections, named by build order) are kept in a
`MetricsAccumulator` as long as the driver runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from apache_beam import coders
from apache_beam.metrics import monitoring_infos
from apache_beam.metrics.cells import BoundedTrieData
from apache_beam.metrics.execution import MetricResult
from apache_beam.metrics.metric import MetricResults
from apache_beam.portability.api import metrics_pb2
from apache_beam.runners.portability import portable_metrics

from penstock.table_times import MOST_TABLES, NAMESPACE_PREFIX, OTHER, named_tables

_Info: TypeAlias = metrics_pb2.MonitoringInfo

_STEP, _NAMESPACE, _NAME = (
    monitoring_infos.PTRANSFORM_LABEL,
    monitoring_infos.NAMESPACE_LABEL,
    monitoring_infos.NAME_LABEL,
)
_MERGE_AT = 10_000
"""Number of infos at which the accumulator merges them, to limit its memory."""


def merged(infos: Iterable[_Info]) -> list[_Info]:
    """Merge infos with the same key: add sums and distributions, keep the latest gauge, unite sets and tries."""
    by_key: dict[Any, _Info] = {}
    for info in infos:
        key = monitoring_infos.to_key(info)
        known = by_key.get(key)
        by_key[key] = info if known is None else _merge(known, info)
    return list(by_key.values())


def within_table_limit(infos: Iterable[_Info]) -> list[_Info]:
    """Rename the gauges of tables above the limit of `penstock.table_times`, so that `merged` makes one of them."""
    found = list(infos)
    tables: dict[tuple[str, str], set[str]] = {}
    for info in found:
        if (namespace := info.labels.get(_NAMESPACE, "")).startswith(NAMESPACE_PREFIX):
            tables.setdefault((info.labels.get(_STEP, ""), namespace), set()).add(info.labels[_NAME])
    named = {key: named_tables(names) for key, names in tables.items() if len(names) > MOST_TABLES}
    return [_as_other(info, named) for info in found] if named else found


def _as_other(info: _Info, named: Mapping[tuple[str, str], frozenset[str]]) -> _Info:
    names = named.get((info.labels.get(_STEP, ""), info.labels.get(_NAMESPACE, "")))
    if names is None or info.labels[_NAME] in names:
        return info
    made = _Info()
    made.CopyFrom(info)
    made.labels[_NAME] = OTHER
    return made


def user_metrics(infos: Iterable[bytes]) -> Iterable[_Info]:
    """Return the infos that users' code made; the commit record stores them."""
    return filter(monitoring_infos.is_user_monitoring_info, deserialized(infos))


def serialized(infos: Iterable[_Info]) -> tuple[bytes, ...]:
    """Return infos as a commit record stores them: equal infos give equal bytes in the same order."""
    # Labels are a map, and protobuf may write the entries of a map in any order.
    return tuple(sorted(info.SerializeToString(deterministic=True) for info in infos))


def deserialized(infos: Iterable[bytes]) -> list[_Info]:
    """The inverse of `serialized`."""
    return [_Info.FromString(info) for info in infos]


class MetricsAccumulator:
    """The infos of all tasks of the epochs that this driver committed. Thread-safe."""

    def __init__(self) -> None:
        self._infos: list[bytes] = []
        self._lock = threading.Lock()

    def add(self, serialised: Iterable[bytes]) -> None:
        """Add the infos of the tasks of an epoch."""
        with self._lock:
            self._infos.extend(serialised)
            if len(self._infos) > _MERGE_AT:
                self._infos = [info.SerializeToString() for info in self._merged()]

    def merged(self) -> list[_Info]:
        """Return all infos, merged to one per key."""
        with self._lock:
            return self._merged()

    def _merged(self) -> list[_Info]:
        return merged(_Info.FromString(data) for data in self._infos)


class Metrics(MetricResults):
    """Committed metrics with Beam's query interface: users' metrics, or all."""

    def __init__(self, infos: Iterable[_Info], *, users_only: bool = True) -> None:
        self._infos = list(infos)
        self._groups = portable_metrics.from_monitoring_infos(self._infos, user_metrics_only=users_only)

    def monitoring_infos(self) -> list[_Info]:
        """The infos themselves."""
        return self._infos

    def query(self, filter: Any = None) -> dict[str, list[MetricResult]]:
        """Return committed values. Attempted values are the same, since a failed epoch counts nothing."""
        names = (self.COUNTERS, self.DISTRIBUTIONS, self.GAUGES, self.STRINGSETS, self.BOUNDED_TRIES)
        return {
            name: [MetricResult(key, v, v) for key, v in group.items() if self.matches(filter, key)]
            for name, group in zip(names, self._groups, strict=True)
        }


def _merge(a: _Info, b: _Info) -> _Info:
    combine = _COMBINERS.get(a.type)
    if combine is None:
        return b
    made = _Info()
    made.CopyFrom(a)
    made.payload = combine(a.payload, b.payload)
    return made


def _later_gauge(a: bytes, b: bytes) -> bytes:
    # A gauge is its time and its value, both var-ints. The later time wins, because reports of tasks have no order.
    return max(a, b, key=lambda payload: coders.VarIntCoder().get_impl().decode(payload[: _varint(payload)]))


def _varint(payload: bytes) -> int:
    return next(i for i, byte in enumerate(payload) if byte < 128) + 1


def _union(a: bytes, b: bytes) -> bytes:
    coder = coders.IterableCoder(coders.StrUtf8Coder())
    return bytes(coder.encode(sorted({*coder.decode(a), *coder.decode(b)})))


def _joined_tries(a: bytes, b: bytes) -> bytes:
    first, second = (BoundedTrieData.from_proto(metrics_pb2.BoundedTrie.FromString(each)) for each in (a, b))
    return bytes(first.combine(second).to_proto().SerializeToString(deterministic=True))


_COMBINERS: dict[str, Callable[[bytes, bytes], bytes]] = {
    monitoring_infos.SUM_INT64_TYPE: monitoring_infos.sum_payload_combiner,
    monitoring_infos.DISTRIBUTION_INT64_TYPE: monitoring_infos.distribution_payload_combiner,
    monitoring_infos.LATEST_INT64_TYPE: _later_gauge,
    monitoring_infos.STRING_SET_TYPE: _union,
    monitoring_infos.BOUNDED_TRIE_TYPE: _joined_tries,
}
