# Which parameters and cells are watched, and under which names: by patterns of names.
from __future__ import annotations

from collections.abc import Iterator

from mindspore import nn

from trainmon import _core
from trainmon.base.names import as_text
from trainmon.mindspore import elements


class Selection:
    """By include and exclude of the configuration. A face with rules of its own has a subclass."""

    def __init__(self, config: dict):
        self.include, self.exclude = config["include"], config["exclude"]

    def parameter(self, parameter) -> bool:
        return self._takes(parameter.name)

    def label(self, parameter) -> str:
        """The name of its series."""
        return parameter.name

    def takes_parameter(self, parameter, kind: str) -> bool:
        """Whether a watched parameter gets rows of this kind."""
        return True

    def everything(self, root: nn.Cell, chunk: int) -> Iterator[tuple[str, nn.Cell]]:
        """(label, cell) of all that can be called."""
        for name, cell in root.cells_and_names():
            if not isinstance(cell, nn.CellList) and not isinstance(cell, nn.CellDict):
                yield name, cell

    def cells(self, root: nn.Cell, chunk: int) -> Iterator[tuple[str, nn.Cell]]:
        """(label, cell) of those whose tensors are watched."""
        return ((name, cell) for name, cell in self.everything(root, chunk) if self._takes(name))

    def inputs(self, watched, args: tuple, kwargs: dict) -> list[tuple]:
        """(element, tensor) of what a cell is given."""
        return elements.of_inputs(args, kwargs)

    def outputs(self, watched, output) -> list[tuple]:
        return elements.of_output(output)

    def takes(self, watched, kind: str, element: str) -> bool:
        """Whether this element of a watched cell gets rows of this kind."""
        return True

    def check(self, parameters, roots, not_covered) -> None:
        """A pattern that selects nothing is a slip more often than not."""
        names = {p.name for p in parameters}
        names.update(name for root in roots for name, _ in root.cells_and_names())
        names = {as_text(name) for name in names}
        for key, patterns in (("include", self.include), ("exclude", self.exclude)):
            for pattern in patterns:
                if not any(_core.name_selected(name, [pattern], []) for name in names):
                    why = "no parameter or cell has such a name"
                    behind = f"**.{pattern}"
                    if any(_core.name_selected(name, [behind], []) for name in names):
                        why += f": patterns begin at the root, did you mean {behind!r}?"
                    not_covered(f"{key} {pattern!r}", why)

    def _takes(self, name: str) -> bool:
        return _core.name_selected(as_text(name), self.include, self.exclude)
