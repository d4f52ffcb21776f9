# A process that looks at tensors whose memory is gone, smaller than their sizes say, or replaced meanwhile.
import sys
import threading

import torch
from torch import nn

import trainmon


def shrunk(to: int, first: int = 0, strided: bool = False):
    """A view of ten of twenty numbers, whose storage has become that small."""
    whole = torch.arange(20.0)
    view = whole[first::2] if strided else whole[first : first + 10]
    whole.untyped_storage().resize_(4 * to)
    return view


def small():
    gone = [shrunk(0), shrunk(0, 10), shrunk(9), shrunk(10, 5), shrunk(14, 5), shrunk(18, 1, True)]
    gone.append(nn.Parameter(shrunk(0)))
    for tensor in gone:
        try:
            trainmon.tensor_stats(tensor)
        except TypeError as error:
            assert "storage_too_small" in str(error), error
        else:
            raise AssertionError("measured what is not there")
    there = [(shrunk(10), 0.0), (shrunk(15, 5), 5.0), (shrunk(19, 0, True), 0.0)]
    for tensor, first in there:
        assert trainmon.tensor_stats(tensor)["min"] == first
    empty = torch.empty(0)
    empty.untyped_storage().resize_(0)
    assert trainmon.tensor_stats(empty)["count"] == 0
    assert trainmon.tensor_stats(shrunk(20, 19)[:0])["count"] == 0


def watched(out: str, backend: str):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    kept = [p.detach().clone() for p in model[1].parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kinds = ["grads", "weights", "activations"]
    with trainmon.watch(model, optimizer, kinds=kinds, out=out, backend=backend) as monitor:
        for step in range(4):
            optimizer.zero_grad()
            model[0](torch.randn(2, 3)).sum().backward()
            if step == 1:
                for parameter in model[1].parameters():
                    parameter.untyped_storage().resize_(0)
            if step == 3:
                for parameter, value in zip(model[1].parameters(), kept, strict=True):
                    parameter.untyped_storage().resize_(4 * value.numel())
                    parameter.data.copy_(value)
            optimizer.step()
    health = monitor.health()
    assert health["refused"] == {"storage_too_small": 8}, health  # two tensors, before and after
    assert not health["parts_off"], health


def replaced():
    parameter = nn.Parameter(torch.ones(1 << 22))
    on = True

    def replace():
        while on:
            parameter.data = torch.ones(1 << 22)

    thread = threading.Thread(target=replace)
    thread.start()
    for _ in range(100):
        assert trainmon.tensor_stats(parameter)["max"] == 1.0
    on = False
    thread.join()


class Noisy(torch.Tensor):
    seen: list = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.seen.append(function)
        return super().__torch_function__(function, types, args, kwargs or {})


def subclass():
    tensor = torch.arange(10.0).as_subclass(Noisy)
    Noisy.seen.clear()
    assert trainmon.tensor_stats(tensor)["max"] == 9.0
    assert Noisy.seen == [], Noisy.seen
    tensor.untyped_storage().resize_(0)
    try:
        trainmon.tensor_stats(tensor)
    except TypeError as error:
        assert "storage_too_small" in str(error), error


{"small": small, "subclass": subclass, "watched": watched, "replaced": replaced}[sys.argv[1]](
    *sys.argv[2:]
)
print("done")
