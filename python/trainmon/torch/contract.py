# The contract between the adapter and a way of spreading a model over processes.
"""A wrapper answers four questions about one model chunk: is it mine, how does
the local part of a parameter sit in the whole, how are local tensors read, and where do gradients
appear before they are reduced. A new one is a file with a subclass and a line in `wrapper_of`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from trainmon.torch import modules

# Kinds of gradients that differ between the ranks that will reduce them.
BEFORE_REDUCTION = ("grad_unreduced", "grad_micro")


@dataclass(frozen=True)
class Placement:
    """How a local tensor sits in the full one, in the words of include/trainmon/record.h."""

    replication: str
    space: str = "whole"
    ranges: tuple = ()
    full_shape: tuple = ()


@dataclass(eq=False)
class Parameter:
    """One parameter under the name that the user gave it. Tied ones appear once."""

    name: str
    chunk: int
    tensor: Tensor  # the object an optimizer holds
    owner: nn.Module
    key: str  # owner._parameters[key]
    aliases: list[str] = field(default_factory=list)
    label: str = ""  # the name of its series
    optimizer: int = 0  # whose windows its rows follow
    owned: bool = False  # whether that optimizer updates it
    selected: bool = True
    hooked: bool = False  # a tensor was found that its unreduced gradient accumulates into
    series: dict[str, int] = field(default_factory=dict)  # by kind

    @property
    def held(self) -> Tensor | None:
        """What the module holds now, which is another object after it was re-assigned."""
        try:
            return self.owner._parameters[self.key]
        except KeyError:
            return None


class Wrapper:
    """Base of all wrappers. Nothing here may communicate between processes."""

    name = ""

    def __init__(self, root: nn.Module):
        self.root = root

    @classmethod
    def claims(cls, root: nn.Module) -> bool:
        """Whether this model is spread this way, judged by its objects."""
        raise NotImplementedError

    def reduces(self) -> bool:
        """Whether gradients are reduced over processes between backward and step."""
        raise NotImplementedError

    def placement(self, kind: str, tensor: Tensor | None) -> Placement:
        """Of a parameter's tensor for that kind; tensor is None for activations."""
        raise NotImplementedError

    def locals(self, tensors: list, attribute: str | None = None) -> tuple[list, str | None]:
        """(tensors, attribute) such that `attribute` of each is the local value, None where there
        is none. A wrapper whose tensors are local already returns its arguments."""
        return tensors, attribute

    def hook_gradients(self, parameters: list[Parameter], registry) -> None:
        """Calls registry.unreduced(parameter, tensor) for each tensor into which the backward
        accumulates the parameter's gradient before it is reduced, now or as soon as it exists; and
        registry.reduced(parameter) where the reduced one appears on another tensor."""
        raise NotImplementedError

    def unhooked(self) -> None:
        """All hooks that the registry was given have been taken off; hook_gradients() may follow."""

    def came_later(self, root: nn.Module) -> str:
        """What has changed how the model is spread since this wrapper was chosen; "" if nothing."""
        return ""

    def is_replaced(self, parameter: Parameter) -> bool:
        """Whether the module now holds another tensor for good (loaded, copied, re-assigned)."""
        return parameter.held is not parameter.tensor


def parameters_of(roots: list[nn.Module]) -> list[Parameter]:
    """Every parameter once, under its first name; further names are its aliases."""
    found: dict[int, Parameter] = {}
    for chunk, root in enumerate(roots):
        for prefix, module in modules.named(root):
            for key, tensor in module._parameters.items():
                if tensor is None:
                    continue
                if isinstance(tensor, nn.parameter.UninitializedParameter):
                    raise TypeError(
                        f"model has lazy parameters ({prefix}.{key}): run one forward before watch()"
                    )
                name = f"{prefix}.{key}" if prefix else key
                known = found.get(id(tensor))
                if known is None:
                    found[id(tensor)] = Parameter(name, chunk, tensor, module, key)
                elif name != known.name and name not in known.aliases:
                    known.aliases.append(name)
    return list(found.values())


def wrapper_of(root: nn.Module) -> Wrapper:
    """The wrapper of a model chunk; the last one takes what no other claims."""
    from trainmon.torch.dtensors import DTensors
    from trainmon.torch.fsdp2 import Fsdp2
    from trainmon.torch.plain import Plain

    wrappers = (Fsdp2, DTensors, Plain)
    return next(wrapper(root) for wrapper in wrappers if wrapper.claims(root))


def dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def has_post_accumulate_hook() -> bool:
    """The hook that sees unreduced gradients exists since torch 2.1."""
    return hasattr(torch.Tensor, "register_post_accumulate_grad_hook")


def as_text(name: str) -> str:
    """A name as the core takes it: lone surrogates, which are not UTF-8, are written out."""
    return name.encode("utf-8", "backslashreplace").decode()
