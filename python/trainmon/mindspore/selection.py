# Which parameters and cells are watched, and under which names: by patterns of names.
from __future__ import annotations

from collections.abc import Iterator

from mindspore import nn

from trainmon.base.selection import SelectionBase
from trainmon.mindspore import elements


class Selection(SelectionBase):
    """By include and exclude of the configuration. A face with rules of its own has a subclass."""

    def __init__(self, config: dict):
        super().__init__(config, ("include", "exclude"), "cell")

    def parameter(self, parameter) -> bool:
        return self.takes_name(parameter.name)

    def everything(self, root: nn.Cell, chunk: int) -> Iterator[tuple[str, nn.Cell]]:
        """(label, cell) of all that can be called."""
        for name, cell in root.cells_and_names():
            if not isinstance(cell, nn.CellList) and not isinstance(cell, nn.CellDict):
                yield name, cell

    def cells(self, root: nn.Cell, chunk: int) -> Iterator[tuple[str, nn.Cell]]:
        """(label, cell) of those whose tensors are watched."""
        return (
            (name, cell) for name, cell in self.everything(root, chunk) if self.takes_name(name)
        )

    def inputs(self, watched, args: tuple, kwargs: dict) -> list[tuple]:
        """(element, tensor) of what a cell is given."""
        return elements.of_inputs(args, kwargs)

    def outputs(self, watched, output) -> list[tuple]:
        return elements.of_output(output)

    def check(self, parameters, roots, not_covered) -> None:
        names = {p.name for p in parameters}
        names.update(name for root in roots for name, _ in root.cells_and_names())
        self._check(names, not_covered)
