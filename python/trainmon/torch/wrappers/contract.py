# The contract between the adapter and a way of spreading a model over processes.
"""A wrapper answers for one model chunk. It says whether the chunk is its own, and under which
names the parameters are. It says which tensor an optimizer steps for each, what part of that is
the parameter's and how it sits in the whole. It says where gradients appear before they are
reduced. A new one is a file with a subclass and a line in choice.py (docs/adapters.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from trainmon.torch.hooks.hook import Hook
from trainmon.torch.wrappers import module_names

# Kinds of gradients that differ between the ranks that will reduce them.
BEFORE_REDUCTION = ("grad_unreduced", "grad_micro")
OF_WEIGHTS = ("param_origin", "param_updated")
# What `diagnose` may be unable to check.
REDUCE, REPLICAS = "reduce of gradients", "replicas of weights, gradients and moments"
CLIP_BEFORE, CLIP_AFTER = 2, 4  # flags of a row: seen before, after the clipping of gradients


def kept_by(optimizer, tensor: Tensor) -> Mapping | None:
    """What a torch optimizer keeps for it, by key. None: nothing, or what has no keys, as a list."""
    state = optimizer.state.get(tensor)
    return state if isinstance(state, Mapping) else None


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
    tensor: Tensor  # what identifies it, and says whether it is trained
    owner: nn.Module
    key: str  # owner._parameters[key]
    shape: tuple | None = None  # of the whole parameter
    # What optimizers hold for it: itself, a master copy, or a flat tensor that it has a piece of.
    # None where this rank updates nothing of it.
    stepped: Tensor | None = None
    aliases: list[str] = field(default_factory=list)
    also: list[tuple[nn.Module, str]] = field(default_factory=list)  # owners and keys of these
    label: str = ""  # the name of its series
    optimizer: int = 0  # whose windows its rows follow
    owned: bool = False  # whether that optimizer updates it
    selected: bool = True
    renormalised: bool = False  # its forward changes it: nn.Embedding(max_norm=...)
    stepped_beside: bool = False  # an optimizer that is not watched steps it, too
    hooked: bool = False  # a tensor was found that its unreduced gradient accumulates into
    series: dict[str, int] = field(default_factory=dict)  # by kind

    def __post_init__(self):
        if self.shape is None:
            self.shape = tuple(self.tensor.shape)

    @property
    def held(self) -> Tensor | None:
        """What the module holds now, which is another object after it was re-assigned."""
        try:
            return self.owner._parameters[self.key]
        except KeyError:
            return None

    @property
    def places(self) -> list[tuple[nn.Module, str]]:
        """Owner and key, under all of its names."""
        return [(self.owner, self.key), *self.also]

    @property
    def is_held(self) -> bool:
        """Whether the modules still hold it under all of its names."""
        return all(owner._parameters.get(key) is self.tensor for owner, key in self.places)


class Wrapper:
    """Base of all wrappers. Nothing here may communicate between processes."""

    name = ""
    chunk_name = ""  # what the names of its parameters begin with, if the user named the chunk
    keeps_gradients = True  # the .grad that a backward adds to is there until the optimizer's step
    main_grad = (
        False  # gradients add up in an attribute main_grad of parameters, where they have one
    )

    def __init__(self, root: nn.Module, optimizers: tuple = ()):
        self.root, self.optimizers = root, optimizers

    @classmethod
    def claims(cls, root: nn.Module, optimizers: tuple) -> bool:
        """Whether this model is spread this way, judged by its objects, and by those given as
        optimizers: all that wraps one, and itself (steps/optimizers.py)."""
        raise NotImplementedError

    def parameters(self, chunk: int) -> list[Parameter]:
        """Every parameter once, under the user's names. Called again when some were replaced: those
        that are still there must have the same `tensor`."""
        return parameters_of([self.root], chunk)

    def stepped(self, parameter: Parameter) -> Tensor | None:
        """What becomes parameter.stepped."""
        return parameter.tensor

    def stepped_by(self, optimizer) -> list | None:
        """What that torch optimizer updates, where its groups do not always say so; else None."""
        return None

    def steps_taken(self) -> int | None:
        """How many steps training has taken, where the optimizer's own state does not say so."""
        return None

    def turn(self, optimizer) -> tuple[int, int]:
        """(which, how many) calls of its step() are one step of training: the one that is beginning."""
        return 0, 1

    def skipped_step(self) -> bool:
        """Whether the framework has left out a step since this was asked last."""
        return False

    def reduces(self) -> bool:
        """Whether gradients are reduced over processes between backward and step."""
        raise NotImplementedError

    def placement(self, kind: str, parameter: Parameter | None) -> Placement:
        """Of what values(), state() or a hook gives for that kind; parameter is None for
        activations."""
        raise NotImplementedError

    def lies_as(self, parameter: Parameter, kind: str, tensor: Tensor) -> None:
        """Before the first row of a tensor that an optimizer keeps for a parameter, or that is made of
        such: it may lie otherwise. What is noted is for placement()."""

    def locals(self, tensors: list, attribute: str | None = None) -> tuple[list, str | None]:
        """(tensors, attribute) such that `attribute` of each is the local value, None where there
        is none. A wrapper whose tensors are local already returns its arguments."""
        return tensors, attribute

    def values(self, kind: str, parameters: list[Parameter], optimizer) -> list | None:
        """At the begin of a step of that torch optimizer the reduced gradients (grad_reduced) and
        weights (param_origin). At its end the weights (param_updated). They are local parts; None
        gives no row. Instead of a list, None says that all are in parameter.stepped itself, by
        way of locals(): the quickest."""
        return None

    def state(self, parameter: Parameter, optimizer) -> Mapping | None:
        """What the optimizer keeps for it, by key."""
        return kept_by(optimizer, parameter.stepped)

    def has_gradient(self, parameter: Parameter) -> bool:
        """Whether the step that has just ended had one: if not, the state is that of an older step."""
        return parameter.stepped is not None and parameter.stepped.grad is not None

    def loss_scale(self) -> float | Tensor | None:
        """What the framework itself multiplies losses by; None: nothing of its own."""
        return None

    def flags(self, kind: str) -> int:
        """CLIP_BEFORE or CLIP_AFTER for gradients of which that is known."""
        return 0

    def hook_gradients(self, parameters: list[Parameter], registry) -> None:
        """Calls registry.unreduced(parameter, tensor) for each tensor into which the backward
        accumulates the parameter's gradient before it is reduced, now or as soon as it exists.
        Calls registry.reduced(parameter) where the reduced one appears on another tensor. Where
        no tensor's .grad has it: registry.call_after(tensor, find) and registry.report(parameter,
        value)."""
        raise NotImplementedError

    def gradient_now(self, parameter: Parameter) -> Tensor | None:
        """Between a backward and the step, whose gradient this will be if nothing more happens to it."""
        gradient = parameter.tensor.grad
        return getattr(parameter.tensor, "main_grad", gradient) if self.main_grad else gradient

    def chunk_number(self, chunk: int) -> int:
        """Of the chunk among those of all ranks, where ranks have different ones."""
        return chunk

    def unhooked(self) -> None:
        """All hooks that the registry was given have been taken off; hook_gradients() may follow."""

    def is_like(self, other: Wrapper) -> bool:
        """Whether rows say the same under both."""
        return type(self) is type(other)

    def not_checked(self) -> list[tuple[str, str]]:
        """What `diagnose` cannot check here, and why: REDUCE or REPLICAS."""
        return []

    def came_later(self, root: nn.Module) -> str:
        """What has changed how the model is spread since this wrapper was chosen; "" if nothing."""
        return ""

    def is_put_anew(self) -> bool:
        """In a forward: whether something runs it that was not there when this wrapper was chosen, for
        the first time."""
        return False

    def are_uneven(self) -> bool:
        """In a forward: whether ranks may have other numbers of batches, as under torch's Join."""
        return False

    def is_replaced(self, parameter: Parameter) -> bool:
        """Whether a module now holds another tensor for good (loaded, copied, re-assigned)."""
        return not parameter.is_held


class InPieces(Wrapper):
    """Base of wrappers whose optimizers hold other tensors than the model: masters, flat shards. They
    answer stepped() and piece()."""

    framework = ""
    missing = ""  # what the framework lacks that tells the layout of these tensors

    def hook_model_tensors(self, parameters: list[Parameter], registry) -> None:
        """Gradients before they are reduced are those of the model's own tensors. Names the kinds that
        have no rows where the layout cannot be told."""
        for parameter in parameters:
            registry.unreduced(parameter, parameter.tensor)
        if not self.missing:
            return
        for what in ("grad_reduced", "weights", "moments"):
            why = f"this version of {self.framework} is another: {self.missing}"
            registry.adapter.coverage.not_covered(what, why)

    def piece(self, parameter: Parameter, tensor: Tensor) -> Tensor | None:
        """The parameter's part of a tensor of the shape of parameter.stepped."""
        return tensor

    def has_no_pieces(self) -> bool:
        """Whether what optimizers hold for a parameter is all its own: it can be read as it is."""
        return type(self).piece is InPieces.piece

    def values(self, kind, parameters, optimizer):
        found = []
        with torch.no_grad():
            for parameter in parameters:
                value = parameter.stepped
                if kind == "grad_reduced" and value is not None:
                    value = value.grad
                found.append(None if value is None else self.piece(parameter, value))
        return found

    def state(self, parameter, optimizer):
        stepped = parameter.stepped
        state = None if stepped is None else kept_by(optimizer, stepped)
        if not state:
            return None
        if self.has_no_pieces():
            return state
        with torch.no_grad():
            return {
                key: self.piece(parameter, value)
                if isinstance(value, Tensor) and value.shape == stepped.shape
                else value
                for key, value in state.items()
            }

    def is_replaced(self, parameter):
        return False


def parameters_of(roots: list[nn.Module], first: int = 0) -> list[Parameter]:
    """Every parameter once, under its first name; further names are its aliases. Chunks are counted
    from `first`."""
    found: dict[int, Parameter] = {}
    for chunk, root in enumerate(roots, first):
        for prefix, module in module_names.named(root):
            for key, tensor in module._parameters.items():
                if tensor is None:
                    continue
                if isinstance(tensor, nn.parameter.UninitializedParameter):
                    raise TypeError(
                        f"model has lazy parameters ({prefix}.{key}): run one forward before watch(), "
                        "with a trainer's callback one batch through the model before training"
                    )
                name = f"{prefix}.{key}" if prefix else key
                known = found.get(id(tensor))
                if known is None:
                    found[id(tensor)] = Parameter(name, chunk, tensor, module, key)
                elif name != known.name and name not in known.aliases:
                    known.aliases.append(name)
                    known.also.append((module, key))
    return list(found.values())


def parameters_under(wrappers: list[Wrapper]) -> list[Parameter]:
    """Those of all chunks; one that is in several appears in the first."""
    found: dict[int, Parameter] = {}
    for chunk, wrapper in enumerate(wrappers):
        renormalised = {
            id(module.weight)
            for module in wrapper.root.modules()
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None
        }
        for parameter in wrapper.parameters(chunk):
            parameter.renormalised = id(parameter.tensor) in renormalised
            parameter.name = module_names.within(wrapper.chunk_name, parameter.name)
            parameter.aliases = [
                module_names.within(wrapper.chunk_name, n) for n in parameter.aliases
            ]
            known = found.setdefault(id(parameter.tensor), parameter)
            if known is not parameter:
                names = (parameter.name, *parameter.aliases)
                known.aliases += [n for n in names if n not in (known.name, *known.aliases)]
                known.also += parameter.places
    return list(found.values())


def rounded_in_reduction(reduced_in: torch.dtype | None, dtype: torch.dtype) -> bool:
    """Whether gradients of this dtype are reduced in one that does not have all their numbers: what
    comes of it is not their mean."""
    return reduced_in is not None and torch.promote_types(reduced_in, dtype) != reduced_in


def may_reduce_in_hooks(parameters: list[Parameter]) -> bool:
    """Whether hooks of a program run where gradients have accumulated."""
    tables = (getattr(p.tensor, "_post_accumulate_grad_hooks", None) for p in parameters)
    return any(not isinstance(hook, Hook) for hooks in tables if hooks for hook in hooks.values())


def has_post_accumulate_hook() -> bool:
    """The hook that sees unreduced gradients exists since torch 2.1."""
    return hasattr(torch.Tensor, "register_post_accumulate_grad_hook")
