"""A receiver that decodes what comes with the official classes of OTLP."""

from __future__ import annotations

import http.server
import math
import signal
import threading
from collections import Counter

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from pushes import OF_NOW, Pusher, killed_again_and_again, push, same, take_steps, write


class Receiver:
    """Keeps every point: [(restart, name of the metric, attributes, nanoseconds, value)]."""

    def __init__(self, port=0):
        self.points, self.status, self.headers = [], 200, []
        self.answer = ExportMetricsServiceResponse()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.headers.append(dict(self.headers))
                if outer.status == 200 and not outer.answer.partial_success.rejected_data_points:
                    outer.take(ExportMetricsServiceRequest.FromString(body))
                self.send_response(outer.status)
                answer = outer.answer.SerializeToString()
                self.send_header("Content-Type", "application/x-protobuf")
                if outer.status // 100 == 3:
                    self.send_header("Location", "http://127.0.0.1:9/login")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, request):
        for resource in request.resource_metrics:
            of = {one.key: one.value for one in resource.resource.attributes}
            assert of["service.name"].string_value == "trainmon"
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    assert metric.WhichOneof("data") == "gauge"
                    for point in metric.gauge.data_points:
                        labels = {
                            one.key: one.value.string_value or one.value.int_value
                            for one in point.attributes
                        }
                        place = (of["trainmon.restart"].int_value, metric.name)
                        value = getattr(point, point.WhichOneof("value"))
                        self.points.append((*place, labels, point.time_unix_nano, value))

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    @property
    def environment(self):
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}"}

    def steps(self):
        """{(restart, step): {path: value}}; of a time the step is the value of last_step."""
        step_at = {
            (restart, time): int(value)
            for restart, name, _, time, value in self.points
            if name == "trainmon.last_step"
        }
        found = {}
        for restart, name, labels, time, value in self.points:
            if name == "trainmon.wrong":
                continue
            name = name.removeprefix("trainmon.")
            if name == "logged":
                path = labels["name"]
            else:
                parts = ["trainmon", name, labels.get("kind"), labels.get("name")]
                path = "/".join(part for part in parts if part)
            if "rank" in labels:
                path += f"/rank{labels['rank']}"
            found.setdefault((restart, step_at[restart, time]), {})[path] = value
        return found

    def most_copies(self):
        return max(
            Counter(
                (restart, name, *sorted(labels.items()), time)
                for restart, name, labels, time, _ in self.points
            ).values()
        )


def test_what_was_pushed_and_the_verdict(tmp_path):
    write(tmp_path / "run", bad=7).stop()
    receiver = Receiver()
    said = push(tmp_path / "run", "--to", "otlp", **receiver.environment)
    assert "30 steps sent" in said and "left out: none" in said
    assert same(receiver.steps(), tmp_path / "run") and receiver.most_copies() == 1
    assert math.isnan(receiver.steps()[0, 7]["trainmon/layer_norm/grad_reduced/layers.2"])
    (verdict,) = [labels for _, name, labels, *_ in receiver.points if name == "trainmon.wrong"]
    assert "step 7" in verdict["verdict"] and "layers.2.weight" in verdict["verdict"]
    count = len(receiver.points)
    assert "0 steps sent" in push(tmp_path / "run", "--to", "otlp", **receiver.environment)
    assert len(receiver.points) == count, "nothing twice, the verdict neither"
    receiver.close()


def test_killed_at_any_time_every_step_arrives(tmp_path):
    receiver = Receiver()
    killed_again_and_again(
        tmp_path / "run", "--to", "otlp", times=20, within=0.4, **receiver.environment
    )
    assert len(receiver.steps()) == 800 and same(receiver.steps(), tmp_path / "run")
    # A batch may come twice: the same points at the same times, with the same values.
    values = {}
    for restart, name, labels, time, value in receiver.points:
        if name.removeprefix("trainmon.") not in OF_NOW:
            place = (restart, name, *sorted(labels.items()), time)
            assert values.setdefault(place, value) == value
    receiver.close()


def test_a_receiver_that_goes_away_and_comes_back(tmp_path):
    rank = write(tmp_path / "run", steps=10)
    receiver = Receiver()
    pusher = Pusher(tmp_path / "run", ("--to", "otlp", "-f"), receiver.environment)
    assert rank.monitor.settle(10.0)
    pusher.wait_for(lambda: len(receiver.steps()) >= 9)
    receiver.close()
    before = receiver.points
    take_steps(rank, 10, 20)
    rank.stop()
    pusher.wait_for(lambda: pusher.has_said("did not take steps"))
    again = Receiver(receiver.port)
    pusher.wait_for(lambda: (0, 19) in again.steps())
    pusher.end(0 if not pusher.has_said("no further") else 3, signal.SIGINT)
    again.points = before + again.points
    assert same(again.steps(), tmp_path / "run") and again.most_copies() == 1
    again.close()


def test_a_damaged_run_gives_the_rest_and_says_so(tmp_path):
    rank = write(tmp_path / "run", steps=40)
    rank.stop()
    (segment,) = rank.directory.glob("*.tmlog")
    whole = segment.read_bytes()
    at = len(whole) // 2
    segment.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    receiver = Receiver()
    said = push(tmp_path / "run", "--to", "otlp", code=3, **receiver.environment)
    assert "not used: " in said and "Traceback" not in said
    assert len(receiver.steps()) >= 38 and (0, 39) in receiver.steps()
    receiver.close()


def test_a_receiver_that_refuses(tmp_path):
    write(tmp_path / "run", steps=3).stop()
    receiver = Receiver()
    receiver.status = 401
    environment = receiver.environment | {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=sesame1234"}
    said = push(tmp_path / "run", "--to", "otlp", code=3, **environment)
    assert receiver.headers[0]["authorization"] == "sesame1234" and "sesame" not in said
    assert said.count("did not take steps 0 to 2") == 5 and "no further try" in said
    assert "Traceback" not in said
    receiver.status = 200
    assert "3 steps sent" in push(tmp_path / "run", "--to", "otlp", **environment)
    assert same(receiver.steps(), tmp_path / "run")
    receiver.close()


def test_a_receiver_that_redirects_or_takes_a_part_has_taken_nothing(tmp_path):
    write(tmp_path / "run", steps=3).stop()
    receiver = Receiver()
    receiver.status = 302
    said = push(tmp_path / "run", "--to", "otlp", code=3, **receiver.environment)
    assert "did not take steps 0 to 2" in said and "302" in said
    receiver.status = 200
    receiver.answer.partial_success.rejected_data_points = 5
    receiver.answer.partial_success.error_message = "quota exceeded"
    said = push(tmp_path / "run", "--to", "otlp", code=3, **receiver.environment)
    assert "refused 5 points: quota exceeded" in said
    receiver.answer = ExportMetricsServiceResponse()
    assert "3 steps sent" in push(tmp_path / "run", "--to", "otlp", **receiver.environment)
    assert same(receiver.steps(), tmp_path / "run")
    receiver.close()
