# The buffers of a model, at the end of each step of the clock: rows of kind buffer.
"""A framework may make the buffers of ranks equal, or leave to each rank its own. So their series say nothing
of how ranks relate."""

from __future__ import annotations

from torch import Tensor
from torch.nn.parameter import is_lazy

from trainmon.torch.wrappers.module_names import named, within


class OfChunk:
    """Where the buffers of one chunk are. Not the tensors: a forward may put another one in."""

    def __init__(self):
        self.places: list[tuple] = []  # (buffers of a module, key)
        self.series: list[int] = []


class Buffers:
    def __init__(self, adapter, part):
        self.adapter, self.part = adapter, part
        self.chunks: list[OfChunk] = []
        self.held: list = []  # the buffers of each module
        self.count = -1  # of all of them

    def forget(self) -> None:
        """The model has other modules."""
        self.count = -1

    def read(self) -> None:
        self.part.run(self._read)

    def _read(self) -> None:
        if self.count != sum(map(len, self.held)):
            self._find()
        try:
            found = self._tensors()
        except KeyError:  # one went, and another came
            self._find()
            found = self._tensors()
        sweep = self.adapter.clock.sweeps.sweep
        for of, wrapper, tensors in zip(self.chunks, self.adapter.wrappers, found, strict=True):
            sweep(of.series, *wrapper.locals(tensors), 0)

    def _tensors(self) -> list[list]:
        """By chunk; None for what is no tensor, and for one that has a row under an earlier name."""
        values = [[buffers[key] for buffers, key in of.places] for of in self.chunks]
        seen = {id(None)}
        for of_chunk in values:
            for i, value in enumerate(of_chunk):
                if id(value) in seen or not isinstance(value, Tensor):
                    of_chunk[i] = None
                else:
                    seen.add(id(value))
        return values

    def _find(self) -> None:
        adapter = self.adapter
        self.held = [m._buffers for root in adapter.roots for _, m in named(root)]
        self.count = sum(map(len, self.held))
        self.chunks = [OfChunk() for _ in adapter.wrappers]
        for chunk, name, value, buffers, key in buffers_of(adapter):
            self.chunks[chunk].places.append((buffers, key))
            self.chunks[chunk].series.append(adapter.buffer_series(name, chunk, value))


def buffers_of(adapter) -> list[tuple]:
    """(chunk, name, value, buffers of its module, key) of those that are watched, under each of their names.
    The value is None where the module makes it later."""
    return [
        (chunk, name, value, module._buffers, key)
        for chunk, root in enumerate(adapter.roots)
        for prefix, module in named(root)
        for key, value in module._buffers.items()
        if adapter.selection.takes_name(
            name := adapter.selection.within(chunk, within(prefix, str(key)))
        )
        and not is_lazy(value)
    ]


def tensors_of(adapter) -> list[tuple[int, str, Tensor]]:
    """(chunk, name, tensor) of those that have a row in a step, as the model is now."""
    found: dict[int, tuple] = {}
    for chunk, name, value, _, _ in buffers_of(adapter):
        if isinstance(value, Tensor):
            found.setdefault(id(value), (chunk, name, value))
    return list(found.values())
