"""The catalogue over one snapshot of the engine, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from tenure.core.info import EngineHealth, EngineInfo
from tenure.metrics.catalog import CATALOG, HEALTH, Kind, Metric, S

CONTENT_TYPE = CONTENT_TYPE_LATEST


class SnapshotCollector(Collector):
    """Yields the catalogue's metrics from one snapshot; keeps nothing between scrapes."""

    def __init__(self, info: EngineInfo | None, health: EngineHealth) -> None:
        self._info = info
        self._health = health

    def collect(self) -> Iterator[Family]:
        for metric in HEALTH:
            yield _family(metric, self._health)
        if self._info is not None:
            for metric in CATALOG:
                yield _family(metric, self._info)


def render(info: EngineInfo | None, health: EngineHealth) -> bytes:
    """The body of a scrape; its type is CONTENT_TYPE. `info` is None while the engine is away."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(info, health))
    return generate_latest(registry)


def _family(metric: Metric[S], source: S) -> Family:
    match metric.kind:
        case Kind.GAUGE:
            family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        case Kind.COUNTER:
            family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in metric.read(source):
        family.add_metric(labels, value)
    return family
