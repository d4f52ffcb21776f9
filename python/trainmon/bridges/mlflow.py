# To MLflow: one of its runs for each start, found again by a tag.
from __future__ import annotations

import hashlib
import re
from itertools import islice
from typing import Any

from trainmon.bridges.steps import Asked, Series, Step, Target, library

MOST_METRICS = 1000  # in one request
MOST_CHARACTERS = 250  # of a name
TAG = "trainmon.start"


def key_of(series: Series) -> str:
    """The path with what MLflow takes; what had to change ends with a digest of the path."""
    key = re.sub(r"[^\w.\- /]", "_", series.path)
    key = "/".join(part.strip(".") or "_" for part in key.split("/"))
    if key == series.path and len(key) <= MOST_CHARACTERS:
        return key
    return key[: MOST_CHARACTERS - 9] + "-" + hashlib.sha256(series.path.encode()).hexdigest()[:8]


class Bridge(Target):
    """MLflow keeps one of two metrics that are equal in key, step, time and value: whatever is sent
    again changes nothing."""

    def __init__(self, asked: Asked):
        self.asked = asked
        self.mlflow: Any = library("mlflow", "mlflow")
        self.client = self.mlflow.MlflowClient()
        self.run = self.start = ""
        self.keys: dict[Series, str] = {}

    def send(self, steps: list[Step]) -> None:
        for step in steps:
            self._open(step)
            metrics = iter(self._metrics(step))
            while part := list(islice(metrics, MOST_METRICS)):
                self.client.log_batch(self.run, metrics=part)

    def _metrics(self, step: Step) -> list[Any]:
        milliseconds = int(step.seconds * 1000)
        for series, _ in step.values:
            if series not in self.keys:
                self.keys[series] = key_of(series)
        return [
            self.mlflow.entities.Metric(self.keys[series], value, milliseconds, step.number)
            for series, value in step.values
        ]

    def _open(self, step: Step) -> None:
        if self.start == step.start:
            return
        self.close(True)
        experiment = self.client.get_experiment_by_name(self.asked.project)
        number = (
            experiment.experiment_id
            if experiment
            else self.client.create_experiment(self.asked.project)
        )
        found = self.client.search_runs([number], f"tags.`{TAG}` = '{step.start}'", max_results=1)
        tags = {TAG: step.start, "trainmon.restart": str(step.restart)}
        run = (
            found[0]
            if found
            else self.client.create_run(number, tags=tags, run_name=self.asked.name_of(step))
        )
        self.run, self.start = run.info.run_id, step.start

    def say_verdict(self, text: str, step: Step) -> None:
        self._open(step)
        self.client.set_tag(self.run, "trainmon.verdict", text)

    def close(self, is_over: bool) -> None:
        if self.run and is_over:
            self.client.set_terminated(self.run)
        self.run = self.start = ""
