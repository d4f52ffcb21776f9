# Names of the compatible face: squashed, chunked, and which of them a target means.
import logging

import pytest
import torch
from torch import nn

import compat_case as case
from trainmon.compat.msprobe.names import squash


@pytest.mark.parametrize(
    "name, short",
    [
        ("module.module.encoder.layers.0.mlp.weight", "layers.0.mlp.weight"),
        ("model.layers.1.layers.2.x", "layers.2.x"),
        ("m.layer.3.x", "layer.3.x"),
        ("m.output_layer.weight", "output_layer.weight"),
        ("x.normal.weight", "normal.weight"),
        ("a.final_layernorm.weight", "final_layernorm.weight"),
        ("transformer.h.0.w", "transformer.h.0.w"),
        ("Module.embeddings.weight", "embeddings.weight"),
        ("a.embedding.word.weight", "embedding.word.weight"),
        ("embeddings.", "embeddings."),
        ("layers.0.weight", "layers.0.weight"),
        ("a.layers", "a.layers"),
        ("", ""),
    ],
)
def test_squashed_names(name, short):
    assert squash(name) == short


def test_squash_name(tmp_path):
    config = {"param_distribution": True, "xy_distribution": True}
    for value, prefix in ((None, ""), (True, ""), (False, "encoder.")):
        given = config if value is None else {**config, "squash_name": value}
        folder = case.run(tmp_path / str(value), given)
        assert f"{prefix}layers.0.up.weight" in case.names(case.rows(folder, "param_origin"))
        assert f"{prefix}layers.0.up.input" in case.names(case.rows(folder, "actv"))


class Twins(nn.Module):
    """Two subtrees whose squashed names are the same."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Module(), nn.Module()
        self.encoder.layers = nn.ModuleList([nn.Linear(4, 4)])
        self.decoder.layers = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x):
        return self.decoder.layers[0](self.encoder.layers[0](x))


def test_equal_squashed_names_stay_apart(tmp_path):
    torch.manual_seed(0)
    model = Twins()
    weights = [
        model.encoder.layers[0].weight.norm().item(),
        model.decoder.layers[0].weight.norm().item(),
    ]
    config = {"param_distribution": True, "xy_distribution": True, "all_xy": True}
    folder = case.run(tmp_path, config, model=model)
    table = case.rows(folder, "param_origin").set_index("name")["norm"]
    assert table["layers.0.weight"] == pytest.approx(weights[0], abs=1e-6)
    assert table["decoder.layers.0.weight"] == pytest.approx(weights[1], abs=1e-6)
    for kind in ("actv", "actv_grad"):
        names = case.names(case.rows(folder, kind))
        assert len(set(names)) == len(names)
        assert {"layers.0.output", "decoder.layers.0.output"} <= set(names)


# --- targets ---------------------------------------------------------------------------------------


def weights_of(folder):
    return case.names(case.rows(folder, "param_origin"))


@pytest.mark.parametrize(
    "target, found",
    [
        (
            "encoder.layers.1",
            [f"layers.1.{n}" for n in ("up.weight", "up.bias", "down.weight", "down.bias")],
        ),
        ("layers.1.up", ["layers.1.up.weight", "layers.1.up.bias"]),
        ("0:layers.1.up", ["layers.1.up.weight", "layers.1.up.bias"]),
        ("0:encoder.layers.1.up", ["layers.1.up.weight", "layers.1.up.bias"]),
        ("head.bias", ["head.bias"]),
    ],
)
def test_targets_of_parameters(target, found, tmp_path):
    config = {"targets": {target: {}}, "param_distribution": True}
    assert weights_of(case.run(tmp_path, config)) == found


def test_targets_end_at_components(tmp_path):
    model = case.net(layers=12)
    config = {
        "targets": {"encoder.layers.1": {}},
        "param_distribution": True,
        "wg_distribution": True,
    }
    folder = case.run(tmp_path, config, model=model)
    assert all(name.startswith("layers.1.") for name in weights_of(folder))
    assert all(n.startswith("layers.1.") for n in case.names(case.rows(folder, "grad_reduced")))


def test_several_targets_and_mv(tmp_path):
    config = {
        "targets": {"layers.0.up": {}, "head.weight": {}},
        "mv_distribution": True, "wg_distribution": True, "mg_direction": True,
    }  # fmt: skip
    folder = case.run(tmp_path, config, 2)
    for prefix in ("exp_avg", "exp_avg_sq", "grad_reduced", "grad_unreduced", "other"):
        assert set(case.names(case.rows(folder, prefix, 1))) == {
            "layers.0.up.weight", "layers.0.up.bias", "head.weight",
        }  # fmt: skip


def test_a_target_that_is_nowhere_is_told(tmp_path):
    folder = case.run(tmp_path, {"targets": {"head": {}, "heed": {}}, "wg_distribution": True})
    assert "heed" in (folder / "run.json").read_text()


def test_modules_are_matched_exactly(tmp_path):
    config = {"targets": {"encoder.layers.0": {}, "head": {}}, "xy_distribution": True}
    folder = case.run(tmp_path, config)
    modules = {name.rsplit(".", 1)[0] for name in case.names(case.rows(folder, "actv"))}
    assert modules == {"layers.0", "head"}


class Several(nn.Module):
    """fc: (x, y, flag=z) -> (x + y, x - y); a nested tuple, a dict and None are in it, too."""

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x, y, z=None):
            return x * self.weight + y, x - y * self.weight + (0 if z is None else z)

    class Odd(nn.Module):
        def forward(self, x):
            return {"a": x * 2, "b": None}

    class Nothing(nn.Module):
        def forward(self, x):
            return None

    def __init__(self):
        super().__init__()
        self.fc, self.odd, self.nothing = self.Inner(), self.Odd(), self.Nothing()

    def forward(self, x):
        x = x.clone().requires_grad_()
        one, two = self.fc(x, x * 3, z=x.detach() * 5)
        self.nothing(one)
        return one + two + self.odd(one)["a"]


XY = {"xy_distribution": True, "ops": ["norm"]}


def elements(folder, kind):
    return [
        n.removeprefix("fc.") for n in case.names(case.rows(folder, kind)) if n.startswith("fc.")
    ]


def test_elements_are_numbered(tmp_path):
    folder = case.run(tmp_path, {**XY, "all_xy": True}, model=Several())
    assert elements(folder, "actv") == ["input_0", "input_1", "input_2", "output_0", "output_1"]
    assert elements(folder, "actv_grad") == ["input_0", "input_1", "output_0", "output_1"]
    table = case.rows(folder, "actv").set_index("name")["norm"]
    assert table["fc.input_2"] == pytest.approx(5 * table["fc.input_0"], abs=1e-4)
    assert not [n for n in table.index if n.startswith("nothing.output")]
    assert any(n.startswith("odd.output") for n in table.index)  # dicts are looked into


@pytest.mark.parametrize(
    "wanted, values, gradients",
    [
        ({"input": "tuple[3]:1", "output": "tuple[2]:0", "input_grad": "tuple[2]:1", "output_grad": "tuple[2]:1"},
         ["input_1", "output_0"], ["input_1", "output_1"]),
        ({"output": "tuple[2]:1"}, ["output_1"], []),
        ({"output": "tuple[2]"}, ["output_0"], []),
        ({"input": "tuple[3]:2", "output_grad": "tuple[2]:0"}, ["input_2"], ["output_0"]),
        ({"input_grad": "tuple[3]:0"}, [], ["input_0"]),
        ({}, ["input_0", "input_1", "input_2", "output_0", "output_1"],
         ["input_0", "input_1", "output_0", "output_1"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("all_xy", [False, True])
def test_elements_that_targets_choose(wanted, values, gradients, all_xy, tmp_path):
    config = {**XY, "targets": {"fc": wanted}, "all_xy": all_xy}
    folder = case.run(tmp_path, config, model=Several())
    for kind, expected in (("actv", values), ("actv_grad", gradients)):
        there = f"{kind}_0-0.csv" in case.csvs(folder)
        assert (elements(folder, kind) if there else []) == expected
        if all_xy:  # the others are watched wholly
            assert ".output" in case.names(case.rows(folder, kind))
        elif there:
            assert all(n.startswith("fc.") for n in case.names(case.rows(folder, kind)))


def test_an_element_that_does_not_fit_is_told(tmp_path, caplog):
    config = {**XY, "targets": {"fc": {"output": "tensor", "input": "tuple[5]:0"}}}
    with caplog.at_level(logging.WARNING):
        folder = case.run(tmp_path, config, model=Several())
    assert "fc: output is not 'tensor'" in caplog.text
    assert elements(folder, "actv")[-2:] == ["output_0", "output_1"]


# --- chunks, calls, duplicates ---------------------------------------------------------------------


def test_chunks_are_the_vpp_stage(tmp_path):
    chunks = [case.net(seed=1, layers=1), case.net(seed=2, layers=1)]
    optimizer = torch.optim.Adam([p for c in chunks for p in c.parameters()])

    def loss(_, index):
        return (
            chunks[1].head(
                chunks[1].encoder.layers[0](chunks[0].encoder.layers[0](case.batch(index)))
            )
        ).sum()

    config = {
        "targets": {"head": {}, "1:encoder.layers.0.up": {}},
        "param_distribution": True,
        "xy_distribution": True,
    }
    folder = case.run(tmp_path, config, model=chunks, optimizer=optimizer, loss=loss)
    table = case.rows(folder, "param_origin")
    found = [(r["vpp_stage"], r["name"]) for _, r in table.iterrows()]
    assert found == [(0, "head.weight"), (0, "head.bias"), (1, "layers.0.up.weight"), (1, "layers.0.up.bias"),
                     (1, "head.weight"), (1, "head.bias")]  # fmt: skip
    for vpp, _chunk in enumerate(chunks):
        row = table[(table["vpp_stage"] == vpp) & (table["name"] == "head.weight")].iloc[0]
        fresh = case.net(seed=vpp + 1, layers=1).head.weight
        assert row["norm"] == pytest.approx(fresh.norm().item(), abs=1e-6)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(self.fc(x))


def test_a_module_called_twice_has_rows_of_both_calls(tmp_path):
    folder = case.run(tmp_path, {**XY, "all_xy": True}, micro=2, model=Twice())
    for kind in ("actv", "actv_grad"):
        table = case.rows(folder, kind)
        for name in ("fc.output", "fc.call_1.output"):
            assert list(table[table["name"] == name]["micro_step"]) == [0, 1]
        assert len(table[["name", "micro_step"]].drop_duplicates()) == len(table)


def test_metrics_of_both_calls_are_given(tmp_path):
    model, found = Twice(), []
    optimizer = torch.optim.SGD(model.parameters())
    with case.output(tmp_path):
        monitor = case.trainer_mon(tmp_path, {**XY, "all_xy": True, "format": "api"})
        monitor.set_monitor(model, 1, optimizer)
        case.steps(model, optimizer, 1, each=lambda _: found.append(monitor.generate_xy_metrics()))
        monitor.stop()
    for kind, tags in zip(("actv", "actv_grad"), found[0]):
        assert {f"0:fc.output:0/rank0/{kind}", f"0:fc.call_1.output:0/rank0/{kind}"} <= set(tags)


def test_frozen_parameters_are_left_out(tmp_path):
    model = case.net()
    model.head.bias.requires_grad_(False)
    folder = case.run(tmp_path, {"param_distribution": True}, model=model)
    assert "head.bias" not in weights_of(folder) and "head.weight" in weights_of(folder)
