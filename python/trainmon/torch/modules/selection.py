# Which parameters, modules and tensors are watched, and under which names: by patterns of names.
from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from trainmon.base.selection import SelectionBase
from trainmon.torch.features.choice import Choice
from trainmon.torch.hooks import dynamo
from trainmon.torch.modules import elements
from trainmon.torch.wrappers import module_names

PATTERNS = ("include", "exclude", "attention_modules", "spectral_modules", "router_modules")


class Selection(SelectionBase):
    """By include and exclude of the configuration. A face with rules of its own has a subclass."""

    # Whether inputs() and outputs() name tensors as the operators in compiled code do (compiled.py).
    names_as_compiled = True

    def __init__(self, config: dict, chunks: list[str] = ()):
        """`chunks` are their names, if they have any."""
        super().__init__(config, PATTERNS, "module")
        self.chunks = chunks
        self.features = Choice.of(config)

    def parameter(self, parameter) -> bool:
        return self._takes(parameter.name, *parameter.aliases)

    def modules(self, root: nn.Module, chunk: int, seen: set[int], not_covered) -> Iterator[tuple]:
        """(label, module) of those whose tensors are watched."""
        follows = dynamo.is_supported()
        if not follows and module_names.inside_compiled(root):
            not_covered("actv inside torch.compile", dynamo.TOO_OLD)
        for name, module in module_names.callable_ones(
            root, seen, not_covered, follows_compiled=follows
        ):
            name = self._within(chunk, name)
            if self._takes(name):
                yield name, module

    def everything(self, root: nn.Module, chunk: int, seen: set[int], not_covered) -> Iterator:
        """(label, module) of all that can be called."""
        for name, module in module_names.callable_ones(root, seen, not_covered):
            yield self._within(chunk, name), module

    def inputs(self, watched, args: tuple, kwargs: dict) -> list[tuple]:
        """(element, tensor) of what a module is given."""
        return elements.of_inputs(args, kwargs)

    def outputs(self, watched, output) -> list[tuple]:
        return elements.of_output(output)

    def check(self, parameters, roots, not_covered) -> None:
        names = {name for p in parameters for name in (p.name, *p.aliases)}
        for chunk, root in enumerate(roots):
            names.update(self._within(chunk, name) for name, _ in module_names.named(root))
        self._check(names, not_covered)

    def _within(self, chunk: int, name: str) -> str:
        return module_names.within(self.chunks[chunk], name) if self.chunks else name
