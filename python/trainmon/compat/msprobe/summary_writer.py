# What scripts know as TrainerMon.summary_writer: they flush or close it at the end of a training.
from __future__ import annotations

from trainmon.base.console import log


class SummaryWriter:
    """Files are written by the monitor's own thread: flush() and close() wait until the files have
    what was recorded so far. The monitor goes on, as the peer's does."""

    def __init__(self, face):
        self._face = face

    def flush(self) -> None:
        if self._face._watch is None:
            return
        try:
            self._face._settle()
        except Exception as error:
            log.error("trainmon: the files were not completed: %s", error)

    close = flush
