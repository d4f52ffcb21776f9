# Whether Dynamo is tracing a hook, and whether this torch lets hooks be part of compiled code.
from __future__ import annotations

import sys
import weakref

import torch

EARLIEST = (2, 4)
TOO_OLD = "activations inside a compiled region need torch >= 2.4"
NOT_ASKED = (
    "to read them there moves where the compiler rounds, which may change the last bits of the training: "
    "watch(inside_compiled=True) reads them"
)

# Hooks vanish from compiled code: this is a constant there. (In torch.compiler since 2.2; 2.0 has none.)
compiling = (
    getattr(getattr(torch, "compiler", None), "is_compiling", None)
    or getattr(torch._utils, "is_compiling", None)
    or (lambda: False)
)


def is_supported() -> bool:
    """Whether this torch is new enough for operators inside compiled code."""
    version = torch.__version__.split("+")[0].split(".")
    return tuple(int(part) for part in version[:2]) >= EARLIEST


def compiles() -> bool:
    """Whether torch.compile has compiled anything in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", {})
    # With fullgraph=True no frames are counted.
    counted = (("frames", "total"), ("stats", "unique_graphs"))
    return any(counters.get(group, {}).get(name) for group, name in counted)


def why_left_out(is_asked: bool) -> str:
    """Why activations inside compiled code are not recorded; empty: they are."""
    if not is_supported():
        return TOO_OLD
    return "" if is_asked else NOT_ASKED


class InGraphs:
    """Hooks on tensors that compiled autograd has as nodes of its graph. Else it would have to look into
    them, which it cannot, and with fullgraph=True it raises then. By a private table of Dynamo, which torch
    loads with the first optimizer, or later. The table has ids, so it has them while their hooks live."""

    def __init__(self):
        self.hooks: dict[int, weakref.ref] = {}  # by id
        self.untold: set[int] = set()  # of them, those that the table has not yet

    @staticmethod
    def _table():
        rules = sys.modules.get("torch._dynamo.trace_rules")
        return getattr(rules, "_allowed_callable_ids", None)

    def is_loaded(self) -> bool:
        return self._table() is not None

    def add(self, hook) -> None:
        """At once where it can be: no forward may begin outside of compiled code before a backward."""
        key = id(hook)
        self.hooks[key] = weakref.ref(hook, lambda _: self._forget(key))
        self.untold.add(key)
        self.tell()

    def remove(self, hook) -> None:
        self._forget(id(hook))

    def _forget(self, key: int) -> None:
        try:
            if self.hooks.pop(key, None) is None:
                return
            if key in self.untold:
                self.untold.remove(key)
            elif (table := self._table()) is not None:
                table.remove(key)
        except AttributeError:  # the interpreter ends
            pass

    def tell(self) -> None:
        """Before a backward."""
        if not self.untold or (table := self._table()) is None:
            return
        untold, self.untold = self.untold, set()
        for key in untold:
            table.add(key)


in_graphs = InGraphs()


class OwnHooks:
    """Hooks of ours on modules, of which Dynamo is to know nothing. From torch 2.13 on it compiles the forward
    of a module of torch's own where the module has hooks, behind a graph break. It runs that as it is where
    there are none, and other graphs round otherwise. By the function that Dynamo asks for this alone, while
    somebody watches. Hooks that are to be part of compiled code (`point`) count as any others do."""

    def __init__(self):
        self.types: set[type] = set()  # of modules and optimizers, as far as there have been any
        self.watching: set[int] = set()  # ids of adapters
        self.replaced: tuple = ()  # (what Dynamo has of torch, what it has of ours)

    def _is_overlooked(self, hook) -> bool:
        # Beside hooks Dynamo lists notes of them, as whether one takes keywords.
        if type(hook) is bool:
            return True
        inner = getattr(hook, "call", hook)  # of one that takes its own time
        return type(hook) in self.types and getattr(inner, "point", None) is None

    def overlook(self, adapter) -> None:
        """Before a forward."""
        self.watching.add(id(adapter))
        utils = sys.modules.get("torch._dynamo.utils")
        ask = getattr(utils, "nnmodule_has_hooks", None)
        list_hooks = getattr(utils, "nn_module_get_all_hooks", None)
        if self.replaced or ask is None or list_hooks is None:
            return

        def nnmodule_has_hooks(module, *args, **kwargs):
            return not all(map(self._is_overlooked, list_hooks(module, *args, **kwargs)))

        self.replaced = ask, nnmodule_has_hooks
        utils.nnmodule_has_hooks = nnmodule_has_hooks

    def leave(self, adapter) -> None:
        """Its hooks have been taken off."""
        self.watching.discard(id(adapter))
        if self.watching or not self.replaced:
            return
        (ask, ours), self.replaced = self.replaced, ()
        utils = sys.modules["torch._dynamo.utils"]
        if utils.nnmodule_has_hooks is ours:
            utils.nnmodule_has_hooks = ask


own_hooks = OwnHooks()


def is_traced(tensor) -> bool:
    """Whether it stands for a tensor while a graph is made: it has no elements."""
    return type(tensor).__name__ in ("FakeTensor", "FunctionalTensor")


def tracing() -> bool:
    """Inside Dynamo, for a torch.compile and not for an export, whose program is to run elsewhere.
    Dynamo takes the answer for a constant."""
    return torch.compiler.is_dynamo_compiling() and not _is_exporting()


def _is_exporting() -> bool:
    """Not torch.compiler.is_exporting(): Dynamo of torch 2.11 takes that for True in every torch.compile. That
    function gives this flag."""
    return getattr(torch.compiler, "_is_exporting_flag", False)
