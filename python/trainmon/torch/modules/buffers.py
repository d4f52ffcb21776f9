# The buffers of a model, at the end of each step of the clock: rows of kind buffer.
"""A framework may make the buffers of ranks equal, or leave to each rank its own. So their series say nothing
of how ranks relate."""

from __future__ import annotations

from torch.nn.parameter import is_lazy

from trainmon.torch.wrappers.module_names import named, within


class OfChunk:
    """Where the buffers of one chunk are. Not the tensors: a forward may put another one in."""

    def __init__(self):
        self.places: list[tuple] = []  # (buffers of a module, key)
        self.series: list[int] = []


class Buffers:
    def __init__(self, adapter):
        self.adapter = adapter
        self.chunks: list[OfChunk] = []
        self.held: list = []  # the buffers of each module
        self.count = -1  # of all of them

    def forget(self) -> None:
        """The model has other modules."""
        self.count = -1

    def read(self) -> None:
        if self.count != sum(map(len, self.held)):
            self._find()
        try:
            found = self._held()
        except KeyError:  # one went, and another came
            self._find()
            found = self._held()
        sweep = self.adapter.clock.sweeps.sweep
        for of, wrapper, tensors in zip(self.chunks, self.adapter.wrappers, found, strict=True):
            sweep(of.series, *wrapper.locals(tensors), 0)

    def _held(self) -> list[list]:
        return [[buffers[key] for buffers, key in of.places] for of in self.chunks]

    def _find(self) -> None:
        adapter = self.adapter
        self.held = [m._buffers for root in adapter.roots for _, m in named(root)]
        self.count = sum(map(len, self.held))
        self.chunks = [OfChunk() for _ in adapter.wrappers]
        for chunk, name, tensor, buffers, key in buffers_of(adapter):
            self.chunks[chunk].places.append((buffers, key))
            self.chunks[chunk].series.append(adapter.buffer_series(name, chunk, tensor))


def buffers_of(adapter) -> list[tuple]:
    """(chunk, name, tensor, buffers of its module, key) of those that are watched, each once. The tensor
    is None where the module makes it later."""
    found: dict = {}
    for chunk, root in enumerate(adapter.roots):
        for prefix, module in named(root):
            for key, tensor in module._buffers.items():
                name = adapter.selection.within(chunk, within(prefix, key))
                if is_lazy(tensor) or not adapter.selection.takes_name(name):
                    continue
                place = (id(module), key) if tensor is None else id(tensor)
                found.setdefault(place, (chunk, name, tensor, module._buffers, key))
    return list(found.values())
