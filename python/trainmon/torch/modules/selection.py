# Which parameters, modules and tensors are watched, and under which names: by patterns of names.
from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from trainmon.base.selection import SelectionBase
from trainmon.torch.features.choice import Choice
from trainmon.torch.hooks import dynamo
from trainmon.torch.modules import elements
from trainmon.torch.modules.blocks import blocks_of
from trainmon.torch.wrappers import module_names

MOST_MODULES = 500  # of which all are read, where nobody chose
PATTERNS = ("include", "exclude", "attention_modules", "spectral_modules", "router_modules")


class Selection(SelectionBase):
    """By include and exclude of the configuration. A face with rules of its own has a subclass."""

    # Whether inputs() and outputs() name tensors as the operators in compiled code do (compiled.py).
    names_as_compiled = True
    which = "all"  # modules: all, blocks, or auto
    remark = ""  # for the start line

    def __init__(self, config: dict, chunks: list[str] = ()):
        """`chunks` are their names, if they have any."""
        super().__init__(config, PATTERNS, "module")
        self.chunks = chunks
        self.features = Choice.of(config)
        self.which = config["modules"]
        self.blocks: list[set[str]] | None = None  # by chunk; None: all modules

    def parameter(self, parameter) -> bool:
        return self.takes_name(parameter.name, *parameter.aliases)

    def decide(self, roots: list[nn.Module], not_covered) -> None:
        """Before modules() is asked: whether it gives blocks alone. The answer stays."""
        if self.which == "all":
            return
        which, self.which = self.which, "all"  # asks for all below, and is not asked again
        seen: set[int] = set()
        found = [
            list(self.modules(root, chunk, seen, lambda what, why: None))
            for chunk, root in enumerate(roots)
        ]
        count = sum(map(len, found))
        if which == "auto" and count <= MOST_MODULES:
            return
        names = [
            {self.within(chunk, name) for name in blocks_of(root)}
            for chunk, root in enumerate(roots)
        ]
        chosen = sum(name in within for one, within in zip(found, names) for name, _ in one)
        if chosen:
            self.blocks = names
            self.remark = (
                f"; activations of {chosen} repeated blocks, of {count} modules "
                '(modules="all" reads every one)'
            )
        else:
            why = f"no list of repeated modules is watched: activations of all {count} modules are read"
            not_covered("a choice of blocks", why)

    def modules(self, root: nn.Module, chunk: int, seen: set[int], not_covered) -> Iterator[tuple]:
        """(label, module) of those whose tensors are watched."""
        follows = dynamo.is_supported()
        if not follows and module_names.inside_compiled(root):
            not_covered("actv inside torch.compile", dynamo.TOO_OLD)
        for name, module in module_names.callable_ones(
            root, seen, not_covered, follows_compiled=follows
        ):
            name = self.within(chunk, name)
            if self.takes_name(name) and (self.blocks is None or name in self.blocks[chunk]):
                yield name, module

    def everything(self, root: nn.Module, chunk: int, seen: set[int], not_covered) -> Iterator:
        """(label, module) of all that can be called."""
        for name, module in module_names.callable_ones(root, seen, not_covered):
            yield self.within(chunk, name), module

    def inputs(self, watched, args: tuple, kwargs: dict) -> list[tuple]:
        """(element, tensor) of what a module is given."""
        return elements.of_inputs(args, kwargs)

    def outputs(self, watched, output) -> list[tuple]:
        return elements.of_output(output)

    def check(self, parameters, roots, not_covered) -> None:
        names = {name for p in parameters for name in (p.name, *p.aliases)}
        for chunk, root in enumerate(roots):
            for name, module in module_names.named(root):
                names.add(self.within(chunk, name))
                keys = (module_names.within(name, str(key)) for key, _ in module._buffers.items())
                names.update(self.within(chunk, key) for key in keys)
        self._check(names, not_covered)

    def within(self, chunk: int, name: str) -> str:
        return module_names.within(self.chunks[chunk], name) if self.chunks else name
