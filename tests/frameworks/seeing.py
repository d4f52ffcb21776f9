# An optimizer that notes what it updates with: the oracle of the framework tests.
import torch


class Seeing(torch.optim.AdamW):
    """Looks after the closure, whatever a trainer does in it."""

    def step(self, closure=None):
        loss = None if closure is None else closure()
        self.seen.append(
            [None if p.grad is None else p.grad.clone() for p in self.param_groups[0]["params"]]
        )
        super().step()
        return loss


def seeing(parameters, **settings):
    optimizer = Seeing(parameters, **settings)
    optimizer.seen = []
    return optimizer
