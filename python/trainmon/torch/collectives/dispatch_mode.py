# Rows of the collectives that C++ issues: a dispatch mode around forward and backward of chosen steps.
"""It sees every operation, so it costs every operation; that is why it must be asked for. Names are
those of the operations: c10d.allreduce_, _c10d_functional.all_reduce, ...

Inputs are always read. What an operation gives is read when wait_tensor has waited for it. Some
are waited for by C++ alone, in a backward. They are read at its end, when DDP has waited for its
buckets and left them as they were. Until then their Work, which holds the tensors, is kept.
"""

from __future__ import annotations

import sys
import threading
import weakref

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from trainmon.base.signals import pass_on
from trainmon.torch.hooks.backward import IDLE, current_task
from trainmon.torch.hooks.dynamo import compiling
from trainmon.torch.hooks.hook import Hook, ModuleHook

SPACES = frozenset(("c10d", "_c10d_functional", "_c10d_functional_autograd"))
NOT_RECORDED = frozenset(("barrier", "monitored_barrier_", "wait_tensor", "_wrap_tensor_autograd"))


class Span(TorchDispatchMode):
    """One forward or backward: an operation is done as if this were not there, but looked at."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __init__(self, collectives):
        super().__init__()
        self.collectives = collectives
        self.unfinished: list[tuple] = []  # (Call, what to read, Work)
        self.results: dict[
            int, tuple
        ] = {}  # id of a tensor to wait for -> (reference, Call, element)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if types and _desugars(types):
            return NotImplemented  # they call collectives themselves, which come here then
        kwargs = kwargs or {}
        collectives = self.collectives
        if getattr(func, "namespace", None) not in SPACES or collectives.inside.calls:
            return func(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        began = None
        if name not in NOT_RECORDED:
            began = self._begins(f"{func.namespace}.{name}", func, args, kwargs)
        result = func(*args, **kwargs)
        try:
            if name == "wait_tensor":
                self._waited(args[0])
            elif began is not None:
                self._ended(*began, result)
        except Exception as error:
            collectives.failed(error)
        return result

    def _begins(self, name: str, func, args: tuple, kwargs: dict):
        collectives = self.collectives
        try:
            names = tuple(argument.name for argument in func._schema.arguments)
            given = {**dict(zip(names, args)), **kwargs}
            return collectives.begins(name, given, self._group(given), inputs=True)
        except Exception as error:
            collectives.failed(error)
            return None

    def _group(self, given: dict):
        c10d = self.collectives.c10d
        try:
            if "process_group" in given:
                return c10d.ProcessGroup.unbox(given["process_group"])
            return c10d._resolve_process_group(given["group_name"])
        except Exception as error:  # it only describes the call
            pass_on(error)
            return None

    def _ended(self, call, reads: list, result) -> None:
        collectives = self.collectives
        if not call.name.startswith("c10d."):  # the result is a new tensor, not yet there
            outputs = result if isinstance(result, (list, tuple)) else [result]
            for index, tensor in enumerate(outputs):
                self.results[id(tensor)] = weakref.ref(tensor), call, f"post.{index}"
        elif current_task() == IDLE or not all(tensor.is_cpu for _, tensor in reads):
            # To ask a device whether it is done would be to wait for it.
            where = "in a forward" if current_task() == IDLE else "on a device"
            collectives.gave_unseen(call.name, where, "only C++ waits for it")
        else:
            work = result[-1] if isinstance(result, tuple) else result
            weak = [(element, weakref.ref(tensor)) for element, tensor in reads]
            self.unfinished.append((call, weak, collectives.c10d.Work.unbox(work)))

    def _waited(self, tensor: Tensor) -> None:
        reference, call, element = self.results.pop(id(tensor), (None, None, None))
        if reference is not None and reference() is tensor:
            self.collectives.read(call, element, tensor)

    def end(self) -> None:
        """The forward or backward is over."""
        collectives = self.collectives
        try:
            for call, weak, work in self.unfinished:
                tensors = [(element, reference()) for element, reference in weak]
                if not _done(work) or any(tensor is None for _, tensor in tensors):
                    collectives.gave_unseen(
                        call.name, "in a backward", "gone or not done at its end"
                    )
                    continue
                for element, tensor in tensors:
                    collectives.read(call, element, tensor)
            for _, call, _ in self.results.values():
                why = "some was not waited for in the same forward or backward"
                collectives.gave_unseen(call.name, "asynchronously", why)
        except Exception as error:
            collectives.failed(error)
        finally:
            self.unfinished.clear()
            self.results.clear()


class Spans(threading.local):
    def __init__(self):
        self.open: list[tuple] = []  # (module whose forward it is, Span), outermost first


class Everywhere:
    """A Span for each forward of a model chunk and each backward that is recorded."""

    def __init__(self, collectives):
        self.collectives = collectives
        self.spans = Spans()

    def begin(self):
        """A Span that is open now, None if none is due or one is open already."""
        collectives = self.collectives
        try:
            part, clock = collectives.part, collectives.adapter.clock
            if not (collectives.on and part.on and clock.recording):
                return None
            if any(isinstance(mode, Span) for mode in _get_current_dispatch_mode_stack()):
                return None
            span = Span(collectives)
        except Exception as error:
            collectives.failed(error)
            return None
        span.__enter__()
        return span

    def end(self, span) -> None:
        span.__exit__(None, None, None)
        span.end()

    def backward(self, name: str, original):
        def backward(*args, **kwargs):
            if compiling() or not self.collectives.on:
                return original(*args, **kwargs)
            span = self.begin()
            try:
                return original(*args, **kwargs)
            finally:
                if span is not None:
                    self.end(span)

        return backward


class SpanBegins(Hook):
    """Forward pre-hook of a model chunk."""

    __slots__ = ("everywhere",)

    def __init__(self, everywhere):
        self.everywhere = everywhere

    def __call__(self, module, args):
        if compiling() or not module.training or current_task() != IDLE:
            return
        span = self.everywhere.begin()
        if span is not None:
            self.everywhere.spans.open.append((module, span))


class SpanEnds(Hook):
    """Forward hook of a model chunk, called when the forward raises, too."""

    __slots__ = ("everywhere",)

    def __init__(self, everywhere):
        self.everywhere = everywhere

    def __call__(self, module, args, output):
        open_spans = self.everywhere.spans.open
        if not compiling() and open_spans and open_spans[-1][0] is module:
            self.everywhere.end(open_spans.pop()[1])


def install(collectives) -> bool:
    """Whether it could be: compiled code and higher-order operators must not notice a mode."""
    wanted = ("ignore_compile_internals", "supports_higher_order_operators")
    if not all(hasattr(TorchDispatchMode, name) for name in wanted):
        return False
    everywhere, adapter = Everywhere(collectives), collectives.adapter
    for root in adapter.roots:
        if not isinstance(root, torch.jit.ScriptModule):
            begins, ends = SpanBegins(everywhere), SpanEnds(everywhere)
            adapter.handles.add(ModuleHook(root, "register_forward_pre_hook", begins))
            adapter.handles.add(ModuleHook(root, "register_forward_hook", ends, always_call=True))
    collectives.patch(torch.autograd, "backward", everywhere.backward, {})
    return True


def _done(work) -> bool:
    # What C++ waits for is the future, which is done a moment before the Work says so.
    return work.is_completed() or work.get_future().done()


def _desugars(types) -> bool:
    tensor = sys.modules.get("torch.distributed.tensor")
    functional = sys.modules.get("torch.distributed._functional_collectives")
    classes = (
        getattr(tensor, "DTensor", None),
        getattr(functional, "AsyncCollectiveTensor", None),
    )
    return any(kind in classes for kind in types)
