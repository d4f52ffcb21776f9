# The number of a call of a model chunk at the place that is open.
from __future__ import annotations


class Calls:
    """Counts calls of each chunk, from 0 at every new place."""

    __slots__ = ("place", "counts")

    def __init__(self, chunks: int):
        self.place, self.counts = None, [0] * chunks

    def next(self, place, chunk: int) -> int:
        if place is not self.place:
            self.place, self.counts = place, [0] * len(self.counts)
        number = self.counts[chunk]
        self.counts[chunk] += 1
        return number
