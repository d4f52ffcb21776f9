# Reduced gradients of sharded parameters, merged over the ranks that hold the parts. This alone
# communicates, and only for those who asked for it.
from __future__ import annotations

import collections

import numpy
import torch
from torch import Tensor

from trainmon import _core
from trainmon.base.row_state import COUNT, FIELDS
from trainmon.base.signals import pass_on
from trainmon.torch.measuring import ops
from trainmon.torch.measuring.ops import dtype_name
from trainmon.torch.parameters.rank_tables import FAREWELL, Exchange, Sent
from trainmon.torch.wrappers.contract import Parameter
from trainmon.torch.wrappers.dtensors import dtensor_type, local_of

MOST_PENDING = 64  # gatherings not yet answered
ABSENT = -1.0  # its count, where a rank has no gradient


class Shards:
    """read() measures the local parts. gather(), on all ranks at the same place of their program,
    merges their states. It is one all_gather of an Exchange per mesh, 112 bytes a parameter,
    which nobody waits for. Where it fails, and from then on, rows are those of this rank's
    parts."""

    def __init__(self, adapter):
        self.adapter = adapter
        self.states: dict[int, numpy.ndarray] = {}  # by id of parameter, since the last gather()
        self.meshes: list[tuple[Exchange, list]] = []  # with the keys of its rows
        self.rows: dict[tuple, int] = {}  # key -> place in its table
        self.reads = 0  # by optimizers: ranks that skip an end() are found by them
        self.pending: collections.deque[Merging] = collections.deque()
        self.why = ""  # nothing is merged any more
        self.alone = 0  # rows of this rank's parts
        try:
            self._meet()
        except Exception as error:
            pass_on(error)
            self.give_up(str(error))

    def _meet(self) -> None:
        found: dict[tuple, list] = {}
        for parameter in self.adapter.parameters:
            dims = _sharded_dims(parameter.tensor)
            if dims:
                found.setdefault((parameter.tensor.device_mesh, dims), []).append(parameter)
        for (mesh, dims), parameters in found.items():
            keys = [_key(p) for p in parameters]
            terms = repr([(*_key(p), tuple(p.tensor.shape)) for p in parameters])
            exchange = Exchange(_ranks(mesh, dims), terms, (len(keys), len(FIELDS)))
            # Not before: those of a mesh that cannot be met are read as any other parameter.
            self.rows.update((key, row) for row, key in enumerate(keys))
            self.meshes.append((exchange, keys))

    def takes(self, parameter: Parameter) -> bool:
        return _key(parameter) in self.rows and bool(_sharded_dims(parameter.tensor))

    def read(self, parameters: list[Parameter]) -> None:
        adapter, held, locals_ = self.adapter, [], []
        for parameter in parameters:
            gradient = parameter.tensor.grad
            if any(placement.is_partial() for placement in getattr(gradient, "placements", ())):
                why = "a sum still to be made over the ranks that hold it"
                adapter.coverage.not_covered(f"grad_reduced of {parameter.label}", why)
            elif gradient is not None:
                held.append(parameter)
                locals_.append(local_of(gradient))
        eps = adapter.config["eps"]
        states, elsewhere, refused = _core.measure_tensors(locals_, eps, 1)
        for place in elsewhere:  # waits for the device: the states travel by the host
            state = ops.measure(locals_[place], eps)
            states[place] = state.to("cpu", torch.float64).numpy()
        for place, why in refused:
            adapter.core.refuse(why)
            states[place] = ABSENT
        for parameter, state in zip(held, states, strict=True):
            self.states[id(parameter.tensor)] = state

    def gather(self, steps, parameters: list[Parameter], step: int) -> None:
        """Rows of the open window, the step-th one: at once, their values when they are here."""
        while self.pending and self.pending[0].is_over:
            self.pending.popleft()
        if len(self.pending) >= MOST_PENDING:
            self.give_up(f"ranks are {MOST_PENDING} steps apart")
        by_key = {_key(p): p for p in parameters if p.selected and p.tensor.requires_grad}
        read, self.states = self.states, {}
        for exchange, keys in self.meshes:
            table = numpy.full((len(keys), len(FIELDS)), ABSENT)
            mine = []
            for row, key in enumerate(keys):
                state = read.get(id(by_key[key].tensor)) if key in by_key else None
                if state is not None:
                    table[row] = state
                    mine += [by_key[key]] if state[COUNT] >= 0 else []
            sent = None if self.why else self._send(exchange, table, step)
            self._add(steps, mine, Merging(self, sent, table))

    def _send(self, exchange: Exchange, table: numpy.ndarray, step: int) -> Sent | None:
        try:
            return exchange.send(table, (step, self.reads))
        except Exception as error:
            pass_on(error)
            self.give_up(str(error))
            return None

    def _add(self, steps, parameters: list[Parameter], merging: Merging) -> None:
        adapter = self.adapter
        core, late = adapter.core, adapter.late
        ticket = 0
        if steps.recording and parameters:
            late.seal()  # a ticket is for the rows since the last one
            accum = core.accum(steps.index)
            for parameter in parameters:
                series = adapter.registry.series_of(parameter, "grad_reduced")
                shape = tuple(parameter.tensor.shape)
                dtype = dtype_name(parameter.tensor)
                core.add_late_row(series, dtype, shape, steps.window, accum, 0, 0)
            ticket = core.seal_late()
        self.pending.append(merging)
        late.follow(merging, lambda values: core.fulfil(ticket, values) if ticket else None)
        late.poll()

    def settle(self, seconds: float) -> None:
        """Waits for what was sent, but not longer than this."""
        self.adapter.late.drain(seconds)
        if any(not merging.is_over for merging in self.pending) and not self.why:
            self.give_up("other ranks had not ended their steps when this one stopped")
            self.adapter.late.poll()

    def give_up(self, why: str) -> None:
        if self.why:
            return
        self.why = why.splitlines()[0] if why else "unknown"
        coverage = self.adapter.coverage
        coverage.not_covered("grad_reduced merged over ranks", self.why)
        coverage.say_once(f"rows of sharded parameters are not merged from now on: {self.why}")
        self.close(0.0)

    def close(self, seconds: float = FAREWELL) -> None:
        for exchange, _ in self.meshes:
            try:
                exchange.close(seconds)
            except Exception as error:
                pass_on(error)
                self.why = self.why or str(error)


class Merging:
    """What Late waits for: the states of one mesh's parameters, of those this rank has."""

    def __init__(self, shards: Shards, sent: Sent | None, table: numpy.ndarray):
        self.shards, self.sent, self.table = shards, sent, table
        self.is_over = False

    def ready(self) -> bool:
        return self.sent is None or bool(self.shards.why) or self.sent.ready()

    def values(self) -> torch.Tensor:
        self.is_over = True
        shards, table = self.shards, self.table
        present = table[:, COUNT] >= 0
        merged = None
        if self.sent is not None and self.sent.ready():
            try:
                merged = _merged(self.sent.values())
            except Exception as error:
                pass_on(error)
                shards.give_up(str(error))
        if merged is None:
            shards.alone += int(present.sum())
            merged = table
        return torch.from_numpy(numpy.ascontiguousarray(merged[present]))


def _key(parameter: Parameter) -> tuple:
    return parameter.chunk, parameter.name


def _ranks(mesh, dims: tuple[int, ...]) -> list[int]:
    """Those that hold the other parts of what this rank has a part of."""
    here = mesh.get_coordinate()
    index = tuple(slice(None) if d in dims else here[d] for d in range(mesh.ndim))
    return mesh.mesh[index].flatten().tolist()


def _sharded_dims(tensor: Tensor) -> tuple[int, ...]:
    """Dimensions of the mesh over which a DTensor is cut into parts."""
    dtensor = dtensor_type()
    if dtensor is None or not isinstance(tensor, dtensor):
        return ()
    return tuple(dim for dim, placement in enumerate(tensor.placements) if placement.is_shard())


def _merged(tables: list[numpy.ndarray]) -> numpy.ndarray:
    merged = tables[0].copy()
    for row in range(len(merged)):
        states = numpy.stack(
            [table[row] for table in tables if table[row, COUNT] >= 0] or [merged[row]]
        )
        if states[0, COUNT] >= 0:
            merged[row] = _core.merge_states(states)
    return merged
