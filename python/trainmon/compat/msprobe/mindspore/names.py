# msprobe's names of MindSpore's parameters, cells and their tensors, and which its targets mean.
from __future__ import annotations

from mindspore import Tensor

from trainmon.compat.msprobe.elements import Elements
from trainmon.compat.msprobe.short_names import Names, without_chunk
from trainmon.mindspore.parameters import rank_and_world
from trainmon.mindspore.selection import Selection


class Targets(Elements, Selection):
    """What the fields targets, all_xy and squash_name choose."""

    tensor = Tensor

    def __init__(self, config: dict, model, dp_group=None):
        self.config, self.roots, self.wanted = config, model, config["targets"]
        self.parameter_names = [Names(config["squash_name"]) for _ in model]
        self.cell_names = [Names(config["squash_name"]) for _ in model]
        self.full: dict[int, str] = {}  # by id of cell
        for chunk, root in enumerate(model):
            for name, _ in root.parameters_and_names():
                self.parameter_names[chunk].of(name)
            for name, cell in root.cells_and_names():
                self.full.setdefault(id(cell), name)
                self.cell_names[chunk].of(name)
        self.told: set[str] = set()
        self.hides_reduced = dp_group is not None and _rank_in(dp_group) > 0

    # --- parameters ------------------------------------------------------------------------------

    def parameter(self, parameter) -> bool:
        if not parameter.tensor.requires_grad:
            return False
        names = (parameter.name, self.label(parameter))
        return not self.wanted or any(
            name == wanted or name.startswith(wanted + ".")
            for wanted in self._targets(parameter.chunk)
            for name in names
        )

    def label(self, parameter) -> str:
        return self.parameter_names[parameter.chunk].of(parameter.name)

    def takes_parameter(self, parameter, kind: str) -> bool:
        """Reduced gradients that another rank of a group has, too, are left to its first rank."""
        return not (kind == "grad_reduced" and self.hides_reduced)

    # --- cells -----------------------------------------------------------------------------------

    def everything(self, root, chunk):
        for name, cell in super().everything(root, chunk):
            yield self.cell_names[chunk].of(name), cell

    def cells(self, root, chunk):
        everyone = self.config["all_xy"] or self.config["print_struct"] or not self.wanted
        for label, cell in self.everything(root, chunk):
            names = (label, self.full.get(id(cell), label))
            if everyone or any(target in names for target in self._targets(chunk)):
                yield label, cell

    def _targets(self, chunk: int) -> list[str]:
        found = (without_chunk(target, chunk) for target in self.wanted)
        return [target for target in found if target is not None]

    # --- tensors of cells ------------------------------------------------------------------------

    def _wanted_of(self, watched) -> dict:
        names = self.cell_names[watched.chunk].names
        full = next((full for full, short in names.items() if short == watched.name), "")
        for target, wanted in self.wanted.items():
            if wanted and without_chunk(target, watched.chunk) in (watched.name, full):
                return wanted
        return {}

    def check(self, parameters, roots, not_covered) -> None:
        for target in self.wanted:
            names = {
                name
                for chunk in range(len(self.roots))
                if without_chunk(target, chunk) is not None
                for owner in (self.parameter_names[chunk], self.cell_names[chunk])
                for pair in owner.names.items()
                for name in pair
            }
            wanted = {without_chunk(target, chunk) for chunk in range(len(self.roots))}
            if not any(n == w or n.startswith(f"{w}.") for n in names for w in wanted if w):
                not_covered(f"target {target!r}", "no parameter or cell has such a name")
                self._say(f"target {target!r} is the name of no parameter or cell")


def _rank_in(group) -> int:
    from mindspore.communication import get_rank

    return get_rank(group) if rank_and_world()[1] > 1 else 0
