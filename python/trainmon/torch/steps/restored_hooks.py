# The step hooks of optimizers, where torch has taken them away.
from __future__ import annotations


class Restored:
    """torch 2.0 and 2.1 take the hooks out of step() of every class of torch.optim as soon as
    torch.compile is used. While one of these is there, the class has torch's own step with hooks.
    So has the counter that a scheduler has put around step() of this optimizer since."""

    _classes: dict[type, list] = {}  # class -> [how many, its step without hooks]

    def __init__(self, optimizer):
        self.kind = type(optimizer)
        if self.kind not in self._classes:
            step = self.kind.step
            if not _has_lost_hooks(step):
                self.kind = None
                return
            self._classes[self.kind] = [0, step]
            step.hooked = False
            optimizer._patch_step_function()
        entry = self._classes[self.kind]
        entry[0] += 1
        counter = getattr(vars(optimizer).get("step"), "__closure__", None) or ()
        self.held = [cell for cell in counter if cell.cell_contents is entry[1]]
        for cell in self.held:
            cell.cell_contents = self.kind.step

    def remove(self) -> None:
        kind, self.kind = self.kind, None
        if kind is None:
            return
        entry = self._classes[kind]
        for cell in self.held:
            cell.cell_contents = entry[1]
        entry[0] -= 1
        if entry[0] == 0:
            del self._classes[kind]
            kind.step = entry[1]
            kind.step.hooked = True


def _has_lost_hooks(step) -> bool:
    code = getattr(step, "__code__", None)
    return (
        getattr(step, "hooked", False)
        and code is not None
        and "_optimizer_step_pre_hooks" not in code.co_names
    )
