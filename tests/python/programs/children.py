# How a child ended that may hang: of programs that fork.
import os
import signal
import time


def ended(pid, hangs_after):
    """The exit status of a child; None where it hung for so many seconds. It is killed then."""
    due = time.monotonic() + hangs_after
    while time.monotonic() < due:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    os.kill(pid, signal.SIGABRT)  # faulthandler shows where it is
    time.sleep(1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None
