# What the gradient probes of all frameworks have in common: the core behind one, and an end with the process.
from __future__ import annotations

import atexit
import json
import weakref

from trainmon import _core

LEAST_QUEUE = 64.0  # MB
STOP_TIMEOUT = 60.0  # seconds for the disk; a step is worth having as a whole

at_work: weakref.WeakSet = weakref.WeakSet()  # those to stop when the process ends


@atexit.register
def _stop_all() -> None:
    for probe in list(at_work):
        probe.stop()


def core_of_probe(
    directory: str,
    rank: int,
    world: int,
    elements: int,
    *,
    level: str,
    bounds,
    signs: str,
    digest: str,
    digest_column: str,
    ternary: bool = False,
    **settings,
):
    """The core of a probe that writes to `directory`. `elements`: of all gradients of a step together,
    for whose signs there is to be room; `settings`: further keys of the configuration."""
    planes = 0 if level == "L0" or signs == "none" else 2 if ternary else 1
    queue_mb = max(LEAST_QUEUE, 2.5 * planes * elements / 8 / 2**20)
    settings |= {"sinks": [], "queue_mb": queue_mb, "stop_timeout_seconds": STOP_TIMEOUT}
    part = {
        "intervals": level == "L2",
        "bounds": [float(bound) for bound in bounds],
        "bound_texts": [json.dumps(bound) for bound in bounds],
        "planes": planes,
        "npy": signs == "npy",
        "digest": digest,
        "digest_column": digest_column,
    }
    return _core.Monitor(
        json.dumps(settings),
        json.dumps({"rank": rank, "world_size": world}),
        json.dumps({"directory": directory, "grad_probe": part}),
    )
