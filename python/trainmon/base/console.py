# How the Python side speaks to a person: nothing that only says something raises or waits.
from __future__ import annotations

import io
import logging
import sys

from trainmon.base.signals import pass_on


def say(text: str, stream=None, end: str = "\n") -> None:
    """Writes to standard error, or another text stream: at once, or not at all. What is lost is lost
    where nobody reads, or on a full disk."""
    try:
        stream = sys.stderr if stream is None else stream
        if stream is None:  # closed from the start
            return
        descriptor = _descriptor(stream)
        if descriptor is None:
            stream.write(text + end)
            stream.flush()
            return
        # Past the stream's buffer: what fails would stay there, and fail again when Python ends.
        from trainmon import _core  # here: naming the logger loads no extension

        _core.write_at_once(descriptor, (text + end).encode(stream.encoding, "backslashreplace"))
    except Exception as error:
        pass_on(error)


def _descriptor(stream) -> int | None:
    """Of a file, a pipe or a terminal; None for what only looks like one, as in a notebook."""
    if not isinstance(stream, io.TextIOWrapper):
        return None
    try:
        return stream.fileno()
    except io.UnsupportedOperation:
        return None


class Log:
    """A logger of the user's, to whom he may add what handlers he likes. None of them ends training:
    what one raises is lost, and one that writes to a stream does so at once or not at all."""

    def __init__(self, name: str):
        self.logger = logging.getLogger(name)

    def info(self, text: str, *values) -> None:
        self._tell(logging.INFO, text, values)

    def warning(self, text: str, *values) -> None:
        self._tell(logging.WARNING, text, values)

    def error(self, text: str, *values) -> None:
        self._tell(logging.ERROR, text, values)

    def _tell(self, level: int, text: str, values: tuple) -> None:
        try:
            logger = self.logger
            if not logger.isEnabledFor(level):
                return
            file, line, function, _ = logger.findCaller(stacklevel=3)
            record = logger.makeRecord(logger.name, level, file, line, text, values, None, function)
            record = _filtered(logger, record)
            if record is None:
                return
            handlers = _handlers(logger)
            if not handlers and level >= logging.WARNING:
                say(record.getMessage())
        except Exception as error:
            pass_on(error)
            return
        for handler in handlers:
            if level >= handler.level:
                _hand_over(handler, record)


def _filtered(place, record):
    """What filters, of a logger or a handler, make of a record; None: nothing."""
    found = place.filter(record)
    return (record if found is True or isinstance(found, int) else found) if found else None


def _handlers(logger) -> list:
    found = []
    while logger is not None:
        found += logger.handlers
        logger = logger.parent if logger.propagate else None
    return found


def _hand_over(handler, record) -> None:
    try:
        if type(handler).emit is not logging.StreamHandler.emit:
            handler.handle(record)
            return
        record = _filtered(handler, record)
        if record is not None:
            say(handler.format(record), handler.stream, handler.terminator)
    except Exception as error:
        pass_on(error)


log = Log("trainmon")
