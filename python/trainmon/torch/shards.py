# Reduced gradients of sharded parameters, merged over the ranks that hold the parts: the one thing
# here that communicates, and only for those who asked for it.
from __future__ import annotations

import numpy
import torch
from torch import Tensor

from trainmon import _core
from trainmon.torch import ops
from trainmon.torch.contract import Parameter, dtype_name
from trainmon.torch.dtensors import dtensor_type, local_of

COLUMNS = 14  # of a state, python/bindings/states.h
ABSENT = -1.0  # its count, where a rank has no gradient


class Shards:
    """read() measures the local parts; gather(), on all ranks at the same place of their program,
    merges their states: one all_gather per sharded dimension of a mesh, 112 bytes a parameter."""

    def __init__(self, adapter):
        self.adapter = adapter
        self.states: dict[
            int, numpy.ndarray
        ] = {}  # by id of the parameter, since the last gather()

    def takes(self, parameter: Parameter) -> bool:
        return bool(_sharded_dims(parameter.tensor))

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
        for place in elsewhere:  # waits for the device, as the all_gather will
            state = ops.measure(locals_[place], eps)
            states[place] = state.to("cpu", torch.float64).numpy()
        for place, why in refused:
            adapter.core.refuse(why)
            states[place] = ABSENT
        for parameter, state in zip(held, states, strict=True):
            self.states[id(parameter.tensor)] = state

    def gather(self, steps, parameters: list[Parameter]) -> None:
        """Rows of the open window. `parameters` must be the same ones on all ranks."""
        meshes: dict[tuple, list[Parameter]] = {}
        for parameter in parameters:
            if parameter.selected and parameter.tensor.requires_grad:
                dims = _sharded_dims(parameter.tensor)
                if dims:
                    mesh = parameter.tensor.device_mesh
                    meshes.setdefault((mesh, dims), []).append(parameter)
        read, self.states = self.states, {}
        for (mesh, dims), mine in meshes.items():
            table = numpy.full((len(mine), COLUMNS), ABSENT)
            for row, parameter in enumerate(mine):
                if id(parameter.tensor) in read:
                    table[row] = read[id(parameter.tensor)]
            for dim in dims:
                table = _merged(_gathered(table, mesh, dim))
            self._add(steps, mine, table)

    def _add(self, steps, parameters: list[Parameter], table: numpy.ndarray) -> None:
        core, registry = self.adapter.core, self.adapter.registry
        present = table[:, 0] >= 0
        if not steps.recording or not present.any():
            return
        self.adapter.late.seal()  # a ticket is for the rows since the last one
        accum = core.accum(steps.index)
        for parameter, is_there in zip(parameters, present, strict=True):
            if is_there:
                series = registry.series_of(parameter, "grad_reduced")
                shape = tuple(parameter.tensor.shape)
                dtype = dtype_name(parameter.tensor)
                core.add_late_row(series, dtype, shape, steps.window, accum, 0, 0)
        core.fulfil(core.seal_late(), numpy.ascontiguousarray(table[present]))


def _sharded_dims(tensor: Tensor) -> tuple[int, ...]:
    """Dimensions of the mesh over which a DTensor is cut into parts."""
    dtensor = dtensor_type()
    if dtensor is None or not isinstance(tensor, dtensor):
        return ()
    return tuple(dim for dim, placement in enumerate(tensor.placements) if placement.is_shard())


def _gathered(table: numpy.ndarray, mesh, dim: int) -> list[numpy.ndarray]:
    group = mesh.get_group(dim)
    with torch.no_grad():
        mine = torch.from_numpy(table).to(mesh.device_type)
        all_tables = [torch.empty_like(mine) for _ in range(mesh.size(dim))]
        torch.distributed.all_gather(all_tables, mine, group=group)
        return [one.cpu().numpy() for one in all_tables]


def _merged(tables: list[numpy.ndarray]) -> numpy.ndarray:
    merged = tables[0].copy()
    for row in range(len(merged)):
        states = numpy.stack(
            [table[row] for table in tables if table[row, 0] >= 0] or [merged[row]]
        )
        if states[0, 0] >= 0:
            merged[row] = _core.merge_states(states)
    return merged
