# Walks modules under the names their author gave them, and finds those whose hooks get called.
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import torch
from torch import nn

from trainmon.base.names import attribute_of

# Attributes under which wrappers keep the user's module.
_INNER = {
    "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
    "_forward_module", "_original_module",  # Fabric
}  # fmt: skip
# Modules that keep it under `module`: a class, where it is if anybody has loaded it.
_AROUND = (
    ("torch.nn.parallel", "DistributedDataParallel"),
    ("torch.nn.parallel", "DataParallel"),
    ("deepspeed.runtime.engine", "DeepSpeedEngine"),
    ("megatron.core.distributed.data_parallel_base", "_BaseDataParallel"),
    ("megatron.core.transformer.module", "Float16Module"),
    ("colossalai.interface", "ModelWrapper"),
)


def named(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """(name, module) in order, without the components that wrappers put into names.

    A wrapper comes before the module it wraps and has the same name; a module used twice appears
    under both names.
    """
    yield from _walk("", root, ())


def _walk(prefix: str, module: nn.Module, above: tuple) -> Iterator[tuple[str, nn.Module]]:
    if any(module is other for other in above):
        return
    yield prefix, module
    for name, child in children(prefix, module):
        yield from _walk(name, child, (*above, module))


def children(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """(name, module) of those directly in the module that has this name."""
    for key, child in module._modules.items():
        if child is not None:
            yield (name if _is_inner(module, key) else within(name, key)), child


def _is_inner(module: nn.Module, key: str) -> bool:
    """Whether `module` is a wrapper that keeps the user's module under `key`."""
    if key != "module":
        return key in _INNER
    around = (getattr(sys.modules.get(place), name, None) for place, name in _AROUND)
    return isinstance(module, tuple(kind for kind in around if isinstance(kind, type)))


def innermost(root: nn.Module) -> nn.Module:
    """The user's module inside its wrappers."""
    for key, child in root._modules.items():
        if child is not None and _is_inner(root, key):
            return innermost(child)
    return root


def within(chunk: str, name: str) -> str:
    """The name of what is in a chunk that has one itself."""
    return f"{chunk}.{name}" if chunk and name else chunk or name


def callable_ones(
    root: nn.Module,
    seen: set[int],
    not_covered: Callable[[str, str], None],
    wrappers: bool = False,
    follows_compiled: bool = False,
) -> Iterator[tuple[str, nn.Module]]:
    """Every module whose hooks will be called, once (`seen` has ids), under its first name; what
    merely wraps the user's module only with `wrappers`.

    A compiled module stands for all that is in it, where hooks vanish. With `follows_compiled`
    they need not (compiled.py). Then what torch.compile() gave back stands only for the module it
    was given.
    """
    inside: set[int] = set()
    for name, module in named(root):
        if isinstance(module, torch.jit.ScriptModule):
            if id(module) not in inside:
                not_covered(f"actv of scripted {name or 'model'}", "torch.jit takes no hooks")
            inside.update(id(m) for m in module.modules())
        compiled = _compiled(module)
        if compiled is None or id(compiled) in inside:
            continue
        if follows_compiled:
            if compiled is not module:
                inside.add(id(compiled))
        else:
            not_covered(f"modules inside compiled {name or 'model'}", "torch.compile")
            inside.update(id(m) for m in compiled.modules())
    for name, module in named(root):
        if id(module) in inside or id(module) in seen:
            continue
        seen.add(id(module))
        keys = set(module._modules.keys()) - {"_orig_mod"}
        wraps = any(_is_inner(module, key) for key in keys)
        if (wrappers or not wraps) and has_forward(module):
            yield name, module


def inside_compiled(root: nn.Module) -> set[int]:
    """Ids of the modules of which it is known that torch.compile has them."""
    found: set[int] = set()
    for _, module in named(root):
        if (compiled := _compiled(module)) is not None:
            found.update(id(m) for m in compiled.modules())
    return found


def _compiled(module: nn.Module) -> nn.Module | None:
    """What is compiled when `module` is called: by torch.compile(module), by module.compile()."""
    inner = attribute_of(module, "_orig_mod")
    if inner is None and attribute_of(module, "_compiled_call_impl") is not None:
        return module
    return inner


def has_forward(module: nn.Module) -> bool:
    """Whether it can be called at all: ModuleList and the like cannot."""
    return type(module).forward is not nn.Module.forward or "forward" in vars(module)
