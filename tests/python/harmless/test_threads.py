# watch() where threads are many, or none is left to be had.
import copyreg
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch.optim import optimizer as of_torch

import trainmon
from trainmon.torch.hooks.hook import Handles, Hook, ModuleHook

HERE = pathlib.Path(__file__).parents[1]


def test_the_first_watches_of_a_process_may_come_from_several_threads(tmp_path):
    command = [sys.executable, str(HERE / "programs/threads_run.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    for number in range(4):
        table = trainmon.read_table(str(tmp_path / str(number)))
        assert set(table["step"].tolist()) == {0, 1, 2}, done.stderr


def test_a_watch_that_comes_or_goes_in_another_thread_leaves_a_step_under_way_alone(tmp_path):
    """torch goes through its hooks for the steps of all optimizers meanwhile."""

    def trained():
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 2)).sum().backward()
        return model, optimizer

    pairs = [trained() for _ in range(4)]
    watches = [trainmon.watch(*pair, out=tmp_path / str(n)) for n, pair in enumerate(pairs[:2])]
    beside = trainmon.GradProbe(pairs[2][0], out=tmp_path / "probe")
    act = [watches[1].stop, beside.stop]
    act.append(lambda: watches.append(trainmon.watch(*pairs[3], out=tmp_path / "3")))
    act.append(lambda: watches.append(trainmon.watch(torch.nn.Linear(2, 2), out=tmp_path / "4")))
    due = []

    class Group(dict):
        """What the hooks of a step look into first of all; another thread has its turn then."""

        def __getitem__(self, key):
            if due:
                thread = threading.Thread(target=due.pop())
                thread.start()
                thread.join()
            return super().__getitem__(key)

    model, optimizer = trained()
    optimizer.param_groups[0] = Group(optimizer.param_groups[0])
    for one in act:
        due.append(one)
        optimizer.step()
        assert not due
    for watch in watches:
        watch.stop()
    assert not of_torch._global_optimizer_pre_hooks and not of_torch._global_optimizer_post_hooks


@pytest.mark.parametrize("comes", ["before watch", "after watch"])
@pytest.mark.parametrize("of", ["step", "optimizer_step"])  # of this one, of all
@pytest.mark.parametrize("kind", ["pre_hook", "post_hook"])
def test_a_hook_of_the_user_on_the_optimizer_may_stop_it(tmp_path, of, kind, comes):
    """torch goes through these hooks, and raises where one is taken off meanwhile."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watches, steps = [], 3

    def stop(*_):
        if len(seen) == 1:
            watches[-1].stop()
        seen.append(1)

    def watch():
        watches.append(trainmon.watch(model, optimizer, out=tmp_path / str(len(watches))))

    seen = []
    if comes == "after watch":
        watch()
    place = optimizer if of == "step" else of_torch
    handle = getattr(place, f"register_{of}_{kind}")(stop)
    if comes == "before watch":
        watch()
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert len(seen) == steps
    handle.remove()
    watch()  # takes off what was left
    watches[-1].stop()
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    assert not of_torch._global_optimizer_pre_hooks and not of_torch._global_optimizer_post_hooks


def test_a_training_goes_on_while_another_thread_watches_and_stops(tmp_path):
    """The engine looks into the hooks of a parameter without the GIL: nobody may free them meanwhile."""
    command = [sys.executable, str(HERE / "programs/watch_beside_run.py"), str(tmp_path), "150"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr[-2000:]


def test_hooks_of_modules_are_counted_whatever_the_thread(monkeypatch):
    class Slow(dict):
        def get(self, key, default=None):
            found = super().get(key, default)
            time.sleep(0.01)  # another thread has its turn
            return found

    monkeypatch.setattr(ModuleHook, "_classes", Slow())
    hooks = [Handles() for _ in range(4)]

    def come(number):
        module = torch.nn.Identity()
        hooks[number].hook(module, "register_forward_hook", Nothing())

    threads = [threading.Thread(target=come, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ModuleHook._classes == {torch.nn.Identity: 4}
    for one in hooks:
        one.remove()
    assert ModuleHook._classes == {} and torch.nn.Identity not in copyreg.dispatch_table


class Nothing(Hook):
    def __call__(self, module, args, output):
        pass


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


COLLECTED_MEANWHILE = """
import gc, threading
from trainmon.torch.steps.calls import walkers

class Garbage:
    pass

def make():
    one = Garbage()
    one.itself, one.local = one, threading.local()
    one.local.value = 1

for threshold in range(1, 200):
    gc.collect()
    gc.disable()
    make()
    gc.set_threshold(threshold, 1, 1)
    gc.enable()
    assert walkers({}) == {}
    assert gc.isenabled()
gc.disable()
assert walkers({}) == {} and not gc.isenabled()
"""


def test_a_collection_of_garbage_while_threads_are_looked_at_hangs_nothing():
    """CPython before 3.12 has one lock for the frames of threads and for what is local to them."""
    done = subprocess.run([sys.executable, "-c", COLLECTED_MEANWHILE], timeout=100)
    assert done.returncode == 0
