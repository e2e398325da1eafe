"""The catalogue over one engine snapshot, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from tenure.core.info import EngineInfo
from tenure.metrics.catalog import CATALOG, Kind, Metric

CONTENT_TYPE = CONTENT_TYPE_LATEST


class SnapshotCollector(Collector):
    """Yields the catalogue's metrics from one `EngineInfo`; keeps nothing between scrapes."""

    def __init__(self, info: EngineInfo) -> None:
        self._info = info

    def collect(self) -> Iterator[Family]:
        for metric in CATALOG:
            yield _family(metric, self._info)


def render(info: EngineInfo) -> bytes:
    """The body of a scrape; its type is CONTENT_TYPE."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(info))
    return generate_latest(registry)


def _family(metric: Metric, info: EngineInfo) -> Family:
    match metric.kind:
        case Kind.GAUGE:
            family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        case Kind.COUNTER:
            family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in metric.read(info):
        family.add_metric(labels, value)
    return family
