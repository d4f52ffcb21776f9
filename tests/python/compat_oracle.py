# What a training run really held, noted with plain torch hooks and copies.
import warnings

import torch


def squashed(name):
    """Of the names in compat_case.Net."""
    return name.removeprefix("encoder.")


def truth(model, optimizer, count, loss, micro=1, first=0):
    """Trains as compat_case.steps does; per step a dict of kind -> {name or (name, micro): tensor}."""
    found, here = [], {}

    def note(kind, key, tensor):
        if isinstance(tensor, torch.Tensor):
            here.setdefault(kind, {})[key] = tensor.detach().clone()

    for full, module in model.named_modules():
        name = squashed(full)

        def forward(module, args, out, name=name):
            note("actv", (f"{name}.input", here["micro"]), args[0])
            note("actv", (f"{name}.output", here["micro"]), out)

        def backward(module, given, taken, name=name):
            note("actv_grad", (f"{name}.input", here["micro"]), given[0])
            note("actv_grad", (f"{name}.output", here["micro"]), taken[0])

        module.register_forward_hook(forward)
        module.register_full_backward_hook(backward)

    # Of modules whose input needs no gradient.
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    for step in range(first, first + count):
        here.clear()
        optimizer.zero_grad()
        for m in range(micro):
            here["micro"] = m
            (loss(model, step * micro + m) / micro).backward()
            for full, p in model.named_parameters():
                note("grad_micro", (squashed(full), m), p.grad)
        for full, p in model.named_parameters():
            name = squashed(full)
            note("grad", name, p.grad)
            note("param_origin", name, p)
            for key in ("exp_avg", "exp_avg_sq"):
                note(key, name, optimizer.state.get(p, {}).get(key))
        optimizer.step()
        for full, p in model.named_parameters():
            note("param_updated", squashed(full), p)
        here.pop("micro")
        found.append({kind: dict(values) for kind, values in here.items()})
    return found
