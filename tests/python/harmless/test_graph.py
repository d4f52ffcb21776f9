# Promise A3: watching puts no node into the graph of a backward, which full backward hooks of modules do.
import pytest
import torch

import models
import trainmon


def nodes(loss):
    """How often each kind of node is in the graph of a loss."""
    found, seen, rest = {}, set(), [loss.grad_fn]
    while rest:
        node = rest.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found[node.name()] = found.get(node.name(), 0) + 1
        rest += [before for before, _ in node.next_functions]
    return found


def graph(name, watch):
    models.seed(3)
    model = models.build(name)
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = watch(model, optimizer)
    found = []
    for _ in range(2):
        data, target = models.draw(name)
        loss = models.loss_of(model(data), target)
        found.append(nodes(loss))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if monitor:
        monitor.stop()
    return found


@pytest.mark.parametrize("name", models.NAMES)  # the CNN writes over what modules return
@pytest.mark.parametrize("kinds", [None, "all"])
def test_the_graph_of_a_backward_is_that_of_a_bare_model(name, kinds, tmp_path):
    keys = {"kinds": kinds} if kinds else {}
    bare = graph(name, lambda *_: None)
    assert sum(bare[0].values()) > 20
    watched = graph(name, lambda *pair: trainmon.watch(*pair, out=str(tmp_path), every=1, **keys))
    assert watched == bare
    assert not any("BackwardHookFunction" in kind for kind in watched[0])


def test_the_comparison_sees_a_full_backward_hook():
    def hook(model, _):
        model.head.register_full_backward_hook(lambda *given: None)

    assert "BackwardHookFunctionBackward" in graph("gpt", hook)[0]
