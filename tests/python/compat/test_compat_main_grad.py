# params_have_main_grad: gradients in an attribute main_grad, as Megatron keeps them.
import json

import pytest
import torch

import compat_case as case
from compat_oracle import truth
from trainmon.compat.msprobe.pytorch import TrainerMon

WG = {"targets": {}, "wg_distribution": True, "ops": ["norm", "max"]}


@pytest.mark.parametrize("asked, there", [(True, True), (True, False), (False, True), (None, True)])
def test_params_have_main_grad(asked, there, tmp_path):
    """main_grad is read where it is asked for (the default) and exists; grad otherwise."""
    model = case.net()

    def accumulate(p):
        p.main_grad.add_(p.grad, alpha=2)

    for p in model.parameters() if there else ():
        p.main_grad = torch.zeros_like(p)
        p.register_post_accumulate_grad_hook(accumulate)
    with case.output(tmp_path):
        path = case.config_file(tmp_path, WG)
        options = {} if asked is None else {"params_have_main_grad": asked}
        monitor = TrainerMon(path, **options)
        optimizer = case.adam(model)
        monitor.set_monitor(model, 1, optimizer)
        case.steps(model, optimizer, 1)
        monitor.stop()
    factor = 2 if there and asked is not False else 1
    twin = case.net()
    gradients = truth(twin, case.adam(twin), 1, case.loss_of)[0]["grad"]
    for kind in ("grad_reduced", "grad_unreduced"):
        for _, row in case.rows(case.folders(tmp_path)[0], kind).iterrows():
            case.assert_row(row, gradients[row["name"]] * factor, WG["ops"])


@pytest.mark.parametrize("where", ["node", "tensor"])
def test_main_grad_of_a_framework_that_takes_grad_away(where, tmp_path):
    """As Megatron's own hooks do: they add .grad to main_grad and set it to None."""
    model, nodes, known, micro = case.net(), [], {}, []

    def into_main_grad(name, p):
        def hook(*_):
            p.main_grad.add_(p.grad)
            p.grad = None
            known[name, len(micro) - 1] = p.main_grad.clone()

        return hook

    for name, p in model.named_parameters():
        p.main_grad = torch.zeros_like(p)
        if where == "node":
            nodes.append(p.expand_as(p).grad_fn.next_functions[0][0])
            nodes[-1].register_hook(into_main_grad(name.removeprefix("encoder."), p))
        else:
            hook = into_main_grad(name.removeprefix("encoder."), p)
            p.register_post_accumulate_grad_hook(hook)
    optimizer = case.adam(model)
    config = {**WG, "monitor_mbs_grad": True, "xy_distribution": True, "mg_direction": True}
    with case.output(tmp_path):
        monitor = case.trainer_mon(tmp_path, config, main_grad=True)
        monitor.set_monitor(model, 2, optimizer)
        for _step in range(2):
            for p in model.parameters():
                p.main_grad.zero_()
            for _ in range(2):
                micro.append(None)
                case.loss_of(model, len(micro)).backward()
            for p in model.parameters():
                p.grad = p.main_grad.clone()
            optimizer.step()
            optimizer.zero_grad()
        monitor.stop()
    (folder,) = case.folders(tmp_path)
    table = case.rows(folder, "grad_unreduced")
    assert len(table) == len(known) == 2 * 2 * 10
    for _, row in table.iterrows():
        case.assert_row(row, known[row["name"], 2 * row["step"] + row["micro_step"]], WG["ops"])
    for _, row in case.rows(folder, "grad_reduced").iterrows():
        case.assert_row(row, known[row["name"], 2 * row["step"] + 1], WG["ops"])
    assert set(case.rows(folder, "actv")["micro_step"]) == {0, 1}
    assert len(case.rows(folder, "other", 1)) == 10
    assert json.loads((folder / "health.json").read_text())["parts_off"] == {}
