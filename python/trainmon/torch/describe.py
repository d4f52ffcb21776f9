# What a model consists of, under the names that patterns and rows use. Nothing is run.
from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from trainmon.torch.measuring.ops import dtype_name
from trainmon.torch.wrappers import module_names
from trainmon.torch.wrappers.choice import wrapper_of
from trainmon.torch.wrappers.chunks import chunks_of, names_of
from trainmon.torch.wrappers.contract import parameters_under


@dataclass(frozen=True)
class Module:
    chunk: int
    name: str  # "" is the model itself
    type: str
    parameters: dict[str, str]  # own ones: name -> "float32 [4, 3]", with "frozen" where they are
    is_called: bool  # False for containers such as ModuleList, whose hooks never run


class Description(list):
    """Modules in order. As text: one line each, indented as they are nested."""

    def __str__(self) -> str:
        lines = []
        for module in self:
            depth = module.name.count(".") + 1 if module.name else 0
            chunk = f"{module.chunk}:" if any(m.chunk for m in self) else ""
            line = f"{'  ' * depth}{chunk}{module.name or '(model)'}  {module.type}"
            lines.append(line + ("" if module.is_called else "  (never called)"))
            for name, what in module.parameters.items():
                lines.append(f"{'  ' * depth}    {name}  {what}")
        return "\n".join(lines)


def describe(model: nn.Module | list[nn.Module]) -> Description:
    """The modules and parameters of a model, or of several pipeline chunks, without running it.

    `print(trainmon.describe(model))` shows the names that `include`, `exclude` and the like take.
    Raises TypeError for what is no torch.nn.Module.

    >>> print(trainmon.describe(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())))
    (model)  Sequential
      0  Linear
          0.weight  float32 [2, 4]
          0.bias  float32 [2]
      1  ReLU
    """
    roots = chunks_of(model)
    owned: dict[tuple[int, int], dict[str, str]] = {}
    wrappers = [wrapper_of(root) for root in roots]
    for wrapper, name in zip(wrappers, names_of(model)):
        wrapper.chunk_name = name
    for parameter in parameters_under(wrappers):
        tensor = parameter.tensor
        what = f"{dtype_name(tensor)} {list(parameter.shape)}"
        what += "" if tensor.requires_grad else "  frozen"
        what += f"  also {', '.join(parameter.aliases)}" if parameter.aliases else ""
        place = parameter.chunk, id(parameter.owner)
        owned.setdefault(place, {})[parameter.name] = what
    found, seen = Description(), set()
    for chunk, root in enumerate(roots):
        called = {
            id(module)
            for _, module in module_names.callable_ones(root, set(), lambda what, why: None)
        }
        for name, module in module_names.named(root):
            name = module_names.within(wrappers[chunk].chunk_name, name)
            if (chunk, name) in seen:  # a wrapper has the name of what it wraps
                found.pop()
            seen.add((chunk, name))
            own = owned.get((chunk, id(module)), {})
            is_called = id(module) in called
            found.append(Module(chunk, name, type(module).__name__, own, is_called))
    return found
