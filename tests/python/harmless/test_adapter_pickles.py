# A watched model as others save and copy it: the bytes and copies of one that is not watched.
import copy
import copyreg
import io
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

import trainmon
import versions
from adapter_rows import healthy

ALL = [
    "grads", "grad_unreduced", "grad_micro", "weights", "moments", "activations", "cc",
    "mg_direction", "update_ratio", "stack", "stable_rank", "spectral_norm",
]  # fmt: skip
HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(3, 3), nn.LayerNorm(3)

    def forward(self, x):
        return self.norm(self.inner(x)).relu()


class WithState(nn.Module):
    """Says itself what of it is pickled, as DistributedDataParallel does."""

    def __init__(self):
        super().__init__()
        self.inner, self.cache = nn.Linear(3, 3), lambda: None

    def __getstate__(self):
        state = self.__dict__.copy()
        del state["cache"]
        return state

    def __setstate__(self, state):
        super().__setstate__(state)
        self.cache = lambda: None

    def forward(self, x):
        return self.inner(x)


CLASSES = [Block, nn.Linear, nn.LayerNorm, nn.Sequential, WithState]


def plus_one(module, args, output):
    return output + 1


def made():
    torch.manual_seed(1)
    model = nn.Sequential(Block(), WithState(), nn.Linear(3, 3), nn.Linear(3, 2))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model, optimizer):
    torch.manual_seed(2)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).pow(2).sum().backward()
        optimizer.step()


def saved(what):
    file = io.BytesIO()
    torch.save(what, file)
    file.seek(0)
    return file


def hooks_of(model):
    return [(name, len(getattr(m, name, ()))) for m in model.modules() for name in HOOKS]


@pytest.fixture(params=["default", ALL], ids=["default", "all"])
def watched(request, tmp_path):
    """(model, optimizer, monitor) after some steps; whoever stops the monitor has a bare model."""
    model, optimizer = made()
    kinds = {} if request.param == "default" else {"kinds": ALL}
    with trainmon.watch(model, optimizer, out=tmp_path / "run", **kinds) as monitor:
        train(model, optimizer)
        yield model, optimizer, monitor
    healthy(monitor)


@versions.since((2, 5), "torch.serialization.safe_globals")
def test_a_model_saved_whole_loads_with_what_it_needs_without_us(watched):
    model, _, monitor = watched
    file = saved(model)
    with torch.serialization.safe_globals(CLASSES):
        loaded = torch.load(file, weights_only=True)
    assert set(hooks_of(loaded)) == {(name, 0) for name in HOOKS}
    monitor.stop()
    data = torch.randn(2, 3)
    assert torch.equal(loaded(data), model(data))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_are_those_of_a_bare_model(watched, protocol):
    model, optimizer, monitor = watched
    ours = [pickle.dumps(what, protocol) for what in (model, optimizer)]
    monitor.stop()
    assert ours == [pickle.dumps(what, protocol) for what in (model, optimizer)]


def test_saved_files_are_those_of_a_bare_model(watched):
    model, optimizer, monitor = watched
    ours = [saved(what).getvalue() for what in (model, optimizer, {"m": model, "o": optimizer})]
    monitor.stop()
    bare = [saved(what).getvalue() for what in (model, optimizer, {"m": model, "o": optimizer})]
    assert ours == bare


def test_copies_are_bare_and_the_users_hooks_are_in_them(watched):
    model, optimizer, _ = watched
    handle = model[3].register_forward_hook(plus_one)
    data = torch.randn(2, 3)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert list(twin[3]._forward_hooks.values()) == [plus_one]
        assert sum(count for _, count in hooks_of(twin)) == 1
        assert torch.equal(twin(data), model.eval()(data))
        model.train()
    handle.remove()
    copy.deepcopy(optimizer)


def test_a_shallow_copy_shares_hooks_as_it_does_without_us(watched):
    model, _, _ = watched
    twin = copy.copy(model[3])
    assert twin._forward_hooks is model[3]._forward_hooks


def test_nothing_of_how_classes_are_pickled_is_left(tmp_path):
    before = dict(copyreg.dispatch_table)
    model, optimizer = made()
    with trainmon.watch(model, optimizer, kinds=ALL, out=tmp_path / "run"):
        train(model, optimizer)
    assert copyreg.dispatch_table == before


def test_what_a_program_registered_for_a_class_holds(tmp_path):
    class Own(nn.Linear):
        pass

    copyreg.pickle(Own, lambda module: (nn.Linear, (3, 2)))
    try:
        model = Own(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with trainmon.watch(model, optimizer, kinds=["activations"], out=tmp_path / "run"):
            assert type(copy.deepcopy(model)) is nn.Linear
        assert type(copy.deepcopy(model)) is nn.Linear
    finally:
        del copyreg.dispatch_table[Own]


def test_a_started_process_gets_a_bare_model(tmp_path):
    program = tmp_path / "spawned.py"
    program.write_text(
        "import torch, torch.multiprocessing as mp\n"
        "import trainmon\n"
        "def child(model, queue):\n"
        "    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())\n"
        "    queue.put((hooks, float(model(torch.ones(1, 2)).sum().detach())))\n"
        "if __name__ == '__main__':\n"
        "    context = mp.get_context('spawn')\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    kinds = ['grads', 'activations']\n"
        f"    monitor = trainmon.watch(model, optimizer, kinds=kinds, out={str(tmp_path / 'run')!r})\n"
        "    queue = context.SimpleQueue()\n"
        "    process = context.Process(target=child, args=(model, queue))\n"
        "    process.start()\n"
        "    hooks, value = queue.get()\n"
        "    process.join()\n"
        "    assert hooks == 0, hooks\n"
        "    assert value == float(model(torch.ones(1, 2)).sum().detach())\n"
        "    monitor.stop()\n"
        "    print('done')\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0 and "done" in done.stdout, done.stdout + done.stderr
