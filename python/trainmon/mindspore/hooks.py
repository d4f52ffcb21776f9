# The functions that MindSpore calls, and taking them off again.
"""MindSpore compiles the hooks of a cell with the cell, inside mindspore.jit and in GRAPH_MODE.
What its parser does not know (try, lambdas, objects that are called) ends the compilation. So
hooks are these few lines, of which a graph gets the first branch: the comment there is what tells
the parser.
"""

from __future__ import annotations

import copy

COMPILING = False


def forward_pre(act):
    def hook(cell, args, kwargs=None):
        if COMPILING:  # @jit.cond: True
            return None
        return act(cell, args, kwargs)

    return hook


def forward(act):
    def hook(cell, args, output):
        if COMPILING:  # @jit.cond: True
            return None
        return act(cell, args, output)

    return hook


def backward(act):
    def hook(cell, of_inputs, of_outputs):
        if COMPILING:  # @jit.cond: True
            return None
        return act(cell, of_inputs, of_outputs)

    return hook


def gradient(act):
    def hook(value):
        if COMPILING:  # @jit.cond: True
            return value
        return act(value)

    return hook


def register_backward(cell, hook):
    """register_backward_hook(), and a cell that can still be copied: MindSpore gives it a primitive
    (_cell_backward_hook) that copy.deepcopy() cannot make again."""
    handle = cell.register_backward_hook(hook)
    primitive = getattr(cell, "_cell_backward_hook", None)

    def copied(memo):
        other = memo.get(id(cell))
        if other is None:  # copied by itself
            return primitive
        name = f"{other.cls_name}({id(other)})"
        made = type(primitive)(name, other, copy.deepcopy(cell._backward_hook, memo))
        made.register_backward_hook()
        return made

    if primitive is not None:
        primitive.__deepcopy__ = copied
    return handle


def harmless(part, act):
    """Calls act() as long as its part works; an error switches that off and changes nothing else."""

    def call(*arguments):
        if not part.on:
            return
        try:
            act(*arguments)
        except Exception as error:
            part.failed(error)

    return call


class Handles:
    def __init__(self):
        self._handles = []

    def add(self, handle) -> None:
        self._handles.append(handle)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
