"""Runs test files: `PYTHON pytest_files.py FILE[,FILE...] ... [-- PYTHON FILE ...]`. Those with a comma between them have
one process, so that one hang cannot hide the rest. What is named twice runs once: whoever wants the longest to begin
first names those, then all. Each process is a copy of this one, which has imported torch: that takes longer than many a
file. Two more run at a time than there are processors, for many wait for the processes they start. Shows what one
printed when it has ended, and at the end how long each took and how much of the processors. Exits non-zero when one
failed. TEST_TIMEOUT (1200): seconds that one has."""

import contextlib
import faulthandler
import importlib.util
import os
import pathlib
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(1, os.fspath(pathlib.Path(__file__).resolve().parents[1] / "tests" / "python"))

import forked
import launch

SECONDS_OF_ONE = float(os.environ.get("TEST_TIMEOUT", 1200))
# Plugins of packages that are there: the tests use none, and they take longer than pytest itself to load.
OPTIONS = ("-q", "--disable-plugin-autoload")
KILLED_AFTER = 10  # seconds that one has to end, past its time


class Group:
    """Files that run in one process, which leads a group of its own."""

    def __init__(self, python, files, place):
        self.files = files.split(",")
        others = len(self.files) - 1
        self.name = pathlib.Path(self.files[0]).name + (f" and {others} more" if others else "")
        self.python = python
        self.printed = pathlib.Path(place, self.name)
        self.process = None
        self.failed = True
        self.line = f"{self.name} did not end"

    def start(self):
        """Whether this process is the one that runs them."""
        self.begin = time.monotonic()
        self.due, self.signal = self.begin + SECONDS_OF_ONE, signal.SIGTERM
        output = os.open(self.printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        if self.python == sys.executable:
            self.process = os.fork()
            if self.process == 0:
                self.begin_here(output)
                return True
        else:
            self.started = subprocess.Popen(  # kept: one that is gone is waited for by the next
                [self.python, "-m", "pytest", *OPTIONS, *self.files],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            self.process = self.started.pid
        os.close(output)
        return False

    def begin_here(self, output):
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        forked.take_streams(os.open(os.devnull, os.O_RDONLY), output, output)

    def look(self):
        """Ends it when it is late. Whether it has ended."""
        if time.monotonic() > self.due:
            self.stop(self.signal)
            self.due, self.signal = self.due + KILLED_AFTER, signal.SIGKILL
        process, status, used = os.wait4(self.process, os.WNOHANG)
        if not process:
            return False
        code = os.waitstatus_to_exitcode(status)
        self.failed = code != 0
        self.stop(signal.SIGKILL)  # what its tests have left running
        self.process = None
        verdict = f"FAILED ({code})" if code else "ok"
        seconds = time.monotonic() - self.begin
        processors = used.ru_utime + used.ru_stime
        self.line = f"{self.name:48} {seconds:5.0f} s {processors:5.0f} s of CPU  {verdict}"
        print("==", *self.files)
        print(self.printed.read_text(errors="replace"), flush=True)
        return True

    def stop(self, number):
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process, number)


def run(groups):
    """Runs them all and returns None; in the process of a group: that group, at once."""
    waiting, running = list(groups), []
    while waiting or running:
        if waiting and len(running) < len(os.sched_getaffinity(0)) + 2:
            running.append(waiting.pop(0))
            if running[-1].start():
                return running[-1]
        else:
            running = [group for group in running if not group.look()]
            time.sleep(0.05)
    return None


def groups_of(arguments, place):
    python = sys.executable
    arguments = iter(arguments)
    groups = {}
    for argument in arguments:
        if argument == "--":
            python = os.path.abspath(next(arguments))
        elif argument not in groups:
            groups[argument] = Group(python, argument, place)
    return list(groups.values())


if __name__ == "__main__":
    # Tests that start processes of their own give each one thread, too.
    os.environ["OMP_NUM_THREADS"] = "1"
    faulthandler.enable()
    # A shell ignores interrupts in what it starts with `&`.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    if importlib.util.find_spec("torch"):
        forked.preload()
    place = tempfile.mkdtemp()
    groups = groups_of(sys.argv[1:], place)
    here = None
    try:
        here = run(groups)
    finally:
        if not here:
            for group in groups:
                group.stop(signal.SIGTERM)
            shutil.rmtree(place)
    if not here:
        print("", *(group.line for group in groups), sep="\n")
        sys.exit(any(group.failed for group in groups))
    # In a copy for a group, and in the copies that its tests make of one.
    code = forked.fork_server(launch.programs_environment())
    if code:
        exec(code, sys.modules["__main__"].__dict__)
    else:
        # As python -m pytest does.
        sys.path[0] = os.getcwd()
        sys.argv = ["pytest", *OPTIONS, *here.files]
        runpy.run_module("pytest", run_name="__main__", alter_sys=True)
