# A command that times itself, as a process of its own.
import subprocess
import sys


def seconds(command: list[str]) -> float:
    """The number behind the last line `seconds N` that it prints; ends the benchmark without one."""
    done = subprocess.run(command, capture_output=True, text=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("seconds ")]
    if not found:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return float(found[-1].split()[1])
