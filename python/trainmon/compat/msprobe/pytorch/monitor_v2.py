# Monitor V2 on PyTorch: where steps come from, and its names of modules and their tensors.
from __future__ import annotations

from collections.abc import Mapping

import torch

from trainmon.base.console import log
from trainmon.compat.msprobe.names import Targets
from trainmon.torch.adapter import Adapter
from trainmon.torch.steps.declared import DeclaredSteps
from trainmon.torch.steps.optimizers import NoOptimizer, torch_optimizers
from trainmon.torch.steps.relay import Relay
from trainmon.torch.wrappers.chunks import chunks_of

EVERYTHING = {
    "targets": {}, "squash_name": False, "all_xy": True, "print_struct": False,
    "recording_l2_features": False, "l2_targets": {}, "sa_order": "s,b,h,d",
}  # fmt: skip


def rank() -> int:
    return torch.distributed.get_rank() if _is_distributed() else 0


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def has_collectives(rank: int, settings: dict) -> bool:
    ranks = settings["module_ranks"]
    return _is_distributed() and (not ranks or rank in ranks)


class OptimizersSteps(Relay):
    is_declared = False

    def __init__(self, optimizer, at_end):
        inner = list(torch_optimizers(optimizer).values())
        if len(inner) > 1 and not hasattr(optimizer, "chained_optimizers"):
            raise TypeError("start() takes one optimizer; make a TrainerMonitorV2 for each")
        self.optimizers = inner[-1:] + inner[:-1]  # of Megatron's chain the last one ends the step
        super().__init__(self.optimizers[0], lambda: None, at_end)


class DeclaredBySteps(DeclaredSteps):
    """Where start() is given no optimizer: TrainerMonitorV2.step() ends a step."""

    is_declared = True

    def forget(self) -> None:
        self.steps = None


def steps(model, optimizer, at_end):
    return DeclaredBySteps() if optimizer is None else OptimizersSteps(optimizer, at_end)


def adapter(model, optimizer, targets: list[str], steps) -> Adapter:
    if model is None:  # weight_grad alone needs none: names are those of the optimizer's parameters
        model = torch.nn.ParameterDict(
            {
                f"param_{index}": parameter
                for index, parameter in enumerate(
                    p
                    for one in steps.optimizers
                    for group in one.param_groups
                    for p in group["params"]
                )
            }
        )
    roots = chunks_of(model)
    stepped = NoOptimizer(roots) if optimizer is None else steps.optimizers
    selection = Everything(roots, targets, isinstance(model, (list, tuple)))
    found = Adapter(roots, stepped, None, selection, steps)
    for wrapper in found.wrappers:
        wrapper.main_grad = True  # where parameters have one
    return found


class Everything(Targets):
    """All parameters, frozen ones too, and modules whose names contain one of the targets."""

    def __init__(self, roots: list, targets: list[str], has_chunks: bool):
        super().__init__(EVERYTHING, roots)
        self.keywords, self.has_chunks = targets, has_chunks

    def parameter(self, parameter) -> bool:
        return True

    def modules(self, root, chunk, seen, not_covered):
        for label, module in self.everything(root, chunk, seen, not_covered):
            name = f"{chunk}:{label}" if self.has_chunks else label
            if not self.keywords or any(word in name for word in self.keywords):
                yield label, module

    def inputs(self, watched, args, kwargs) -> list[tuple]:
        return _numbered("input", (*args, *kwargs.values()))

    def outputs(self, watched, output) -> list[tuple]:
        if isinstance(output, Mapping):
            output = tuple(output.values())
        return _numbered("output", output if isinstance(output, (tuple, list)) else (output,))

    def takes(self, watched, kind: str, element: str) -> bool:
        return True

    def check(self, parameters, roots, not_covered) -> None:
        names = [
            f"{chunk}:{name}" if self.has_chunks else name
            for chunk, known in enumerate(self.module_names)
            for name in known.names
        ]
        for word in self.keywords:
            if not any(word in name for name in names):
                not_covered(f"target {word!r}", "no module has such a name")
                log.warning("trainmon: target %r is in the name of no module", word)


def _numbered(side: str, values) -> list[tuple]:
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return [(f"{side}.{index}", tensor) for index, tensor in enumerate(tensors)]
