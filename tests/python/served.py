"""`trainmon serve` as a process, and runs for it to show."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
import urllib.parse

import numpy as np

import launch
from written_run import WrittenRank


class Server:
    """One `trainmon serve`; `address` is what it printed."""

    def __init__(self, run, *more, env=None):
        self.process = subprocess.Popen(
            [launch.command_line(), "serve", os.fspath(run), *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.address = self.process.stdout.readline().strip()
        if not self.address:
            raise AssertionError(self.process.stderr.read())
        parts = urllib.parse.urlsplit(self.address)
        self.port = parts.port
        self.token = parts.path.strip("/")

    def end(self, number=signal.SIGINT):
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def ask(self, path="/", method="GET", whole=None, body=None, **headers):
        """The answer and its body; `path` stands behind the token, `whole` is all of it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        target = f"/{self.token}{path}" if whole is None else whole
        connection.putrequest(method, target, skip_host="Host" in names, skip_accept_encoding=True)
        for name, value in names.items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer, content

    def status(self, *args, **more):
        return self.ask(*args, **more)[0].status

    def state(self, path="/", until=lambda state: True):
        """The state of a run, once it is what is waited for."""
        for _ in range(600):
            answer, content = self.ask(f"{path}state")
            if answer.status == 200 and until(json.loads(content)):
                return json.loads(content)
            time.sleep(0.1)
        raise AssertionError((answer.status, content))

    def page(self, path="/"):
        state = self.state(path, lambda state: state["page"] is not None)
        answer, content = self.ask(path)
        assert answer.status == 200
        assert state["page"].encode() in content
        return content

    def raw(self, request: bytes) -> bytes:
        with self.connect() as one:
            one.sendall(request)
            return received(one)


def received(one: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := one.recv(65536):
            parts.append(part)
    return b"".join(parts)


@contextlib.contextmanager
def serving(run, *more, **options):
    server = Server(run, *more, **options)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


def add_steps(rank, first, last, name="w", value=1.0):
    for step in range(first, last):
        rank.observe(np.full(3, value, np.float32), "grad_reduced", name, step)
        rank.monitor.add_scalar("loss", float(step))
        rank.end_step()


def written(out, steps=12, name="w", **more):
    rank = WrittenRank(out, **more)
    add_steps(rank, 0, steps, name)
    rank.stop()
    return out
