# Finds, without inserting anything, the autograd nodes through which a module uses its inputs.
"""The gradient of an input *through one module* is what the nodes of that module send back along the
input's edge. The edge is noted before the forward (an in-place module moves it); afterwards a walk
from the outputs towards it stops at every node that consumes it.
"""

from __future__ import annotations

import torch

# Nodes are numbered as they are made: one older than the module's forward is not inside it.
sequence_number = getattr(torch.autograd, "_get_sequence_nr", lambda: 0)


def edge_of(tensor) -> tuple:
    """(node, index) that the tensor's gradient flows into; the tensor must require grad."""
    node = tensor.grad_fn
    if node is None:  # a leaf: the node that accumulates into it
        with torch.enable_grad():  # what get_gradient_edge does, which torch 2.0 lacks
            node = tensor.view_as(tensor).grad_fn.next_functions[0][0]
    return node, tensor.output_nr


def consumers(outputs: list, edges: set, oldest: int) -> list[tuple] | None:
    """(node, index, edge) for each use of `edges` among nodes not older than `oldest`.

    An edge that is itself an output's (a module that returns its input) has no such node: None in
    place of the node.
    """
    found = []
    waiting = []
    seen = set()
    for tensor in outputs:
        edge = (tensor.grad_fn, tensor.output_nr)
        if edge in edges:
            found.append((None, 0, edge))
        elif edge[0] is not None and edge[0] not in seen:
            seen.add(edge[0])
            waiting.append(edge[0])
    while waiting:
        node = waiting.pop()
        for index, edge in enumerate(node.next_functions):
            if edge in edges:
                found.append((node, index, edge))
                continue
            child = edge[0]
            if child is None or child in seen:
                continue
            seen.add(child)
            if child._sequence_nr() >= oldest:
                waiting.append(child)
    return found
