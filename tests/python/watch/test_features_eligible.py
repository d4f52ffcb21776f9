# Which modules features are taken of, and what the calls of an attention say of causality and masks.
import pytest
import torch
from torch import nn

import trainmon
from adapter_rows import assert_is, healthy, row, rows, run_json
from features_model import PlainAttention
from test_features_attention import dense
from trainmon.torch.features import eligible
from trainmon.torch.features.rows import ATTENTION, Choice

CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()
PADDING = torch.tensor([True, True, True, False, False]).reshape(1, 1, 1, 5)
CALLS = {
    # name: (attributes of the module, configuration, further arguments, causal, visible, scale)
    "nothing said": ({}, {}, {}, False, None, None),
    "yes": ({"is_causal": False}, {"attention_causal": "yes"}, {}, True, None, None),
    "no": ({"is_causal": True}, {"attention_causal": "no"}, {}, False, None, None),
    "by the call": ({"is_causal": True}, {}, {"is_causal": False}, False, None, None),
    "by the module": ({"causal": True}, {}, {}, True, None, None),
    "by Megatron": ({"attn_mask_type": "padding_causal"}, {}, {}, True, None, None),
    "torch's mask": ({}, {}, {"attn_mask": CAUSAL}, False, CAUSAL[None, None], None),
    "Megatron's mask": ({}, {}, {"attention_mask": ~CAUSAL[None, None]}, False, CAUSAL, None),
    "both": ({"is_causal": True}, {}, {"attn_mask": PADDING}, True, PADDING, None),
    "by position": ({}, {}, (~PADDING,), False, PADDING, None),
    "scale of the call": ({"scale": 3.0}, {}, {"scale": 0.7}, False, None, 0.7),
    "scale of the module": ({"softmax_scale": 0.3}, {}, {}, False, None, 0.3),
}


@pytest.mark.parametrize("name", CALLS)
def test_how_attention_is_told_what_it_sees(tmp_path, name):
    attributes, config, further, causal, visible, scale = CALLS[name]
    model = nn.Module()
    model.attention, model.linear = PlainAttention(), nn.Linear(3, 3)
    for key, value in attributes.items():
        setattr(model.attention, key, value)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, optimizer, kinds=["attention"], out=tmp_path, **config)
    query, key = torch.randn(2, 3, 5, 3), torch.randn(2, 3, 5, 3)
    args = (None, *further) if isinstance(further, tuple) else ()
    kwargs = {} if isinstance(further, tuple) else further
    model.linear(model.attention(query, key, *args, **kwargs)).sum().backward()
    optimizer.step()
    healthy(monitor)
    expected = dense(query, key, causal, scale, visible)
    for kind, values in zip(ATTENTION, expected):
        for head in range(3):
            found = row(tmp_path, kind=kind, element=f"head.{head}")
            assert_is(found, values[:, head], 1e-5)


def test_a_mask_that_is_not_understood_is_said(tmp_path):
    model = nn.Module()
    model.attention, model.linear = PlainAttention(), nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, optimizer, kinds=["attention"], out=tmp_path)
    query = torch.randn(2, 1, 5, 3)
    out = model.attention(query, query, attn_mask=torch.ones(2, 5, dtype=torch.bool))
    model.linear(out).sum().backward()
    optimizer.step()
    healthy(monitor)
    assert rows(tmp_path) == []
    assert "its mask is of an unknown form" in str(run_json(monitor)["not_covered"])


def named(name, *parents, **attributes):
    return type(name, parents or (nn.Module,), {**attributes, "forward": lambda self, x: x})


def with_weight(name, *shape):
    module = named(name)()
    module.weight = nn.Parameter(torch.ones(shape))
    return module


def gate_of_deepspeed():
    module = named("TopKGate")()
    module.wg = nn.Linear(8, 4)
    return module


ROUTERS = {
    "TopKRouter": ("a.b", with_weight("TopKRouter", 4, 8), True),
    "MoEGate": ("a.b", with_weight("MoEGate", 4, 8), True),
    "MOEGate": ("a.b", with_weight("MOEGate", 4, 8), True),
    "DeepSpeed": ("a.b", gate_of_deepspeed(), True),
    "Mixtral": ("layers.0.moe.gate", nn.Linear(8, 4), True),
    "GatedMLP": ("a.b", with_weight("GatedMLP", 16, 8), False),
    "Aggregate": ("a.b", with_weight("Aggregate", 4, 8), False),
    "gate of a GLU": ("layers.0.mlp.gate", nn.Linear(8, 20), False),
    "gate_proj": ("layers.0.mlp.gate_proj", nn.Linear(8, 4), False),
    "no weight": ("a.b", named("Router")(), False),
    "one expert": ("a.b", with_weight("Router", 1, 8), False),
}


@pytest.mark.parametrize("case", ROUTERS)
def test_what_looks_like_a_router(case):
    name, module, expected = ROUTERS[case]
    assert eligible.looks_like_router(name, module) == expected


def test_what_has_a_spectrum():
    sharded = with_weight("VocabParallel", 8, 4)
    sharded.vocab_start_index = 0
    with_wg = named("Gate")()
    with_wg.wg = nn.Parameter(torch.ones(3, 4))
    for module, expected in (
        (nn.Linear(3, 4), True),
        (with_wg, True),
        (nn.Embedding(3, 4), False),
        (sharded, False),
        (nn.LayerNorm(4), False),
        (nn.Conv2d(3, 4, 1), False),
        (nn.Tanh(), False),
    ):
        assert eligible.has_spectrum("", module) == expected, module


@pytest.mark.parametrize("layout", ["bhsd", "sbhd"])
def test_the_first_head_alone_by_explicit_choice(tmp_path, monkeypatch, layout):
    """What the compatible face asks for: batch 0, head 0, causal whatever the module is told."""
    choice = Choice(
        attention=lambda chunk, name: (chunk, name) == (0, "attention"),
        layout=layout,
        causal="yes",
        masks=False,
        first_only=True,
    )
    monkeypatch.setattr(Choice, "of", classmethod(lambda cls, config: choice))
    model = nn.Module()
    model.attention, model.other, model.linear = PlainAttention(), PlainAttention(), nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, optimizer, kinds=["attention"], out=tmp_path)
    query, key = torch.randn(4, 5, 6, 3), torch.randn(4, 5, 6, 3)
    out = model.attention(query, key, None, ~PADDING)
    model.linear(model.other(out, key)).sum().backward()
    optimizer.step()
    healthy(monitor)
    order = [layout.index(axis) for axis in "bhsd"]
    first = [x.permute(order)[:1, :1] for x in (query, key)]
    for kind, values in zip(ATTENTION, dense(*first, causal=True)):
        found = row(tmp_path, kind=kind)
        assert (found["name"], found["element"]) == ("attention", "head.0")
        assert_is(found, values, 1e-5)
