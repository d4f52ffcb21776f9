# To whatever takes OTLP over HTTP: gauges with the time at which a step ended.
from __future__ import annotations

import logging
from typing import Any

from trainmon import _core
from trainmon.bridges.steps import Asked, Series, Step, Target, library

PACKAGE = "opentelemetry-exporter-otlp-proto-http"
MOST_POINTS = 5000  # in one request


class LastError(logging.Handler):
    """The exporter says in its log why it failed, and in its result that it did."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


class LastAnswer:
    """What the receiver answered last. The exporter takes a redirect for success, follows none, and does
    not look at how many points the answer refuses."""

    def __init__(self) -> None:
        requests = library("requests", PACKAGE)
        self.session = requests.Session()
        self.session.hooks["response"].append(self._keep)
        messages = "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2"
        self._message = library(messages, PACKAGE).ExportMetricsServiceResponse
        self._last: Any = None

    def _keep(self, response: Any, *_: Any, **__: Any) -> None:
        self._last = response

    def fault(self) -> str:
        """Why the points were not taken; "" where they were."""
        answer, self._last = self._last, None
        if answer is None:
            return ""
        if not 200 <= answer.status_code < 300:
            return f"the receiver answered {answer.status_code} {answer.reason}"
        message = self._message()
        try:
            message.ParseFromString(answer.content)
        except Exception:  # a receiver may answer with anything: JSON, a page
            return ""
        refused = message.partial_success.rejected_data_points
        why = message.partial_success.error_message
        return f"the receiver refused {refused} points: {why}" if refused else ""


class Bridge(Target):
    """A point that is sent again has the same attributes and the same time: the same point."""

    def __init__(self, asked: Asked):
        self.asked = asked
        name = "opentelemetry.exporter.otlp.proto.http.metric_exporter"
        self.answer = LastAnswer()
        self.exporter = library(name, PACKAGE).OTLPMetricExporter(
            max_export_batch_size=MOST_POINTS, session=self.answer.session
        )
        self.export: Any = library("opentelemetry.sdk.metrics.export", PACKAGE)
        self.resources: Any = library("opentelemetry.sdk.resources", PACKAGE)
        self.scope = library("opentelemetry.sdk.util.instrumentation", PACKAGE)
        self.error = LastError()
        log = logging.getLogger("opentelemetry")
        log.addHandler(self.error)
        log.propagate = False

    def send(self, steps: list[Step]) -> None:
        starts = dict.fromkeys(step.start for step in steps)
        for start in starts:
            of_start = [step for step in steps if step.start == start]
            points: dict[str, list[Any]] = {}
            for step in of_start:
                for series, value in step.values:
                    point = self._point(series, value, step.seconds)
                    points.setdefault(self._name(series), []).append(point)
            self._export(of_start[-1], points)

    def say_verdict(self, text: str, step: Step) -> None:
        attributes = {"verdict": text}
        nanoseconds = int(step.seconds * 1e9)
        point = self.export.NumberDataPoint(attributes, 0, nanoseconds, 1)
        self._export(step, {"trainmon.wrong": [point]})

    def _name(self, series: Series) -> str:
        return f"trainmon.{series.name if series.family == 'own' else series.family}"

    def _point(self, series: Series, value: float, seconds: float) -> Any:
        attributes: dict[str, Any] = {}
        if series.family != "own":
            attributes = {k: v for k in ("kind", "name") if (v := getattr(series, k))}
        if series.rank >= 0:
            attributes["rank"] = series.rank
        return self.export.NumberDataPoint(attributes, 0, int(seconds * 1e9), value)

    def _export(self, step: Step, points: dict[str, list[Any]]) -> None:
        resource = self.resources.Resource.create(
            {
                "service.name": self.asked.project,
                "service.instance.id": step.start,
                "trainmon.run": self.asked.run,
                "trainmon.restart": step.restart,
            }
        )
        metrics = [
            self.export.Metric(name, "", "", self.export.Gauge(data_points=all_points))
            for name, all_points in points.items()
        ]
        scope = self.scope.InstrumentationScope("trainmon", _core.__version__)
        scopes = [self.export.ScopeMetrics(scope, metrics, "")]
        data = self.export.MetricsData([self.export.ResourceMetrics(resource, scopes, "")])
        if self.exporter.export(data) is not self.export.MetricExportResult.SUCCESS:
            raise ConnectionError(self.error.text or "the receiver did not take it")
        if fault := self.answer.fault():
            raise ConnectionError(fault)

    def close(self, is_over: bool) -> None:
        self.exporter.shutdown()
