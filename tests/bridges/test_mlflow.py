"""MLflow's own SQLite store, read through its client."""

from __future__ import annotations

from collections import Counter

import mlflow
import numpy as np
from pushes import killed_again_and_again, push, same, write, write_restarted

from trainmon.bridges.mlflow import key_of
from trainmon.bridges.steps import Series
from written_run import WrittenRank


def store_of(folder):
    return f"sqlite:///{folder}/mlflow.db"


def runs_of(folder):
    client = mlflow.MlflowClient(store_of(folder))
    experiment = client.get_experiment_by_name("trainmon")
    return client, client.search_runs([experiment.experiment_id])


def steps_of(folder):
    """{(restart, step): {path: value}}, and how often the same key and step is there at most."""
    client, runs = runs_of(folder)
    found, copies = {}, Counter()
    for run in runs:
        restart = int(run.data.tags["trainmon.restart"])
        for key in run.data.metrics:
            for metric in client.get_metric_history(run.info.run_id, key):
                found.setdefault((restart, metric.step), {})[key] = metric.value
                if not key.startswith("trainmon/lag"):
                    copies[restart, key, metric.step] += 1
    return found, max(copies.values())


def test_what_was_pushed_and_the_verdict(tmp_path):
    run = tmp_path / "run"
    write_restarted(run)
    environment = {"MLFLOW_TRACKING_URI": store_of(tmp_path)}
    assert "18 steps sent" in push(run, "--to", "mlflow", **environment)
    found, copies = steps_of(tmp_path)
    assert copies == 1 and same(found, run)
    _, runs = runs_of(tmp_path)
    assert {one.info.run_name for one in runs} == {"run", "run restart 1"}
    assert {one.info.status for one in runs} == {"FINISHED"}
    (verdict,) = {v for r in runs if (v := r.data.tags.get("trainmon.verdict"))}
    assert "step 7" in verdict and "layers.2.weight" in verdict
    assert "0 steps sent" in push(run, "--to", "mlflow", **environment)
    # Without the position all comes again, and nothing is there twice.
    push(run, "--to", "mlflow", "--state", tmp_path / "other", **environment)
    found, copies = steps_of(tmp_path)
    assert copies == 1 and same(found, run) and len(runs_of(tmp_path)[1]) == 2


def test_killed_at_any_time_every_step_is_there_once(tmp_path):
    environment = {"MLFLOW_TRACKING_URI": store_of(tmp_path)}
    killed_again_and_again(tmp_path / "run", "--to", "mlflow", times=4, within=4.0, **environment)
    found, copies = steps_of(tmp_path)
    assert len(found) == 160 and copies == 1 and same(found, tmp_path / "run")


def test_names_that_it_does_not_take(tmp_path):
    rank = WrittenRank(tmp_path / "run")
    names = ["a\x1b", "a:b", "损失", "a//b", "../c", "x" * 400, "a?", "a!"]
    for _ in range(2):
        for value, name in enumerate(names):
            rank.monitor.add_scalar(name, float(value))
        rank.monitor.add_scalar("inf", np.inf)
        rank.end_step()
    rank.stop()
    push(tmp_path / "run", "--to", "mlflow", MLFLOW_TRACKING_URI=store_of(tmp_path))
    found, _ = steps_of(tmp_path)
    for value, name in enumerate(names):
        path = name.replace("\x1b", "\\x1B")
        keys = {key_of(Series("logged", "", p, -1, p)) for p in (path, path.lower())}
        assert any(found[0, 1].get(key) == value for key in keys), name
    assert found[0, 1]["inf"] > 1e300


def test_a_store_that_does_not_answer(tmp_path):
    write(tmp_path / "run", steps=3).stop()
    environment = {
        "MLFLOW_TRACKING_URI": "http://user:hunter22@127.0.0.1:9",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    }
    said = push(tmp_path / "run", "--to", "mlflow", code=3, **environment)
    assert said.count("did not take steps 0 to 2") == 5 and "hunter22" not in said
    assert "Traceback" not in said
