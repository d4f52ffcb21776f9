# What every hook shares: being harmless when it fails, when it is copied and when it is taken off.
from __future__ import annotations

import copy
import copyreg
import itertools
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext

from trainmon.base.locks import fork_safe_lock
from trainmon.torch.hooks.dynamo import compiling, in_graphs, is_supported, own_hooks

# Where torch keeps hooks, and what it notes beside them under the same keys.
_KEPT = (
    ("_forward_hooks", ("_forward_hooks_with_kwargs", "_forward_hooks_always_called")),
    ("_forward_pre_hooks", ("_forward_pre_hooks_with_kwargs",)),
    ("_load_state_dict_post_hooks", ()),
)

_OF_CALLS = "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"


def leave_hooks_of_torch(module) -> None:
    """Of a copy of a module, which is not compiled after it: hooks of others may do more than change what
    passes."""
    attributes = vars(module)
    attributes.pop("_compiled_call_impl", None)
    for name in _OF_CALLS:
        kept = [(key, hook) for key, hook in attributes[name].items() if _is_of_torch(hook)]
        attributes[name] = OrderedDict(kept)


def _is_of_torch(hook) -> bool:
    place = getattr(hook, "__module__", None) or type(hook).__module__
    return place.startswith("torch.")


class Hook:
    """A callable that torch keeps. Copies and pickles of it do nothing, wherever they are loaded."""

    __slots__ = ("__weakref__",)
    __name__ = "hook"  # of a node of a graph
    __torch_unserializable__ = True  # torch warns about hooks on a saved tensor without this

    def __reduce__(self):
        return getattr, (nullcontext(), "__exit__")  # takes any arguments, returns None


class ModuleHook:
    """The handle of a hook on a module. While there is one, copyreg reduces modules of its class to
    what they are without our hooks: `torch.load(weights_only=True)` takes nothing else."""

    __slots__ = ("handle", "kind")
    _classes: dict[type, int] = {}  # class -> how many hooks
    _lock = fork_safe_lock()  # watches come and go in several threads

    def __init__(self, module, register: str, hook: Hook, **how):
        self.kind = type(module)
        self.handle = getattr(module, register)(hook, **how)
        with self._lock:
            count = self._classes.get(self.kind, 0)
            if count == 0:
                copyreg.dispatch_table.setdefault(self.kind, _reduced)  # a program's own holds
            self._classes[self.kind] = count + 1

    def is_emptied(self) -> bool:
        return _is_gone(self.handle)

    def remove(self) -> None:
        kind, self.kind = self.kind, None
        if kind is None:
            return
        _lifted.discard(self.handle.id)
        self.handle.remove()
        with self._lock:
            self._classes[kind] -= 1
            if self._classes[kind] == 0:
                del self._classes[kind]
                if copyreg.dispatch_table.get(kind) is _reduced:
                    del copyreg.dispatch_table[kind]


def is_followed(hooks, key) -> bool:
    """Whether a hook that is none of ours comes after the one of this key."""
    later = itertools.takewhile(lambda one: one != key, reversed(hooks))
    return any(not isinstance(hooks[one], Hook) for one in later)


def _is_gone(handle) -> bool:
    """Whether somebody took a hook off without its handle."""
    hooks = handle.hooks_dict_ref()
    return hooks is None or (handle.id not in hooks and handle.id not in _lifted)


_lifted: set[int] = set()  # ids of handles whose hooks are to be put back


def has_hooks(module) -> bool:
    """Whether it has forward hooks of ours."""
    return bool(_forward_hooks(module))


def lift(module) -> list[Callable]:
    """Takes our forward hooks off for a while. What puts them back, those that are not removed by then."""
    return [_lift(hooks, notes) for hooks, notes in _forward_hooks(module)]


def _forward_hooks(module) -> list[tuple]:
    """The dictionaries that have some of ours, each with what is noted beside it."""
    tables = [(getattr(module, key, {}), notes) for key, notes in _KEPT[:2]]
    return [
        (hooks, [getattr(module, note, {}) for note in notes])
        for hooks, notes in tables
        if any(isinstance(hook, Hook) for hook in hooks.values())
    ]


def _lift(hooks, notes: list[dict]) -> Callable:
    order = list(hooks)
    ours = {key: hook for key, hook in hooks.items() if isinstance(hook, Hook)}
    noted = [{key: note[key] for key in ours if key in note} for note in notes]
    for key in ours:
        for held in (hooks, *notes):
            held.pop(key, None)
    _lifted.update(ours)

    def put_back() -> None:
        for held, kept in zip((hooks, *notes), (ours, *noted), strict=True):
            held.update({key: one for key, one in kept.items() if key in _lifted})
        _lifted.difference_update(ours)
        for key in [*order, *(key for key in hooks if key not in order)]:
            if key in hooks:
                hooks.move_to_end(key)

    return put_back


def _reduced(module):
    reduced = module.__reduce_ex__(2)  # later protocols have the same for modules
    # A shallow copy shares the dictionaries, hooks that are put into them later included.
    shares = sys._getframe(1).f_code is copy.copy.__code__
    if shares or not isinstance(reduced, tuple) or len(reduced) < 3:
        return reduced
    return (*reduced[:2], _bare(reduced[2]), *reduced[3:])


def _bare(state):
    """The same without our hooks; what has none is not copied."""
    if not isinstance(state, dict):
        return state
    for key, notes in _KEPT:
        hooks = state.get(key)
        ours = {i for i, hook in hooks.items() if isinstance(hook, Hook)} if hooks else ()
        if ours:
            kept = {k: state[k] for k in (key, *notes) if k in state}
            state = {**state, **{k: _without(ours, held) for k, held in kept.items()}}
    return state


def _without(ours, held):
    return type(held)((i, value) for i, value in held.items() if i not in ours)


class Handles:
    """Hooks to take off again, leaving every object as it was found."""

    def __init__(self):
        self._handles = []
        self._on_modules: list[tuple] = []  # (reference to a module, hook, handle)
        self._left: dict[tuple, tuple] = {}  # _place() of the hook -> such a tuple
        self._turn = 0

    def add(self, *handles) -> None:
        self._handles.extend(handles)

    def hook(self, module, register: str, hook, **how) -> None:
        """Registers a hook of a module. One of its class that was left there becomes it."""
        run_eagerly(type(hook))
        reference, left, handle = self._left.pop(_place(module, hook), (None, None, None))
        if reference is None or reference() is not module:
            handle = ModuleHook(module, register, hook, **how)
        else:
            for name in type(hook).__slots__:
                setattr(left, name, getattr(hook, name))
            hook = left
        self._on_modules.append((weakref.ref(module), hook, handle))

    def drop(self, handles: list) -> None:
        """Takes these off, and forgets them."""
        if not handles:
            return
        ids = set(map(id, handles))
        self._handles = [one for one in self._handles if id(one) not in ids]
        for one in handles:
            one.remove()

    def emptied_in_turn(self):
        """The module of one hook, the next at each call, if somebody took that off; else None."""
        if not self._on_modules:
            return None
        self._turn = (self._turn + 1) % len(self._on_modules)
        reference, _, handle = self._on_modules[self._turn]
        module = reference()
        return module if module is not None and handle.is_emptied() else None

    def leave(self, roots: dict, kept: dict) -> list:
        """Takes hooks off all modules but the roots and those kept, by id. A library may have moved hooks
        from one module to another: they go, with all of the module that lost them. Gives those back."""
        lost = {id(entry[0]()) for entry in self._on_modules if entry[2].is_emptied()}
        stay = roots.keys() | (kept.keys() - lost)
        gone = [entry for entry in self._on_modules if id(entry[0]()) not in stay]
        moved = {id(hook) for _, hook, handle in gone if handle.is_emptied()}
        for module in (*roots.values(), *kept.values()) if moved else ():
            _take_off(module, moved)
        for _, _, handle in gone:
            handle.remove()
        self._on_modules = [entry for entry in self._on_modules if id(entry[0]()) in stay]
        return [reference() for reference, _, _ in gone]

    def remove(self, stays: Callable | None = None) -> None:
        """Takes hooks off, but for those of modules that `stays` says true of: compiled code has them in
        it, and would be compiled again without. What they belong to must be off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        left = {}
        for entry in [*self._left.values(), *self._on_modules]:
            reference, hook, handle = entry
            module = reference()
            if stays is not None and module is not None and stays(module):
                left[_place(module, hook)] = entry
            else:
                handle.remove()
        self._left = left
        self._on_modules.clear()


def _take_off(module, hooks: set[int]) -> None:
    """Those of these ids that are on the module, without their handles."""
    for key, notes in _KEPT:
        held = vars(module).get(key, {})
        for number in [number for number, hook in held.items() if id(hook) in hooks]:
            for table in (held, *(vars(module).get(note, {}) for note in notes)):
                table.pop(number, None)


def _place(module, hook) -> tuple:
    return id(module), type(hook), type(getattr(hook, "call", None))


def run_eagerly(hook: type) -> None:
    """Hooks of the outermost module of a compiled region are called from outside its graph.
    Dynamo would compile each by itself there; from now on it leaves them alone. Inside it traces
    them all the same."""
    if hook in own_hooks.types:
        return
    own_hooks.types.add(hook)
    try:
        from torch._C._dynamo import eval_frame

        if hasattr(eval_frame, "_FrameAction"):
            skip = eval_frame._FrameAction.SKIP
            strategy = eval_frame._FrameExecStrategy(skip, skip)
            eval_frame.set_code_exec_strategy(hook.__call__.__code__, strategy)
        elif is_supported():
            _leave_alone(hook, eval_frame)
    except (ImportError, AttributeError):  # another torch: there they become graphs of their own
        pass


def keep_out_of_graphs(hook: type) -> None:
    """Of a hook on an optimizer, whose step() may be compiled: Dynamo does not trace it there either. It goes
    on with a graph of its own behind it, as it does behind the gradients that torch switches on."""
    run_eagerly(hook)
    hook.__call__._torchdynamo_disable = True  # as torch.compiler.disable(), which imports Dynamo


def _leave_alone(hook: type, eval_frame) -> None:
    """Where torch skips a frame, but goes on compiling what is called from it (2.4, 2.5)."""
    call, switch = hook.__call__, eval_frame.set_eval_frame

    def __call__(self, *args, **kwargs):
        if compiling():
            return call(self, *args, **kwargs)
        before = switch(None)
        try:
            return call(self, *args, **kwargs)
        finally:
            switch(before)

    eval_frame.skip_code(__call__.__code__)
    hook.__call__ = __call__


_training_threads: set[int] = set()  # in which forwards of watched models began


def training_runs_here() -> None:
    _training_threads.add(threading.get_ident())


def forget_hooks(tensor, kept: str) -> None:
    """Takes away the dictionary that torch made for hooks on a tensor, where it is empty. A backward
    in another thread may be looking into it, without the GIL: then it stays."""
    if getattr(tensor, kept):
        return
    here = threading.get_ident()
    if others := _training_threads - {here}:
        others.intersection_update(one.ident for one in threading.enumerate())
    elif here not in _training_threads and here != threading.main_thread().ident:
        return  # no forward was seen, and this thread is hardly that of the training
    if not others:
        setattr(tensor, kept, None)


class TensorHook:
    """A hook on one tensor, taken off without a trace. `called` is `hook`, or calls it."""

    __slots__ = ("tensor", "hook", "called", "_handle", "_bare")
    register: str  # the tensor's method for such hooks
    kept: str  # where the tensor has them

    def __init__(self, tensor, hook, called):
        self.tensor, self.hook, self.called = tensor, hook, called
        in_graphs.add(called)
        self._bare = getattr(tensor, self.kept) is None  # torch makes a dictionary for it
        self._handle = getattr(tensor, self.register)(called)

    def remove(self) -> None:
        self._handle.remove()
        in_graphs.remove(self.called)
        if self._bare:
            forget_hooks(self.tensor, self.kept)


class AfterAccumulation(TensorHook):
    """A post-accumulate-grad hook. Holds its tensor: with a weak reference to it, torch would refuse to
    swap it in model.to() and the like."""

    __slots__ = ("_content",)
    register, kept = "register_post_accumulate_grad_hook", "_post_accumulate_grad_hooks"

    def __init__(self, tensor, hook, called):
        super().__init__(tensor, hook, called)
        self._content = tensor._cdata

    def is_lost(self) -> bool:
        """torch swapped the tensor's content for another, and the hook left with the old one."""
        return self.tensor._cdata != self._content

    def is_emptied(self) -> bool:
        return _is_gone(self._handle)
