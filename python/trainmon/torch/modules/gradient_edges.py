# Edges of autograd: where gradients of tensors flow.
"""The gradient of an input *through one module* is what the nodes of that module send back along
the input's edge. The edge is noted before the forward, for an in-place module moves it.
Afterwards a walk from the outputs towards it (python/bindings/forwards.cpp) stops at every node
that uses it.
"""

from __future__ import annotations

import torch

# Nodes are numbered as they are made: one older than the module's forward is not inside it. None where
# this torch does not number them (2.0): what is inside a module cannot be told then.
sequence_number = getattr(torch.autograd, "_get_sequence_nr", None)
NOT_NUMBERED = "this torch has no torch.autograd._get_sequence_nr"


def accumulator(leaf):
    """The node that accumulates into a leaf that requires grad."""
    with torch.enable_grad():  # what get_gradient_edge does, which torch 2.0 lacks
        return leaf.view_as(leaf).grad_fn.next_functions[0][0]
