# What a monitor could leave behind: hooks on objects, patched functions, threads, descriptors.
import os
import sys
import threading
import types

FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    type,
)


def _size(value):
    if isinstance(value, (dict, list, set, tuple)):
        return f"{type(value).__name__}[{len(value)}]"
    return "None" if value is None else type(value).__name__


def of_objects(model, optimizers):
    """Every attribute of every touched object: its type and size. Equal before and after."""
    found = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            found[f"module {name}.{key}"] = _size(value)
        for key in ("forward", "__call__"):
            found[f"module {name} {key}"] = getattr(module, key).__func__.__qualname__
    for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
        for key, value in vars(parameter).items():
            found[f"tensor {name}.{key}"] = _size(value)
        for key in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            found[f"tensor {name} {key}"] = _size(getattr(parameter, key))
            if parameter.grad is not None:
                found[f"tensor {name}.grad {key}"] = _size(getattr(parameter.grad, key))
    for index, optimizer in enumerate(optimizers):
        for key, value in vars(optimizer).items():
            found[f"optimizer {index}.{key}"] = _size(value)
        found[f"optimizer {index} step"] = optimizer.step.__qualname__
    for space in (
        sys.modules["torch.nn.modules.module"],
        sys.modules["torch.optim.optimizer"],
    ):
        for key, value in vars(space).items():
            if key.startswith("_global"):
                found[f"{space.__name__}.{key}"] = _size(value)
    return found


def of_code():
    """Identity of every function and class reachable from the loaded modules of torch and NumPy.

    The values are the objects themselves, so that an address cannot be used twice.
    """
    found = {}
    for space, module in list(sys.modules.items()):
        if module is None or space.split(".")[0] not in (
            "torch",
            "numpy",
            "random",
            "os",
            "signal",
        ):
            continue
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if issubclass(type(value), FUNCTIONS):  # isinstance would trip torch's deprecations
                found[f"{space}.{name}"] = value
            if issubclass(type(value), type) and value.__module__ == space:
                for key, member in list(vars(value).items()):
                    if callable(member) or isinstance(
                        member, (property, classmethod, staticmethod)
                    ):
                        found[f"{space}.{name}.{key}"] = member
    found["sys.excepthook"], found["threading.excepthook"] = (
        sys.excepthook,
        threading.excepthook,
    )
    return found


def changed(before, after):
    """Keys of `before` that are missing or other in `after`, and new keys."""
    keys = [k for k in before if k not in after or not same(before[k], after[k])]
    return sorted(keys), sorted(k for k in after if k not in before)


def same(a, b):
    return a is b or (isinstance(a, str) and a == b)


def of_process():
    """Operating-system threads, descriptors and resident bytes of this process."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "bytes": pages * os.sysconf("SC_PAGE_SIZE"),
    }
