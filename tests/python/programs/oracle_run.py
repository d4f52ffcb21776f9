# The oracle: enumerates in plain torch what a monitor must record, and saves the tensors.
"""oracle_run.py OUT MODE [views]. Never imports trainmon.

Next to the model under training (DDP, FSDP2 or plain) runs a twin: the same weights in an ordinary
module, fed the same data and random state. Activations, their gradients and unreduced gradients
come from the twin; input gradients from replaying each module call alone under torch.autograd.grad;
reduced gradients, weights and optimizer state from the trained model itself. OUT/oracle.<rank>.pt
is a list of (kind, name, element, step, micro_step, call, local tensor, full tensor or None).
"""

import copy
import dataclasses
import pathlib
import sys

import torch
import torch.distributed as dist

import models
import oracle_model


def leaves(value, path):
    """(path, tensor) of every tensor in nested containers; None and other values yield nothing."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, (tuple, list)):
        for index, part in enumerate(value):
            yield from leaves(part, f"{path}.{index}")
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{path}.{key}")
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}")


def detached(value):
    """The same structure; tensors that need a gradient become leaves of their own."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, (tuple, list)):
        return type(value)(detached(part) for part in value)
    if isinstance(value, dict):
        return {key: detached(part) for key, part in value.items()}
    return value


@dataclasses.dataclass
class Call:
    name: str
    module: torch.nn.Module
    inputs: tuple  # (args, kwargs), tensors detached
    random: torch.Tensor
    number: int = 0
    outputs: list = dataclasses.field(default_factory=list)  # (path, value, needs gradient)
    gradients: dict = dataclasses.field(default_factory=dict)

    def arguments(self):
        args, kwargs = self.inputs
        yield from leaves(args, "input")
        yield from leaves(kwargs, "input")


class Twin:
    """An ordinary copy of the model whose module calls are written down."""

    def __init__(self):
        self.model, self.calls, self.open = oracle_model.Model(), [], []
        self.counts, self.listening = {}, False
        for name, module in self.model.named_modules():
            module.register_forward_pre_hook(self.enter(name), with_kwargs=True)
            module.register_forward_hook(self.leave, with_kwargs=True)

    def enter(self, name):
        def hook(module, args, kwargs):
            if self.listening:
                inputs = (detached(args), detached(kwargs))
                self.open.append(Call(name, module, inputs, torch.get_rng_state()))

        return hook

    def leave(self, module, args, kwargs, output):
        if not self.listening:
            return
        call = self.open.pop()
        call.number = self.counts.get(call.name, 0)
        self.counts[call.name] = call.number + 1
        for path, tensor in leaves(output, "output"):
            call.outputs.append((path, tensor.detach().clone(), tensor.requires_grad))
            if tensor.requires_grad:
                tensor.register_hook(lambda g, p=path, c=call: c.gradients.update({p: g.clone()}))
        self.calls.append(call)

    def micro_step(self, ids, target, use_extra):
        """The gradients of this micro step alone, by name, None where unused."""
        self.calls, self.counts, self.listening = [], {}, True
        loss = oracle_model.loss_of(self.model(ids, use_extra=use_extra), target)
        self.listening = False
        named = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        return loss.detach(), dict(zip(named, found))

    def input_gradients(self, call):
        """Gradients that reach the inputs through this call only."""
        inputs = [(path, t) for path, t in call.arguments() if t.requires_grad]
        kept = torch.get_rng_state()
        torch.set_rng_state(call.random)
        outputs = dict(leaves(call.module(*call.inputs[0], **call.inputs[1]), "output"))
        torch.set_rng_state(kept)
        used = [(outputs[path], g) for path, g in call.gradients.items()]
        if not inputs or not used:
            return []
        tensors, gradients = zip(*used)
        got = torch.autograd.grad(tensors, [t for _, t in inputs], gradients, allow_unused=True)
        return [(path, g) for (path, _), g in zip(inputs, got) if g is not None]


def main():
    out, mode = pathlib.Path(sys.argv[1]), sys.argv[2]
    model, optimizer = oracle_model.begin(mode, views=len(sys.argv) > 3)
    with torch.random.fork_rng():  # building draws numbers
        twin, rows, losses = Twin(), [], []

    def named(model):
        return [(n.removeprefix("module."), p) for n, p in model.named_parameters()]

    def full(tensor):
        return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor

    def keep(kind, name, element, step, micro, call, tensor):
        here = models.local(tensor.detach()).clone()
        whole = full(tensor.detach()).clone() if hasattr(tensor, "full_tensor") else None
        rows.append((kind, name, element, step, micro, call, here, whole))

    for step in range(oracle_model.STEPS):
        with torch.no_grad():
            for (_, mine), (_, theirs) in zip(twin.model.named_parameters(), named(model)):
                mine.copy_(full(theirs))
        running = {}
        for micro in range(oracle_model.MICRO_STEPS):
            last = micro == oracle_model.MICRO_STEPS - 1
            extra = oracle_model.use_extra(mode, step, micro)
            ids, target = oracle_model.batch(step, micro)
            random_before = torch.get_rng_state()
            with models.micro_step(model, mode, last):
                loss = oracle_model.loss_of(model(ids, use_extra=extra), target)
                loss.backward()
            losses.append(loss.detach())
            torch.set_rng_state(random_before)
            twin_loss, gradients = twin.micro_step(ids, target, extra)
            assert torch.equal(twin_loss, loss), "the twin does not compute what the model does"
            for name, gradient in gradients.items():
                if gradient is not None:
                    running[name] = running[name] + gradient if name in running else gradient
                    keep("grad_unreduced", name, "", step, micro, 0, running[name])
            for call in twin.calls:
                for path, tensor in call.arguments():
                    keep("actv", call.name, path, step, micro, call.number, tensor)
                for path, tensor, _ in call.outputs:
                    keep("actv", call.name, path, step, micro, call.number, tensor)
                for path, gradient in call.gradients.items():
                    keep("actv_grad", call.name, path, step, micro, call.number, gradient)
                for path, gradient in twin.input_gradients(call):
                    keep("actv_grad", call.name, path, step, micro, call.number, gradient)
        for name, parameter in named(model):
            keep("param_origin", name, "", step, micro, 0, parameter)
            if parameter.grad is None:
                assert name not in running or mode != "single"
                continue
            keep("grad_reduced", name, "", step, micro, 0, parameter.grad)
            check = running.get(name, torch.zeros_like(dict(named(twin.model))[name])).clone()
            if mode != "single":
                dist.all_reduce(check)
                check /= dist.get_world_size()
            torch.testing.assert_close(full(parameter.grad), check, rtol=1e-5, atol=1e-7)
        had = {name for name, parameter in named(model) if parameter.grad is not None}
        optimizer.step()
        for name, parameter in named(model):
            keep("param_updated", name, "", step, micro, 0, parameter)
            if name in had:
                for key, value in optimizer.state[parameter].items():
                    if value.shape == parameter.shape:
                        keep(key, name, "", step, micro, 0, value)
        optimizer.zero_grad()
    assert "trainmon" not in sys.modules
    final = [models.local(p.detach()).clone() for _, p in named(model)]
    torch.save(
        copy.copy({"rows": rows, "losses": losses, "final": final}),
        out / f"oracle.{dist.get_rank() if mode != 'single' else 0}.pt",
    )
    oracle_model.end(mode)


if __name__ == "__main__":
    main()
