# For Prometheus: a page on 127.0.0.1 with the newest values.
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainmon.bridges.steps import Asked, Series, Step, Target, library

HELP = {
    "own": "of the record itself",
    "logged": "what mon.log was given",
    "norm": "norm over all tensors of a rank",
    "layer_norm": "norm over the tensors of a layer",
    "tensor_norm": "norm of a tensor that was the worst of a step",
}


class Bridge(Target):
    newest_only = True

    def __init__(self, asked: Asked):
        self.asked = asked
        client: Any = library("prometheus_client", "prometheus_client")
        self.gauge = library("prometheus_client.core", "prometheus_client").GaugeMetricFamily
        self.values: dict[Series, float] = {}
        self.start = self.verdict = ""
        self.restart = 0
        registry = client.CollectorRegistry()
        registry.register(self)
        try:
            self.server, self.thread = client.start_http_server(
                asked.port, addr="127.0.0.1", registry=registry
            )
        except OSError as error:
            raise ValueError(f"--port {asked.port}: {error.strerror or error}") from None

    def send(self, steps: list[Step]) -> None:
        step = steps[-1]
        known = self.values if self.start == step.start else {}
        # A new dict: a page may be read meanwhile.
        self.values, self.start, self.restart = known | dict(step.values), step.start, step.restart

    def say_verdict(self, text: str, step: Step) -> None:
        self.verdict = text

    def collect(self) -> Iterator[Any]:
        """What a scrape finds, called by threads of the server."""
        gauge = self.gauge
        families: dict[str, Any] = {}
        for series, value in self.values.items():
            is_own = series.family == "own"
            name = f"trainmon_{series.name if is_own else series.family}"
            if name not in families:
                labels = ["run"] if is_own else ["run", "kind", "name", "rank"]
                families[name] = gauge(name, HELP[series.family], labels=labels)
            rank = "" if series.rank < 0 else str(series.rank)
            labels = [self.asked.run, series.kind, series.name, rank]
            families[name].add_metric(labels[:1] if is_own else labels, value)
        yield from families.values()
        restart = gauge("trainmon_restart", "which start of the run this is", labels=["run"])
        restart.add_metric([self.asked.run], self.restart)
        yield restart
        wrong = gauge("trainmon_wrong", "what diagnose says is wrong", labels=["run", "verdict"])
        if self.verdict:
            wrong.add_metric([self.asked.run, self.verdict], 1)
        yield wrong

    def close(self, is_over: bool) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
