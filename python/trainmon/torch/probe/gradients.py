# The gradient that an optimizer is given for a parameter, where it can be read. Nothing here raises.
from __future__ import annotations

import torch

from trainmon.base.signals import pass_on


def gradient_of(parameter):
    try:
        main = getattr(parameter, "main_grad", None)
        return parameter.grad if main is None else main
    except Exception as error:
        pass_on(error)
        return error  # refused by its name


def on_cpu(gradient):
    """The shard of this rank, on the CPU: until there are kernels for other devices, elements are
    copied from there."""
    if not isinstance(gradient, torch.Tensor):
        return gradient  # refused by its name
    try:
        if hasattr(gradient, "to_local"):
            with torch.no_grad():
                gradient = gradient.to_local()
        if gradient.is_cpu or gradient.is_meta:
            return gradient
        return gradient.detach().to("cpu")
    except Exception as error:
        pass_on(error)
        return error
