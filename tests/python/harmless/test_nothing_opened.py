# Promises F7 and F9: nothing that a file holds is executed, and no socket is opened.
import json
import os
import pathlib
import subprocess
import sys

import pytest

import launch

DAMAGED = pathlib.Path(__file__).parents[2] / "data" / "damaged"

# Tells of each socket that is no local one, and of each program that is started, by C++ as well.
TELL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
static void tell(const char *what) {
  const char *path = getenv("TELL_FILE");
  int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
  if (file < 0) return;
  (void)!write(file, what, strlen(what));
  close(file);
}
int socket(int domain, int type, int protocol) {
  int (*real)(int, int, int) = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
  if (domain != AF_UNIX) tell("socket\\n");
  return real(domain, type, protocol);
}
int execve(const char *path, char *const given[], char *const names[]) {
  int (*real)(const char *, char *const[], char *const[]) =
      (int (*)(const char *, char *const[], char *const[]))dlsym(RTLD_NEXT, "execve");
  tell("execve\\n");
  return real(path, given, names);
}
int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *how, char *const given[], char *const names[]) {
  (void)pid, (void)path, (void)actions, (void)how, (void)given, (void)names;
  tell("posix_spawn\\n");
  return -1;
}
"""


@pytest.fixture(scope="module")
def preload(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tell")
    (folder / "tell.c").write_text(TELL)
    library = folder / "tell.so"
    command = ["cc", "-shared", "-fPIC", "-o", library, folder / "tell.c", "-ldl"]
    subprocess.run(command, check=True)
    return library


@pytest.fixture(scope="module")
def written(preload, tmp_path_factory):
    """The folder that opened_run.py filled, and the environment in which it was told of."""
    out = tmp_path_factory.mktemp("opened")
    environment = {"LD_PRELOAD": str(preload), "TELL_FILE": str(out / "told")}
    ended = launch.finish(
        launch.start("opened_run.py", DAMAGED, out, environment=environment), timeout=400
    )
    assert ended.code == 0, ended.err
    return out, environment


def test_python_executes_and_opens_nothing(written):
    found = json.loads((written[0] / "events.json").read_text())
    assert found["runs"] > 100
    planted = [name for within, name, _ in found["events"] if within == "control"]
    assert {"pickle.find_class", "exec", "compile", "socket.__new__"} <= set(planted)
    assert [event for event in found["events"] if event[0] != "control"] == []
    assert (written[0] / "told").read_text() == "socket\n"  # the planted one


def test_the_commands_open_nothing(written):
    out, environment = written
    (out / "told").unlink()
    run = out / "run"
    for command in ("diagnose", "show", "top", "first-bad", "doctor", "report", "tail", "blackbox"):
        more = ["-o", out / "page.html"] if command == "report" else []
        done = subprocess.run(
            [launch.command_line(), command, run, *more],
            env={**os.environ, **environment},
            capture_output=True,
            timeout=100,
        )
        assert done.returncode in (0, 1), (command, done.stderr)
    assert not (out / "told").exists()
    environment = {**os.environ, **environment}
    command = "import socket, subprocess; socket.socket(); subprocess.run('true')"
    subprocess.run([sys.executable, "-c", command], env=environment, check=True)
    assert set((out / "told").read_text().split()) >= {"socket"}
