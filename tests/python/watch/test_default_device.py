# torch.set_default_device() makes tensors of other devices than the user's: none of ours may be among them.
import pytest
import torch

import trainmon
from adapter_rows import healthy, rows
from trainmon.torch.measuring import check_ops

KINDS = ["grads", "weights", "moments", "activations", "mg_direction", "update_ratio"]


def trained(out, is_compiled, **keys):
    generator = torch.Generator(device="cpu").manual_seed(0)

    def drawn(*shape):
        return torch.randn(*shape, device="cpu", generator=generator)

    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8, device="cpu"), torch.nn.ReLU(), torch.nn.Linear(8, 1, device="cpu")
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(drawn(*parameter.shape))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)
    monitor = trainmon.watch(
        model, optimizer, kinds=KINDS, inside_compiled=is_compiled, out=out, **keys
    )
    ready = torch.compile(model, backend="eager") if is_compiled else model
    for _ in range(3):
        optimizer.zero_grad()
        ready(drawn(4, 8)).square().mean().backward()
        optimizer.step()
    healthy(monitor)
    key = ("kind", "name", "element", "step", "call")
    return {tuple(r[k] for k in key): (r["norm"], r["mean"], r["count"]) for r in rows(out)}


@pytest.mark.parametrize("backend, is_compiled", [("auto", False), ("auto", True), ("ops", False)])
def test_rows_are_those_without_it(backend, is_compiled, tmp_path):
    keys = {"backend": backend, "checks": True}
    check_ops._kept.cache_clear()
    torch.compiler.reset()
    torch.set_default_device("meta")  # on which nothing can be read
    try:
        found = trained(tmp_path / "with", is_compiled, **keys)
    finally:
        torch.set_default_device(None)
    torch.compiler.reset()
    wanted = trained(tmp_path / "without", is_compiled, **keys)
    assert found.keys() == wanted.keys() and len(wanted) > 100
    for name, values in wanted.items():
        assert found[name] == pytest.approx(values, nan_ok=True), name
