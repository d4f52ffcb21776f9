# Forks children of a process that has imported torch and has not started trainmon: one lives from 0.05 s on.
"""A program calls serve() and does the job that it returns, if any; a test starts it by Warm."""

import contextlib
import dataclasses
import gc
import json
import os
import pathlib
import select
import signal
import sys
import time

import forked
import launch

HANGS_AFTER = 60.0  # seconds


@dataclasses.dataclass
class Life:
    code: int  # as of subprocess: negative for a signal
    hung: bool
    said: list[str]  # whole lines of its standard output
    err: str


class Warm:
    """`program` as such a process."""

    def __init__(self, program, place):
        self._errors = pathlib.Path(place, "warm_errors")
        options = {"stdin": launch.subprocess.PIPE, "stderr": None}
        self._process = launch.start(program, **options)

    def live(self, job, kill_after=None, number=signal.SIGKILL):
        """One child that does `job` (of JSON). From its first line on it has `kill_after` seconds until
        it gets signal `number`; None: none comes."""
        with self.beside(job, kill_after, number) as life:
            return life()

    @contextlib.contextmanager
    def beside(self, job, kill_after=None, number=signal.SIGKILL):
        """The same while the caller does something else. Gives a function that waits so many seconds (for
        ever) and returns None, or how the life ended."""
        given = {
            "job": job,
            "errors": os.fspath(self._errors),
            "kill_after": kill_after,
            "number": int(number),
        }
        self._process.stdin.write(json.dumps(given) + "\n")
        self._process.stdin.flush()
        ended = None

        def life(seconds=None):
            nonlocal ended
            if not ended and select.select([self._process.stdout], [], [], seconds)[0]:
                line = self._process.stdout.readline()
                assert line, "the warm process is gone"
                ended = Life(**json.loads(line), err=self._errors.read_text(errors="replace"))
            return ended

        yield life
        life()

    def close(self):
        self._process.stdin.close()
        with contextlib.suppress(launch.subprocess.TimeoutExpired):
            self._process.wait(30)
        self._process.kill()
        self._process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def serve():
    """In the warm process: forks a child for each job until there are no more, then returns None. In a
    child: returns its job at once."""
    gc.freeze()  # a child that ends does not go through all of torch's objects
    for line in sys.stdin:
        given = json.loads(line)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            errors = os.open(given["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            forked.take_streams(os.open(os.devnull, os.O_RDONLY), writing, errors)
            return given["job"]
        os.close(writing)
        hung, said = _follow(child, reading, given["kill_after"], given["number"])
        os.close(reading)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        whole = said.decode(errors="replace").split("\n")[:-1]
        print(json.dumps({"code": code, "hung": hung, "said": whole}), flush=True)
    return None


def _follow(child, reading, kill_after, number):
    """Reads what `child` says until it has ended. Whether it had to be ended, and what it said."""
    said = b""
    due = None  # when the signal comes
    end = time.monotonic() + HANGS_AFTER
    while True:
        now = time.monotonic()
        if due is not None and now >= due:
            os.kill(child, number)
            due = kill_after = None
        if now >= end:
            os.kill(child, signal.SIGABRT)  # faulthandler shows where it is
            time.sleep(1)
            os.kill(child, signal.SIGKILL)
            return True, said
        wait = end - now if due is None else due - now
        if select.select([reading], [], [], max(0.0, wait))[0]:
            piece = os.read(reading, 65536)
            if not piece:
                return False, said
            if kill_after is not None and due is None and b"\n" in piece:
                due = time.monotonic() + kill_after
            said += piece
