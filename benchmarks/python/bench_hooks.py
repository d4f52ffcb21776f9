# What the hooks cost per tensor, beside empty Python hooks of the same kind in the same run.
"""bench_hooks.py [--rounds N] [--json FILE]

Chains of small modules train on tensors of eight elements, so that measuring them is nothing: bare,
with empty hooks, and watched, one step each in random order. Figures are the CPU time of the thread
per module above the bare chain, as medians; `ratio` is against the empty hooks. One module has one
input and one output.
"""

import argparse
import json
import pathlib
import random
import statistics
import tempfile
import time

import torch
from torch import nn

import trainmon
from trainmon import _core

MODULES = 200


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return x * self.weight


def nothing(*_):
    pass


# --- empty hooks of each kind -------------------------------------------------------------------


def empty_forward(chain):
    for module in chain:
        module.register_forward_pre_hook(nothing, with_kwargs=True)
        module.register_forward_hook(nothing, with_kwargs=True)


def empty_outputs(chain):
    def forward_hook(module, args, kwargs, output):
        output.register_hook(nothing)

    for module in chain:
        module.register_forward_pre_hook(nothing, with_kwargs=True)
        module.register_forward_hook(forward_hook, with_kwargs=True)


def empty_inputs(chain):
    def forward_hook(module, args, kwargs, output):
        output.register_hook(nothing)
        output.grad_fn.register_hook(nothing)

    for module in chain:
        module.register_forward_pre_hook(nothing, with_kwargs=True)
        module.register_forward_hook(forward_hook, with_kwargs=True)


def empty_accumulated(chain):
    for parameter in chain.parameters():
        parameter.register_post_accumulate_grad_hook(nothing)


# name of the empty hooks -> (how they are put on, what the watched chain records)
WATCHED = {
    "values": (empty_forward, {"kinds": ["actv"]}),
    "output gradients": (empty_outputs, {"kinds": ["actv_grad"], "input_grads": False}),
    "values, output gradients": (empty_outputs, {"kinds": ["activations"], "input_grads": False}),
    "output and input gradients": (empty_inputs, {"kinds": ["actv_grad"]}),
    "accumulated gradients": (empty_accumulated, {"kinds": ["grad_unreduced"]}),
}


class Chain:
    def __init__(self):
        self.model = nn.Sequential(*(Scale() for _ in range(MODULES)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self.data = torch.ones(8, requires_grad=True)  # so that the first module has what all have

    def step(self):
        """CPU seconds of forward and backward, per module."""
        begin = time.thread_time()
        output = self.model(self.data * 1)
        middle = time.thread_time()
        output.sum().backward()
        end = time.thread_time()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return (middle - begin) / MODULES, (end - middle) / MODULES


def interleaved(subjects: dict, rounds: int, passes: int) -> dict:
    """Name -> list of what each call of a subject returned, called in random order."""
    draw, results = random.Random(0), {name: [] for name in subjects}
    for number in range(rounds + passes):
        names = list(subjects)
        draw.shuffle(names)
        for name in names:
            result = subjects[name]()
            if number >= passes:  # the first ones register series and fill caches
                results[name].append(result)
    return results


def above(results: dict, name: str, bare: str, part: int) -> float:
    """Median of the paired differences, in ns."""
    pairs = zip(results[name], results[bare], strict=True)
    return 1e9 * statistics.median(mine[part] - other[part] for mine, other in pairs)


def in_training(folder: pathlib.Path, rounds: int) -> list[dict]:
    chains, monitors = {"bare": Chain()}, []
    for name, (put_on, keys) in WATCHED.items():
        chains[f"empty {name}"], chains[name] = Chain(), Chain()
        put_on(chains[f"empty {name}"].model)
        watched = chains[name]
        out = folder / name.replace(" ", "_")
        monitors.append(
            trainmon.watch(
                watched.model, watched.optimizer, every=1, out=out, allow_volume=True, **keys
            )
        )
    steps = {name: chain.step for name, chain in chains.items()}
    results = interleaved(steps, rounds, 5)
    for monitor in monitors:
        monitor.stop()
        health = monitor.health()
        assert health["parts_off"] == {} and health["errors"] == 0
        assert health["rows_produced"] >= MODULES * rounds
    parts = {
        "values": {"both forward hooks, values": 0},
        "output gradients": {"both forward hooks, output gradient hooked": 0},
        "values, output gradients": {
            "both forward hooks, values, output gradient hooked": 0,
            "output gradient hook": 1,
        },
        "output and input gradients": {
            "both forward hooks, output and input gradients hooked": 0,
            "output and input gradient hooks": 1,
        },
        "accumulated gradients": {"post-accumulate-grad hook": 1},
    }
    lines = []
    for name, phases in parts.items():
        for what, phase in phases.items():
            mine = above(results, name, "bare", phase)
            lines.append(line_of(what, mine, above(results, f"empty {name}", "bare", phase)))
    return lines


def on_their_own(folder: pathlib.Path, rounds: int) -> list[dict]:
    """Calls that can be made without training around them."""
    chain = Chain()
    monitor = trainmon.watch(
        chain.model, chain.optimizer, kinds=["grad_reduced", "actv"], every=1, out=folder / "own"
    )
    chain.step()
    root = chain.model
    before_root = list(root._forward_pre_hooks.values())[0]
    module, value = root[MODULES // 2], torch.ones(8)
    before = list(module._forward_pre_hooks.values())[0]
    after = list(module._forward_hooks.values())[0]
    root(chain.data)  # from here on, a forward is under way
    parameters = list(root.parameters())
    for parameter in parameters:
        parameter.grad = torch.ones(8)
    core = monitor._core
    handle = core.handle
    series = [core.add_series("grad_reduced", f"own.{i}") for i in range(MODULES)]

    def repeated(call, *args):
        def timed():
            begin = time.thread_time()
            for _ in range(MODULES):
                call(*args)
            took = time.thread_time() - begin
            before_root(root, ())  # forgets calls that began and do not end
            return ((took / MODULES),)

        return timed

    def swept():
        begin = time.thread_time()
        _core.sweep(handle, series, parameters, "grad")
        return ((time.thread_time() - begin) / MODULES,)

    def empty_sweep():
        begin = time.thread_time()
        for parameter in parameters:
            nothing(parameter.grad)
        return ((time.thread_time() - begin) / MODULES,)

    def loop():
        begin = time.thread_time()
        for _ in range(MODULES):
            pass
        return ((time.thread_time() - begin) / MODULES,)

    results = interleaved(
        {
            "loop": loop,
            "sweep": swept,
            "empty sweep": empty_sweep,
            "empty pre": repeated(nothing, module, (value,), {}),
            "forward pre-hook": repeated(before, module, (value,), {}),
            "empty after": repeated(nothing, module, (value,), {}, value),
            "forward hook": repeated(after, module, (value,), {}, value),
            "observe_at": repeated(_core.observe_at, handle, series[0], value, 0, 0, 0),
        },
        rounds,
        5,
    )
    monitor.stop()
    names = {
        "sweep": ("sweep", "empty sweep"),
        "forward pre-hook, value of one input": ("forward pre-hook", "empty pre"),
        "forward hook, value of one output": ("forward hook", "empty after"),
        "observe_at alone, of which the hooks call one per value": ("observe_at", "empty after"),
    }
    return [
        line_of(what, above(results, mine, "loop", 0), above(results, empty, "loop", 0))
        for what, (mine, empty) in names.items()
    ]


def line_of(name: str, mine: float, empty: float) -> dict:
    return {
        "name": name,
        "figure": mine,
        "unit": "ns per tensor",
        "yardstick": "an empty Python hook of the same kind",
        "yardstick_figure": empty,
        "ratio": mine / empty,
        "lower_is_better": True,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        lines = on_their_own(folder, options.rounds) + in_training(folder, options.rounds)
    print(f"{'ns per tensor':60s} {'ours':>8s} {'empty':>8s} {'above it':>9s}")
    for line in lines:
        mine, empty = line["figure"], line["yardstick_figure"]
        print(f"{line['name']:60s} {mine:8.0f} {empty:8.0f} {mine - empty:9.0f}")
    if options.json:
        options.json.write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
