"""Promise A1 where torch computes otherwise as soon as a module has a hook: nn.TransformerEncoderLayer in eval()."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

import trainmon

TOKENS = 33
SETTINGS = [
    {"kinds": ["grads", "activations"]},
    {"kinds": ["grads", "activations"], "modules": "blocks"},
    {"kinds": ["grads", "attention", "spectral"]},
    {"checks": True, "kinds": ["activations"], "budget": "5%"},
]


class Encoder(nn.Module):
    def __init__(self, norm_first):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(
            64, 4, 128, dropout=0.1, batch_first=True, norm_first=norm_first
        )
        self.tokens = nn.Embedding(50, 64)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 4)

    def forward(self, ids, padding):
        return self.head(self.encoder(self.tokens(ids), src_key_padding_mask=padding))


def batch(step):
    drawn = torch.Generator().manual_seed(step)
    lengths = torch.randint(TOKENS // 2, TOKENS + 1, (4, 1), generator=drawn)
    lengths[0] = TOKENS
    ids = torch.randint(0, 50, (4, TOKENS), generator=drawn)
    return ids, torch.arange(TOKENS)[None] >= lengths


def with_own_targets(model, optimizer, step):
    """Targets come from an evaluation of the model itself."""
    model.eval()
    with torch.no_grad():
        target = model(*batch(step)).argmax(-1)
    model.train()
    loss = nn.functional.cross_entropy(model(*batch(step + 1000)).flatten(0, 1), target.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def with_a_frozen_encoder(model, optimizer, step):
    """A head is trained on an encoder that stays in eval()."""
    model.train()
    for module in (model.tokens, model.encoder):
        module.eval().requires_grad_(False)
    optimizer.zero_grad()
    model(*batch(step)).square().mean().backward()
    optimizer.step()


def trained(train_step, norm_first, run=None, **options):
    model = Encoder(norm_first)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = None if run is None else trainmon.watch(model, optimizer, out=run, every=1, **options)
    for step in range(6):
        train_step(model, optimizer, step)
    hooked = {name for name, one in model.named_modules() if one._forward_hooks}
    if monitor is not None:
        monitor.stop()
    return model, hooked


@pytest.fixture
def fast_calls(monkeypatch):
    """How often torch took its own kernel."""
    plain, calls = torch._transformer_encoder_layer_fwd, []

    def counted(*args, **kwargs):
        calls.append(1)
        return plain(*args, **kwargs)

    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", counted)
    return calls


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("train_step", [with_own_targets, with_a_frozen_encoder])
@pytest.mark.parametrize("options", SETTINGS)
def test_evaluations_are_as_unwatched(tmp_path, fast_calls, options, train_step, norm_first):
    bare, _ = trained(train_step, norm_first)
    expected = len(fast_calls)
    assert expected > 0
    watched, _ = trained(train_step, norm_first, tmp_path, **options)
    assert len(fast_calls) == 2 * expected
    for one, other in zip(bare.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, other)
    for module in watched.modules():
        assert type(module._forward_hooks) is OrderedDict
        for kept in ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs"):
            assert not getattr(module, kept), kept


def test_rows_of_training_are_all_there(tmp_path):
    _, hooked = trained(with_own_targets, False, tmp_path, kinds=["activations"], modules="all")
    assert "encoder.layers.1.linear2" in hooked  # in train() again
    table = trainmon.read(tmp_path, kinds=["actv"])
    steps = table[table.name == "encoder.layers.1.linear2"].step
    assert set(steps) == set(range(6))
    assert trainmon.diagnose(str(tmp_path))["verdict"] is None


def test_a_layer_that_is_put_in_later_is_looked_at(tmp_path, fast_calls):
    model = Encoder(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with trainmon.watch(model, optimizer, out=tmp_path, kinds=["activations"], modules="all"):
        with_own_targets(model, optimizer, 0)
        model.encoder.layers.append(Encoder(False).encoder.layers[0])
        optimizer.add_param_group({"params": list(model.encoder.layers[2].parameters())})
        for step in range(1, 4):
            fast_calls.clear()
            with_own_targets(model, optimizer, step)
    assert len(fast_calls) == 3
    table = trainmon.read(tmp_path, kinds=["actv"])
    assert "encoder.layers.2.linear2" in set(table.name)


def test_hooks_of_the_user_keep_their_order(tmp_path):
    model = Encoder(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    order = []
    layer = model.encoder.layers[0].linear2
    with trainmon.watch(model, optimizer, out=tmp_path, kinds=["activations"], modules="all"):
        keys = list(layer._forward_hooks)
        first = layer.register_forward_hook(lambda *_: order.append("first"))
        with_own_targets(model, optimizer, 0)
        second = layer.register_forward_hook(lambda *_: order.append("second"))
        with_own_targets(model, optimizer, 1)
        assert list(layer._forward_hooks) == [*keys, first.id, second.id]
    assert list(layer._forward_hooks) == [first.id, second.id]
    # An evaluation with hooks of the user has them called, as without us.
    assert order == ["first", "first", "first", "second", "first", "second"]
