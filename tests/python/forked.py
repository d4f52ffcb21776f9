"""Python programs as copies of a process that has imported torch and nothing of trainmon: importing torch takes
most of the time of a short training.

`python forked.py SOCKET`, or a copy of scripts/pytest_files.py, is that process; `Forked` is a subprocess.Popen whose
child it makes. A copy has a `__main__`, arguments, environment and standard streams of its own, one thread, and ends as
any program does. What a copy cannot have of its own is what Python reads when it starts: see `serves`.
"""

import ctypes
import gc
import json
import os
import re
import socket
import subprocess
import sys
import threading

# Of these a started Python, its allocator or torch itself have read what they want by the time of the fork.
READ_AT_START = re.compile(
    "(LD|PYTHON|MALLOC|GLIBC|TORCH|OMP|MKL|OPENBLAS|ASAN|TSAN|UBSAN|LSAN|LC|LANG|VIRTUAL)"
)
PR_SET_CHILD_SUBREAPER = 36
AT_ONCE = 1 << 20  # bytes of a request that are received


def serves(environment, options):
    """Whether a copy is the same as a new process of this Python with that environment and these options."""
    plain = {"stdin", "stdout", "stderr", "text", "cwd", "encoding", "errors", "bufsize"}
    return options.keys() <= plain and _at_start(environment) == _at_start(
        _server(environment).environment
    )


def _at_start(environment):
    return {name: value for name, value in environment.items() if READ_AT_START.match(name)}


class Forked(subprocess.Popen):
    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):
        _, _, _, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *_ = rest
        streams = [
            number if given == -1 else given
            for number, given in enumerate((p2cread, c2pwrite, errwrite))
        ]
        self.pid = _server(env).fork(args[1:], cwd or os.getcwd(), env, streams)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


class Server:
    def __init__(self, environment, connection, process=None):
        self.environment = environment
        self._socket = connection
        self._process = process  # kept: Python warns of one that nobody has and that goes on
        self._lock = threading.Lock()
        self._prctl = ctypes.CDLL(None).prctl

    def fork(self, arguments, place, environment, streams):
        """The process identifier of a copy; it is a child of this process."""
        request = json.dumps([arguments, place, environment]).encode()
        with self._lock:
            # Whoever loses the parent becomes a child of ours.
            self._prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._socket, [len(request).to_bytes(8, "little")], streams)
                self._socket.sendall(request)
                answer = self._socket.recv(8)
            finally:
                self._prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if len(answer) < 8:
            raise RuntimeError("the process that has imported torch has ended")
        return int.from_bytes(answer, "little")


_first = []


def _server(environment):
    """That of the first environment that was asked for: other ones are rare."""
    if not _first:
        ours, its = socket.socketpair()
        with its:
            process = subprocess.Popen(
                [sys.executable, __file__, str(its.fileno())],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        _first.append(Server(environment, ours, process))
    return _first[0]


def preload():
    """What most programs import, and what torch imports when the first optimizer steps."""
    import numpy  # noqa: F401
    import torch
    import torch._dynamo
    import torch.distributed.fsdp  # noqa: F401

    gc.freeze()  # a copy neither looks through all of torch's objects nor takes them apart at its end


def fork_server(environment):
    """Makes that process by a copy of this one, which has one thread, has called preload() and is what a Python with
    `environment` is. In a copy of it: the code that runs there as `__main__`. In this process: None."""
    ours, its = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        code = serve(its)
        if not code:
            os._exit(0)
        return code
    its.close()
    _first.append(Server(environment, ours))
    return None


def serve(connection):
    """In that process: makes copies until there are no more requests, then returns None. In a copy: the code that runs
    there as `__main__`."""
    while True:
        head, streams, *_ = socket.recv_fds(connection, 8, 3)
        if not head:
            return None
        request = b""
        while len(request) < int.from_bytes(head, "little"):
            request += connection.recv(AT_ONCE)
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            copy = os.fork()
            if copy:
                os.write(writing, copy.to_bytes(8, "little"))
                os._exit(0)
            connection.detach()  # it is closed
            return begin(*json.loads(request), streams)
        os.close(writing)
        os.waitpid(between, 0)  # since now the copy is a child of whoever asked
        connection.sendall(os.read(reading, 8))
        for number in (reading, *streams):
            os.close(number)


def take_streams(*streams):
    """Makes these descriptors the three standard streams of this process, and closes all others."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 1 << 16)


def begin(arguments, place, environment, streams):
    import numpy

    take_streams(*streams)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(place)
    sys.argv = arguments
    program = arguments[0]
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    numpy.random.seed()
    main = type(sys)("__main__")
    main.__file__, main.__builtins__ = program, __builtins__
    sys.modules["__main__"] = main
    with open(program, "rb") as file:
        return compile(file.read(), program, "exec")


if __name__ == "__main__":
    preload()
    code = serve(socket.socket(fileno=int(sys.argv[1])))
    if code:
        exec(code, sys.modules["__main__"].__dict__)
