"""Real trainings that begin to compute otherwise where no norm leaves its range: a jump beside the trend."""

from __future__ import annotations

import pytest
import torch

import trainmon

STEPS, AT = 200, 150


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(16, 16) for _ in range(4))
        self.scale = 16**-0.5

    def forward(self, x):
        weights = (self.q(x) @ self.k(x).transpose(-1, -2) * self.scale).softmax(-1)
        return x + self.o(weights @ self.v(x))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(20, 16), torch.nn.Embedding(12, 16)
        self.blocks = torch.nn.ModuleList(Attention() for _ in range(2))
        self.norm, self.head = torch.nn.LayerNorm(16), torch.nn.Linear(16, 20)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train(out, fault=None, ids_of=None):
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    with trainmon.watch(
        model, optimizer, out=str(out), checks=True, every=1, kinds="activations"
    ) as monitor:
        for step in range(STEPS):
            if fault is not None and step == AT:
                fault(model)
            rows = 12 if ids_of is None else ids_of(step)
            first = torch.randint(20, (rows, 1), generator=generator)
            ids = (first + torch.arange(13) * (1 + first % 3)) % 20
            loss = torch.nn.functional.cross_entropy(
                model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
            )
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.log(loss=loss.item())
    return trainmon.diagnose(str(out))


def lose_scale(model):
    model.blocks[1].scale = 1.0


def detach_value(model):
    block = model.blocks[0]
    block.v.register_forward_hook(lambda module, args, output: 0.5 * output)


@pytest.mark.parametrize("fault", [lose_scale, detach_value])
def test_the_step_and_the_block_are_named(tmp_path, fault):
    found = train(tmp_path / "run", fault)
    assert found["verdict"] is None
    left = found["left_history"]
    assert left is not None and abs(left["step"] - AT) <= 1, left
    block = "blocks.1" if fault is lose_scale else "blocks.0"
    named = [left, *left["next"]]
    assert any(one["name"].startswith(block) for one in named), named


def test_a_sound_training_has_none(tmp_path):
    assert train(tmp_path / "run")["left_history"] is None


@pytest.mark.parametrize(
    "ids_of", [lambda step: 12 if step < AT else 24, lambda step: 8 + step % 5]
)
def test_batches_of_other_sizes_are_none(tmp_path, ids_of):
    left = train(tmp_path / "run", ids_of=ids_of)["left_history"]
    assert left is None or "jump" not in left["measure"], left
