# Short trainings, watched or not, that end in every way a process can; warm.py forks them.
import atexit
import gc
import os
import pathlib
import signal
import sys
import threading

import chain_run
import trainmon
import warm

STEPS = 3  # before the end begins
NAMED = {}  # what atexit and others still hold at the end


def stop(training):
    training.call("stop")


def nothing(training):
    pass


def let_go(training):
    NAMED.clear()
    del training.monitor, training.model, training.optimizer
    gc.collect()


def exception(training):
    raise RuntimeError("the user's own")


def exception_in_with(training):
    with training.monitor if training.monitor else open(os.devnull):
        raise RuntimeError("the user's own")


def sys_exit(training):
    sys.exit(3)


def os_exit(training):
    os._exit(4)


def go_on(training):
    """Until a signal comes."""
    while True:
        training.step()


def daemon_threads(training):
    for _ in range(3):
        threading.Thread(target=_for_ever, args=(training, "log"), daemon=True).start()


def in_the_middle_of_a_flush(training):
    for _ in range(4):
        threading.Thread(target=_for_ever, args=(training, "flush"), daemon=True).start()
    for _ in range(2):
        training.step()


def stopped_by_another_thread(training):
    threading.Thread(target=training.call, args=("stop",)).start()


def a_step_at_exit(training):
    atexit.register(training.step)


def a_step_after_ours_at_exit(training):
    """It was registered before watch(), so it comes after the monitor's own end."""
    NAMED["late"] = training.step


def exit_of_a_thread(training):
    thread = threading.Thread(target=sys.exit, args=(5,))
    thread.start()
    thread.join()


def _for_ever(training, name):
    while True:
        training.call(name)


class Training:
    def __init__(self, watched, out):
        self.model, self.optimizer = chain_run.training()
        self.monitor = None
        if watched:
            keys = {"kinds": chain_run.KINDS, "every": 1, "out": out, "recorder_mb": 1}
            self.monitor = trainmon.watch(self.model, self.optimizer, **keys)
        self.done = 0

    def step(self):
        chain_run.step_of(self.model, self.optimizer, self.done)
        self.done += 1

    def call(self, name):
        calls = {"stop": {}, "flush": {"timeout": 5.0}, "log": {"loss": 1.0}}
        if self.monitor:
            getattr(self.monitor, name)(**calls[name])
        else:
            sum(range(1000))


ENDINGS = [
    stop, nothing, let_go, exception, exception_in_with, sys_exit, os_exit, daemon_threads,
    in_the_middle_of_a_flush, stopped_by_another_thread, a_step_at_exit, a_step_after_ours_at_exit,
    exit_of_a_thread,
]  # fmt: skip


def live(ending, watched, out):
    atexit.register(lambda: NAMED.get("late", int)())
    training = NAMED["training"] = Training(watched, out)
    for _ in range(STEPS):
        training.step()
    chain_run.say("ready")
    globals()[ending](training)


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    chain_run.warm_up()
    if job := warm.serve():
        live(**job)


if __name__ == "__main__":
    main()
    pathlib.Path(os.devnull).touch()  # what else a script does after its training
