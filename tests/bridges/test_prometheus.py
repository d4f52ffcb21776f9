"""A real Prometheus server scrapes the page, and is asked by its HTTP API."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request

import pytest
from pushes import Pusher, expected, free_port, take_steps, write

from written_run import WrittenRank


def fetch(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


@pytest.fixture
def server(tmp_path):
    """(its port, the port it scrapes)."""
    with free_port() as own, free_port() as page:
        pass
    program = shutil.which("prometheus")
    assert program, "apt-get install prometheus"
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 250ms}\nscrape_configs:\n- job_name: t\n"
        f"  static_configs: [{{targets: ['127.0.0.1:{page}']}}]\n"
    )
    process = subprocess.Popen(
        [
            program,
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/tsdb",
            f"--web.listen-address=127.0.0.1:{own}",
        ],
        stderr=subprocess.DEVNULL,
    )
    yield own, page
    process.terminate()
    process.wait(30)


def asked(port, query):
    """{labels: value} of a query."""
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    try:
        found = json.loads(fetch(url))["data"]["result"]
    except OSError:
        return {}
    ours = ("kind", "name", "rank", "verdict")
    return {
        tuple((k, one["metric"][k]) for k in ours if k in one["metric"]): float(one["value"][1])
        for one in found
    }


def test_a_server_sees_the_newest_values_and_a_restart(tmp_path, server):
    own, page = server
    run = tmp_path / "run"
    rank = write(run, steps=6, bad=3)
    assert rank.monitor.settle(10.0)
    pusher = Pusher(run, ("--to", "prometheus", "-f", "--port", str(page)), {})
    pusher.wait_for(lambda: asked(own, "trainmon_last_step").get(()) in (4.0, 5.0))
    take_steps(rank, 6, 9)
    rank.stop()
    pusher.wait_for(lambda: asked(own, "trainmon_last_step") == {(): 8.0})
    newest = expected(run)[0, 8]
    kind = ("kind", "grad_reduced")
    assert asked(own, "trainmon_logged") == {(("name", "loss"),): 1 / 9}
    assert asked(own, "trainmon_norm") == {(kind,): newest["trainmon/norm/grad_reduced"]}
    assert asked(own, "trainmon_layer_norm") == {
        (kind, ("name", layer)): newest[f"trainmon/layer_norm/grad_reduced/{layer}"]
        for layer in ("layers.1", "layers.2")
    }
    pusher.wait_for(lambda: asked(own, "trainmon_wrong"))
    ((((_, verdict),), value),) = asked(own, "trainmon_wrong").items()
    assert value == 1 and "step 3" in verdict and "layers.2.weight" in verdict
    again = WrittenRank(run)
    take_steps(again, 0, 3)
    again.stop()
    pusher.wait_for(lambda: asked(own, "trainmon_restart") == {(): 1.0})
    pusher.wait_for(lambda: asked(own, "trainmon_last_step") == {(): 2.0})
    pusher.end(0, signal.SIGINT)


def test_the_page_is_on_loopback_and_survives_odd_clients(tmp_path):
    rank = write(tmp_path / "run", steps=2)
    rank.monitor.add_scalar('a"b\\c\n{}', 1.0)
    rank.end_step()
    rank.stop()
    with free_port() as port:
        pass
    words = ("--to", "prometheus", "-f", "--port", str(port))
    pusher = Pusher(tmp_path / "run", words, {})

    def has_page():
        try:
            return "trainmon_last_step" in fetch(f"http://127.0.0.1:{port}/metrics")
        except OSError:
            return False

    pusher.wait_for(has_page)
    assert 'a\\"b' in fetch(f"http://127.0.0.1:{port}/metrics")
    other = Pusher(tmp_path / "run", words, {})  # there is no second one at this port
    assert f"--port {port}" in other.end(2)
    listening = subprocess.run(["ss", "-ltnH", f"sport = :{port}"], capture_output=True, text=True)
    if listening.returncode == 0 and listening.stdout:
        assert all("127.0.0.1:" in line for line in listening.stdout.splitlines())
    time.sleep(0.2)
    pusher.end(0, signal.SIGTERM)
