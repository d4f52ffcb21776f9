# Starts a script as one or several ranks, each a process of its own, and never waits for ever.
import concurrent.futures
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import forked

SHARED = pathlib.Path(__file__).resolve().parent  # what programs of all folders import
HERE = SHARED / "programs"  # where the programs are


def command_line():
    """The trainmon that belongs to the package under test: of a build directory, or installed."""
    import trainmon

    built = pathlib.Path(trainmon.__file__).parents[2] / "src" / "cli" / "trainmon"
    return os.fspath(
        built if built.exists() else pathlib.Path(sys.executable).with_name("trainmon")
    )


def finds_nothing(code, text):
    """Whether `doctor` of this machine is content, but for a disk that is nearly full."""
    found = [line for line in text.splitlines() if line.startswith("finding ")]
    full = [line for line in found if line.endswith(" are free in the working directory")]
    return found == full and code == min(1, len(full))


@dataclasses.dataclass
class Ended:
    rank: int
    code: int
    out: str
    err: str

    @property
    def fine(self):
        return self.code == 0


def programs_environment():
    """That of a program of one rank, but for its rank."""
    path = os.pathsep.join(filter(None, (str(SHARED), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "PYTHONPATH": path}


def start(
    script,
    *args,
    rank=0,
    ranks=1,
    environment=None,
    meeting=None,
    interpreter=None,
    inside=(),
    **options,
):
    """`script` as one rank; `inside` is a command that starts the one which it gets."""
    env = programs_environment()
    env.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    if meeting:
        env["MEETING_POINT"] = f"file://{meeting}"
    env.update(environment or {})
    command = [*inside, interpreter or sys.executable, str(HERE / script), *map(str, args)]
    options = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        **options,
    }
    can_fork = not interpreter and not inside and forked.serves(env, options)
    return (forked.Forked if can_fork else subprocess.Popen)(command, env=env, **options)


def join():
    """For a program that `run` started as several ranks: joins them. Its rank, and how many."""
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meeting = os.environ["MEETING_POINT"]
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    return rank, ranks


def chosen_rows(request):
    """The parameters `row` of the tests of a module that this pytest runs and does not skip."""
    items = [item for item in request.session.items if item.path == request.path]
    return list(
        dict.fromkeys(
            item.callspec.params["row"]
            for item in items
            if hasattr(item, "callspec") and not any(m.args[0] for m in item.iter_markers("skipif"))
        )
    )


def finish(process, timeout, rank=0):
    """Waits; a process that hangs is aborted, so that its stacks are in `err`."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        try:
            out, err = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        err = f"HUNG for {timeout} s\n" + (err or "")
    return Ended(rank, process.returncode, out or "", err or "")


def run(script, *args, ranks=1, timeout=600, check=True, environment=None, interpreter=None):
    """Runs `script` on every rank and returns how each ended, by rank."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = pathlib.Path(folder, "meeting") if ranks > 1 else None
        started = [
            start(
                script,
                *args,
                rank=r,
                ranks=ranks,
                environment=environment,
                meeting=meeting,
                interpreter=interpreter,
            )
            for r in range(ranks)
        ]
        # All at a time: a rank whose output nobody reads waits for room in its pipe.
        with concurrent.futures.ThreadPoolExecutor(ranks) as readers:
            ended = list(
                readers.map(lambda rank: finish(started[rank], timeout, rank), range(ranks))
            )
    if check:
        bad = [e for e in ended if not e.fine]
        assert not bad, "\n".join(
            f"--- rank {e.rank} ended with {e.code}\n{e.out[-2000:]}{e.err[-6000:]}" for e in bad
        )
    return ended
