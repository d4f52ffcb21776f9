# Ranks begin at the same instant in one directory, round after round.
"""starts_run.py OUT RANKS ROUNDS: prints, by exit code, how many processes ended with it. A rank that trained and
wrote each of its rows ends with 0."""

import collections
import json
import os
import sys
import traceback
import warnings

import chain_run
import trainmon

OUT, (RANKS, ROUNDS) = sys.argv[1], map(int, sys.argv[2:])
STEPS = 3


def rank(number, begin):
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(RANKS))
    warnings.simplefilter("ignore")
    os.read(begin, 1)  # until all are there
    model, optimizer = chain_run.training()
    monitor = trainmon.watch(model, optimizer, kinds=chain_run.KINDS, every=1, out=OUT)
    for step in range(STEPS):
        chain_run.step_of(model, optimizer, step)
    health = monitor.stop()
    expected = STEPS * 12
    is_whole = health["rows_produced"] == health["sinks"][0]["rows_written"] == expected
    os._exit(0 if is_whole else 3)


def begin_together():
    reading, writing = os.pipe()
    children = []
    for number in range(RANKS):
        child = os.fork()
        if child == 0:
            os.close(writing)
            try:
                rank(number, reading)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(4)
        children.append(child)
    os.close(writing)  # now each of them sees the end of the pipe
    os.close(reading)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def main():
    chain_run.warm_up()
    ended = collections.Counter()
    for _ in range(ROUNDS):
        ended.update(begin_together())
    print(json.dumps(ended))


main()
