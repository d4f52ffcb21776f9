# nn.DistributedGradReducer: what goes in is the gradient after accumulation and before reduction.
from __future__ import annotations

import gc

from mindspore import nn

from trainmon.mindspore import hooks


class Reducers:
    """Scripts make reducers of their own, and nothing leads to them from a model. They are looked
    for among all objects, when hooks are put on and again when the first gradient appears."""

    def __init__(self, adapter):
        self.adapter, self.part = adapter, adapter.part("reducers")
        self.known: set[int] = set()
        self.found = self.seen = self.searched = False

    def forget(self) -> None:
        """Their hooks were taken off."""
        self.known.clear()
        self.found = self.seen = self.searched = False

    def search(self) -> None:
        for reducer in gc.get_objects():
            # By its type: isinstance() would ask what a weak proxy stands for.
            if (
                not issubclass(type(reducer), nn.DistributedGradReducer)
                or id(reducer) in self.known
            ):
                continue
            self.known.add(id(reducer))
            self.found = True
            hook = hooks.forward_pre(hooks.harmless(self.part, self._reduces))
            self.adapter.handles.add(reducer.register_forward_pre_hook(hook))

    def at_first_gradient(self) -> None:
        if not self.searched:
            self.searched = True
            self.search()

    def _reduces(self, cell, args: tuple, *_) -> None:
        adapter, gradients = self.adapter, args[0]
        shapes = [gradient.shape for gradient in gradients]
        fitting = [
            steps
            for steps in adapter.steps
            if [parameter.shape for parameter in steps.optimizer.parameters] == shapes
        ]
        if len(fitting) != 1:
            adapter.coverage.not_covered(
                "grad_unreduced of a DistributedGradReducer",
                f"its gradients are those of {len(fitting)} optimizers, by their shapes",
            )
            return
        self.seen = True
        (steps,) = fitting
        if steps.recording:
            steps.read_list("grad_unreduced", gradients, steps.flags)
