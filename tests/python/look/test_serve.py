"""`trainmon serve`: who may ask and what is answered, over real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.parse

import pytest

import launch
from served import Server, add_steps, received, serving, written
from test_report import Page
from written_run import WrittenRank

MARKUP = "<script>alert(1)</script>"
MOST_CONNECTIONS = 64


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    parent = tmp_path_factory.mktemp("runs")
    for name in ("a", "b b", MARKUP.replace("/", ":"), "100%"):
        written(parent / name)
    (parent / "secret.txt").write_text("secret")
    (parent / "folder").mkdir()
    (parent / "folder" / "secret.txt").write_text("secret")
    with serving(parent) as one:
        one.page("/a/")
        yield one


# --- who may ask ------------------------------------------------------------------------------


def test_without_the_token_there_is_nothing(server):
    token = server.token
    assert len(token) == 32 and set(token) <= set("0123456789abcdef")
    _, expected = server.ask(whole="/")
    for target in (
        "/", "/a/", f"/{token[:-1]}/", f"/{token}0/", f"/{token[:-1]}g/", f"/{token.upper()}x/",
        f"//{token}/", f"/a/{token}/", f"/?{token}", f"/{'0' * 32}/", f"/{'0' * 4000}/", "/favicon.ico",
        f"/%{ord(token[0]):02x}{token[1:]}/",
    ):  # fmt: skip
        answer, content = server.ask(whole=target)
        assert (answer.status, content) == (404, expected), target
    assert server.status() == 200


def test_two_servers_have_two_tokens(server, tmp_path):
    with serving(written(tmp_path / "run")) as other:
        assert other.token != server.token


def test_the_host_is_this_machine(server):
    for host in ("127.0.0.1", "localhost", "LOCALHOST:1", "[::1]:8600", f"127.0.0.1:{server.port}"):
        assert server.status(Host=host) == 200, host
    for host in (
        "evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", "10.0.0.1", "", "[::1", "localhost.",
        "127.evil.example", f"evil.example@127.0.0.1:{server.port}", "[evil.example]", "::1", socket.gethostname() + "x",
        f"127.0.0.1:{server.port}@evil.example", f"127.0.0.1:{server.port}, evil.example", "[::1]x",
    ):  # fmt: skip
        assert server.status(Host=host) == 403, host
    path = f"/{server.token}/".encode()
    assert server.raw(b"GET " + path + b" HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 403 ")
    twice = b" HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    assert server.raw(b"GET " + path + twice).startswith(b"HTTP/1.1 400 ")


def test_no_page_of_somebody_else_may_ask(server):
    own = f"http://127.0.0.1:{server.port}"
    assert server.status(Origin=own) == 200
    for origin in (
        "null", "http://evil.example", "https" + own[4:], own[:-1], f"http://localhost:{server.port}", own + ".evil.example",
    ):  # fmt: skip
        assert server.status(Origin=origin) == 403, origin


def test_on_all_addresses_names_of_others_stay_out(tmp_path):
    with serving(written(tmp_path / "run"), "--host", "0.0.0.0") as server:
        assert urllib.parse.urlsplit(server.address).hostname == socket.gethostname().lower()
        for host in ("127.0.0.1", "10.1.2.3:80", "[fe80::1]", "localhost", socket.gethostname()):
            assert server.status(Host=host) == 200, host
        for host in ("evil.example", "10.1.2.3.evil.example", ""):
            assert server.status(Host=host) == 403, host
        code, _, err = server.end()
        assert code == 0 and "everybody who reaches this machine" in err


def test_only_reading(server):
    for method in (
        "POST",
        "PUT",
        "DELETE",
        "PATCH",
        "OPTIONS",
        "TRACE",
        "CONNECT",
        "PROPFIND",
        "get",
        "X",
    ):
        answer, _ = server.ask("/a/", method)
        assert answer.status == 405 and answer.headers["Allow"] == "GET, HEAD", method
    for path in ("/", "/a/", "/a/state"):
        answer, content = server.ask(path)
        head, nothing = server.ask(path, "HEAD")
        assert head.status == 200 and nothing == b""
        assert head.headers["Content-Length"] == str(len(content))
    assert server.status(body=b"x") == 413
    assert server.status(method="POST", body=b"x" * 1000) == 413
    chunked = f"GET /{server.token}/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert server.raw(chunked.encode()).startswith(b"HTTP/1.1 413 ")


def test_no_path_leaves_the_runs(server):
    paths = [
        "/../../etc/passwd", "/..", "/../", "/../secret.txt", "/%2e%2e/", "/%2e%2e%2fsecret.txt", "/..%2f..%2fetc/passwd",
        "/a/../secret.txt", "/a/..", "/a/../", "/a/%2e%2e/", "/a/..%2fsecret.txt", "/a/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/secret.txt", "/secret.txt/", "/folder/", "/folder/secret.txt", "/folder/state", "/a/rank_00000/", "/a/state/",
        "/a/rank_00000/restart_0000/run.json", "/a//state", "//a/", "//", "/./a/", "/a/./", "/a%2f", "/a%00/", "/%61%00/", "/a/%",
        "/%zz/", "/%", "/%2", "/state", "/\\..\\..\\etc\\passwd", "/a/report.html", "/http://evil.example/", "/etc/passwd",
    ]  # fmt: skip
    for path in paths:
        answer, content = server.ask(path)
        assert answer.status == 404, path
        assert b"root:" not in content and b"secret" not in content, path
    absolute = f"http://localhost:{server.port}/{server.token}/"
    assert server.status(whole=absolute) == 404
    assert server.status("/%61/") == 200  # is "a"
    assert server.status("/a/?../../etc/passwd") == 200  # what stands behind "?" is not looked at


def test_every_answer_forbids_what_a_page_need_not(server):
    for path, status in (("/", 200), ("/a/", 200), ("/a/state", 200), ("/a", 308), ("/x", 404)):
        answer, content = server.ask(path)
        assert answer.status == status
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert "Access-Control-Allow-Origin" not in answer.headers
        policy = answer.headers["Content-Security-Policy"].split("; ")
        assert policy[:4] == [
            "default-src 'none'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
        ]  # fmt: skip
        for rule in policy[4:]:
            assert "unsafe" not in rule and "*" not in rule and "http" not in rule
        assert server.token.encode() not in content
    assert server.ask("/a")[0].headers["Location"] == f"/{server.token}/a/"


# --- what it stands -----------------------------------------------------------------------------


def memory_of(server):
    with open(f"/proc/{server.process.pid}/status") as status:
        (line,) = [line for line in status if line.startswith("VmRSS:")]
    return int(line.split()[1]) << 10


def test_a_header_has_an_end(server):
    begin = f"GET /{server.token}/ HTTP/1.1\r\nHost: localhost\r\n".encode()
    assert server.raw(begin + b"X: " + b"a" * 9000 + b"\r\n\r\n").startswith(b"HTTP/1.1 431 ")
    assert server.raw(begin + b"a: b\r\n" * 2000 + b"\r\n").startswith(b"HTTP/1.1 431 ")
    assert server.raw(b"GET /" + b"a" * 20_000).startswith(b"HTTP/1.1 431 ")
    for request in (
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\0" * 100,
        b" \r\n\r\n",
    ):
        assert server.raw(request + b"\r\n\r\n").startswith(b"HTTP/1.1 400 "), request
    assert server.status() == 200


def test_endless_requests_take_no_memory(server):
    before = memory_of(server)
    for begin in (
        b"GET /",
        b"GET / HTTP/1.1\r\nX: ",
        b"POST / HTTP/1.1\r\nContent-Length: 9999999999\r\n\r\n",
    ):
        for _ in range(10):
            with server.connect() as one, contextlib.suppress(ConnectionError):
                one.sendall(begin)
                for _ in range(16):
                    one.sendall(b"a" * (1 << 20))
    assert server.status() == 200
    assert memory_of(server) - before < 8 << 20


def test_slow_and_silent_clients_keep_nobody_out(server):
    begun = [server.connect() for _ in range(MOST_CONNECTIONS)]
    for one in begun:
        one.sendall(b"GET / HTTP/1.1\r\nX: ")
    for number in range(10):
        assert server.status() == 200
        assert received(begun[number]) == b""  # the one that has been silent longest made room
    assert server.status() == 200
    for one in begun:
        one.close()


def test_a_header_that_trickles_is_cut_off(server):
    with server.connect() as one:
        one.settimeout(0.3)
        one.sendall(b"GET / HTTP/1.1\r\nX: ")
        for _ in range(200):
            try:
                one.sendall(b"a")
                if one.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            raise AssertionError("the server has waited a minute for a header")


def test_many_connections_are_few(server):
    folder = f"/proc/{server.process.pid}/fd"
    many = [server.connect() for _ in range(300)]
    assert server.status() == 200
    assert len(os.listdir(folder)) < MOST_CONNECTIONS + 30
    for one in many:
        one.close()
    for _ in range(200):
        assert server.status("/a/") == 200
    assert len(os.listdir(folder)) < MOST_CONNECTIONS + 30


def test_a_client_that_takes_no_answer_holds_nobody_up(server):
    request = f"GET /{server.token}/a/ HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    lazy = [server.connect() for _ in range(20)]
    for one in lazy:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.sendall(request * 20)
    before = memory_of(server)
    assert server.status("/a/") == 200
    assert memory_of(server) - before < 8 << 20
    for one in lazy:
        one.close()


def test_several_requests_share_a_connection(server):
    request = f"GET /{server.token}/a/state HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")
    answers = server.raw((request * 3 + last).encode())
    assert answers.count(b"HTTP/1.1 200 OK") == 4


# --- begin and end --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_when_asked(tmp_path, number):
    server = Server(written(tmp_path / "run"))
    page = server.page()
    assert page
    code, out, err = server.end(number)
    assert code == 0 and out == ""
    assert server.token not in err and "Ctrl-C ends" in err
    with pytest.raises(ConnectionRefusedError):
        server.connect()


def test_what_cannot_be_served_is_said(tmp_path):
    run = written(tmp_path / "run")

    def refused(*arguments):
        done = subprocess.run(
            [launch.command_line(), "serve", *map(os.fspath, arguments)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2 and done.stdout == ""
        return done.stderr

    with serving(run) as server:
        said = refused(run, "--port", str(server.port))
        assert f"port {server.port} of 127.0.0.1 is taken; --port 0 takes one" in said
    assert "there is no directory" in refused(tmp_path / "nothing")
    assert "there is no directory" in refused(__file__)
    assert "127.0.0.1, ::1" in refused(run, "--host", "evil.example")
    assert "203.0.113.9" in refused(run, "--host", "203.0.113.9")  # of documents, no machine's
    assert "65535" in refused(run, "--port", "65536")
    assert "RUN is required" in refused()


def test_a_port_that_was_asked_for(tmp_path):
    run = written(tmp_path / "run")
    with serving(run) as first:
        port = first.port
    with serving(run, "--port", str(port)) as again:
        assert again.port == port and again.status() == 200
    with serving(run, "--host", "localhost") as server:
        assert server.address.startswith("http://localhost:") and server.status() == 200


def test_the_address_in_json(tmp_path):
    server = subprocess.Popen(
        [launch.command_line(), "serve", tmp_path, "--json", "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    text = "".join(iter(server.stdout.readline, "}\n")) + "}"
    server.send_signal(signal.SIGINT)
    assert server.communicate(timeout=60) == ("", "")
    assert json.loads(text)["address"].startswith("http://127.0.0.1:")


def test_open_hands_the_token_to_the_browser_alone(tmp_path):
    seen = tmp_path / "seen"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf "%s" "$1" >{seen}.tmp\nmv {seen}.tmp {seen}\n')
    browser.chmod(0o755)
    with serving(
        written(tmp_path / "run"),
        "--open",
        env={"BROWSER": f"{browser} %s", "TMPDIR": str(tmp_path)},
    ) as server:
        while not seen.exists():
            time.sleep(0.05)
        argument = seen.read_text()
        assert argument.startswith("file://") and server.token not in argument
        path = argument.removeprefix("file://")
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        with open(path) as file:
            assert f"url={server.address}" in file.read()
        assert server.end()[0] == 0
        assert not os.path.exists(path)
    no_browser = {"BROWSER": "false %s", "TMPDIR": str(tmp_path)}
    with serving(tmp_path / "run", "--open", env=no_browser) as server:
        while "no browser could be opened" not in server.process.stderr.readline():
            pass
        assert server.status() == 200
        assert server.end()[0] == 0
    assert not list(tmp_path.glob("trainmon-*"))


# --- what is shown ----------------------------------------------------------------------------------


def test_it_is_the_page_of_report(tmp_path):
    run = written(tmp_path / "run", 40)
    done = subprocess.run(
        [launch.command_line(), "report", run, "-o", tmp_path / "r.html"], timeout=60
    )
    assert done.returncode == 0
    with serving(run) as server:
        (tmp_path / "live.html").write_bytes(server.page())
    still, live = Page(tmp_path / "r.html"), Page(tmp_path / "live.html")
    assert live.report == still.report
    assert live.payload == still.payload and live.columns == still.columns


def test_nothing_of_a_run_is_touched(tmp_path):
    run = written(tmp_path / "run")

    def facts():
        return {
            path: (path.read_bytes(), path.stat().st_mtime_ns)
            for path in sorted(run.rglob("*"))
            if path.is_file()
        }, sorted(run.rglob("*"))

    before = facts()
    with serving(run) as server:
        server.page()
        server.end()
    assert facts() == before


def test_what_did_not_change_is_not_sent_again(tmp_path):
    rank = WrittenRank(tmp_path / "run")
    add_steps(rank, 0, 5)
    with serving(tmp_path / "run") as server:
        server.state(until=lambda state: state["page"] and state["newest"]["step"] == 4)
        for path in ("/", "/state"):
            answer, content = server.ask(path)
            tag = answer.headers["ETag"]
            again, nothing = server.ask(path, If_None_Match=tag)
            assert (again.status, nothing, again.headers["ETag"]) == (304, b"", tag)
            assert server.ask(path, If_None_Match='"other"')[1] == content
        add_steps(rank, 5, 6)
        server.state(until=lambda state: state["newest"]["step"] == 5)
        assert server.ask("/state", If_None_Match=tag)[0].status == 200
    rank.stop()


def test_a_run_is_followed_and_its_end_told(tmp_path):
    rank = WrittenRank(tmp_path / "run")

    def newest_is(step):
        return lambda state: (state["newest"] or {}).get("step") == step

    def last_step_of_page():
        (tmp_path / "page.html").write_bytes(server.page("/run/"))
        return (Page(tmp_path / "page.html").report["record"]["steps"] or [None])[-1]

    with serving(tmp_path) as server:
        state = server.state("/run/")
        assert state["state"] == "open" and state["newest"] is None
        for first, last in ((0, 3), (3, 9), (9, 20)):
            add_steps(rank, first, last)
            state = server.state("/run/", newest_is(last - 1))
            assert state["newest"]["logged"] == {"loss": last - 1.0}
            assert state["newest"]["norms"]["grad_reduced"] == pytest.approx(3**0.5, rel=1e-5)
            assert abs(state["last_write"] - time.time()) < 3600
            while last_step_of_page() != last - 1:
                time.sleep(0.1)
        rank.stop()
        state = server.state("/run/", lambda state: state["state"] == "closed")
        assert state["error"] is None


def test_a_run_that_is_killed_is_gone(tmp_path):
    program = (
        "import os, signal, sys, pathlib, numpy as np\nfrom written_run import WrittenRank\n"
        "rank = WrittenRank(pathlib.Path(sys.argv[1]))\n"
        "rank.observe(np.ones(3, np.float32), 'grad_reduced', 'w', 0)\nrank.end_step()\n"
        "print('written', flush=True)\nsys.stdin.read()\n"
    )
    one = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "run"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.fspath(launch.SHARED)},
    )
    assert one.stdout.readline() == b"written\n"
    with serving(tmp_path / "run") as server:
        server.state(until=lambda state: state["newest"] is not None and state["state"] == "open")
        one.kill()
        one.communicate()
        state = server.state(until=lambda state: state["state"] == "gone")
        assert state["newest"]["step"] == 0


def test_a_run_that_is_deleted_and_comes_again(tmp_path):
    run, away = tmp_path / "run", tmp_path / "away"
    written(run, 30)
    with serving(run) as server:
        server.state(until=lambda state: state["page"] and state["newest"]["step"] == 29)
        page = server.page()
        run.rename(away)
        state = server.state(until=lambda state: state["state"] == "deleted")
        assert state["newest"]["step"] == 29
        assert server.ask()[1] == page  # what was read before
        written(run, 4)
        state = server.state(
            until=lambda state: state["state"] == "closed" and state["newest"]["step"] == 3
        )
        assert server.state(until=lambda state: state["page"].encode() not in page)
        assert b"alert(" not in server.ask()[1]


def test_a_restart_is_followed(tmp_path):
    run = written(tmp_path / "run", 10)
    with serving(run) as server:
        server.state(until=lambda state: state["newest"]["step"] == 9)
        again = WrittenRank(run)
        again.monitor.set_start_step(0, 4)
        add_steps(again, 0, 2)
        state = server.state(
            until=lambda state: state["newest"]["restart"] == 1 and state["newest"]["step"] == 5
        )
        assert state["state"] == "open"
        again.stop()
        server.state(until=lambda state: state["state"] == "closed")


def test_runs_of_a_directory_are_listed(server):
    answer, content = server.ask("/")
    text = content.decode()
    assert answer.status == 200 and "refresh" in text
    assert text.count("<tr>") == 5 and "<script" not in text
    assert MARKUP.replace("/", ":").replace("<", "&lt;") in text
    assert "folder" not in text and "secret" not in text
    links = [part.partition('"')[0] for part in text.split('<a href="')[1:]]
    assert sorted(urllib.parse.unquote(link) for link in links) == sorted(
        f"{name}/" for name in ("a", "b b", MARKUP.replace("/", ":"), "100%")
    )
    for link in links:
        assert b"First wrong" in server.page(f"/{link}")


def test_a_directory_without_a_run_waits_for_one(tmp_path):
    with serving(tmp_path) as server:
        assert b"There is no run yet" in server.ask()[1]
        assert server.status("/run/") == 404
        written(tmp_path / "run")
        while b'href="run/"' not in server.ask()[1]:
            time.sleep(0.1)
        server.page("/run/")
        written(tmp_path / "later")  # whoever has its link need not open the list first
        while server.status("/later/") != 200:
            time.sleep(0.1)
        server.page("/later/")
    with serving(tmp_path / "run" / "..", "--quiet") as server:
        server.page("/run/")
    empty = tmp_path / "empty"
    empty.mkdir()
    with serving(empty) as server:
        written(empty, 3)  # becomes a run itself
        while server.status("/state") != 200:
            server.ask()
            time.sleep(0.1)
        server.state(until=lambda state: (state["newest"] or {}).get("step") == 2)


def test_pages_of_at_most_eight_runs_are_kept(tmp_path):
    for number in range(12):
        written(tmp_path / f"run{number}", 3)
    with serving(tmp_path) as server:
        for _ in range(2):
            for number in range(12):
                assert f"run{number} · trainmon".encode() in server.page(f"/run{number}/")


def test_a_damaged_run_is_served(tmp_path):
    run = written(tmp_path / "run", 200)
    (log,) = run.glob("**/*.tmlog")
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 0xFF
    log.write_bytes(content)
    with serving(run) as server:
        (tmp_path / "page.html").write_bytes(server.page())
        assert Page(tmp_path / "page.html").report["record"]["damage"]
        log.write_bytes(b"\xff" * 5000)
        old = server.state()["page"]
        server.state(until=lambda state: state["page"] != old or state["error"])
        assert server.status() == 200
