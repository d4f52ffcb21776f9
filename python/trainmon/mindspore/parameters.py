# The parameters of a model, what an optimizer keeps for each, and how ranks relate.
from __future__ import annotations

from dataclasses import dataclass, field

import mindspore as ms
from mindspore import Parameter as MsParameter
from mindspore import nn
from mindspore.communication import GlobalComm, get_group_size, get_rank

# What is Adam's has the names that other frameworks give it; all else that of the attribute.
STATES = {
    "moment1": "exp_avg",
    "moments1": "exp_avg",
    "moment2": "exp_avg_sq",
    "moments2": "exp_avg_sq",
}
SPREAD = ("data_parallel", "hybrid_parallel")  # parallel modes in which ranks hold the same model


@dataclass(eq=False)
class Parameter:
    """One parameter under its name in the model given. Tied ones appear once."""

    name: str
    chunk: int
    tensor: MsParameter
    label: str = ""  # the name of its series
    optimizer: int = 0  # whose windows its rows follow
    owned: bool = False  # whether that optimizer updates it
    selected: bool = True
    hooked: bool = False  # its gradient was seen in a backward
    series: dict[str, int] = field(default_factory=dict)  # by kind

    @property
    def shape(self) -> tuple:
        return tuple(self.tensor.shape)


def parameters_of(roots: list[nn.Cell]) -> list[Parameter]:
    """Every parameter once, under its first name."""
    found: dict[int, Parameter] = {}
    for chunk, root in enumerate(roots):
        for name, tensor in root.parameters_and_names():
            found.setdefault(id(tensor), Parameter(name, chunk, tensor))
    return list(found.values())


def states_of(optimizer) -> dict[str, list]:
    """What an optimizer keeps per parameter, by kind, each in the order of its parameters."""
    parameters = list(optimizer.parameters)
    own = {id(parameter) for parameter in parameters}
    found: dict[str, list] = {}
    for key, value in vars(optimizer).items():
        if not isinstance(value, (tuple, list)) or len(value) != len(parameters) or not value:
            continue
        if not all(isinstance(one, MsParameter) and id(one) not in own for one in value):
            continue
        if all(one.shape == parameter.shape for one, parameter in zip(value, parameters)):
            found[_kind(optimizer, key)] = list(value)
    return found


def _kind(optimizer, key: str) -> str:
    if key == "moment2" and isinstance(optimizer, nn.AdaMax):
        return "exp_inf"  # a maximum, as torch calls it
    return STATES.get(key, key)


def steps_taken(optimizer) -> int:
    """According to the optimizer itself, 0 if it does not count."""
    count = getattr(optimizer, "global_step", None)
    return int(count.asnumpy().reshape(-1)[0]) if isinstance(count, MsParameter) else 0


def rank_and_world() -> tuple[int, int]:
    return (get_rank(), get_group_size()) if GlobalComm.INITED else (0, 1)


def replication(kind: str, tensor, reduces: bool) -> str:
    """How the values of this kind relate between ranks, in the words of include/trainmon/record.h."""
    if rank_and_world()[1] == 1:
        return "identical"
    if not reduces or getattr(tensor, "layerwise_parallel", False):
        return "independent"
    if tensor is None:
        return "union"
    return "partial" if kind in ("grad_unreduced", "grad_micro") else "identical"


def is_data_parallel() -> bool:
    mode = str(ms.get_auto_parallel_context("parallel_mode"))
    return rank_and_world()[1] > 1 and mode in SPREAD


def dtype_name(tensor) -> str:
    return str(tensor.dtype).lower()
