# watch() where threads are many, or none is left to be had.
import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest
import torch

import trainmon

HERE = pathlib.Path(__file__).parent


def test_the_first_watches_of_a_process_may_come_from_several_threads(tmp_path):
    command = [sys.executable, str(HERE / "threads_run.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "")
    for number in range(4):
        table = trainmon.read_table(str(tmp_path / str(number)))
        assert set(table["step"].tolist()) == {0, 1, 2}


NO_MORE = """
#include <errno.h>
#include <pthread.h>
int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *x) {
  (void)t, (void)a, (void)f, (void)x;
  return EAGAIN;
}
"""
WATCH = """
import ctypes, signal, sys, torch, trainmon
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
try:
    trainmon.watch(model, optimizer, out=sys.argv[1])
except RuntimeError as error:
    print(error)
assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
assert not model._forward_pre_hooks and not optimizer._optimizer_step_pre_hooks
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
print("trained")
"""


def test_without_a_thread_watch_says_why_and_leaves_signals_alone(tmp_path):
    (tmp_path / "no_more.c").write_text(NO_MORE)
    library = tmp_path / "no_more.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "no_more.c"], check=True)
    done = subprocess.run(
        [sys.executable, "-c", WATCH, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=120,
        env={
            **os.environ,
            "LD_PRELOAD": str(library),
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        },
    )
    assert done.returncode == 0, done.stderr
    assert "the writer thread cannot be started" in done.stdout and "ulimit -u" in done.stdout
    assert done.stdout.endswith("trained\n")


def test_without_a_thread_for_alerts_no_hook_stays(tmp_path, monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        trainmon.watch(model, optimizer, out=str(tmp_path), on_alert=print)
    assert not model._forward_pre_hooks and not model._forward_hooks
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
